"""What a vision-language model needs beside its text: image tokens, encodings, positions."""
