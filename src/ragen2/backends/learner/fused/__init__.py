"""Our own reading of the Llama, Qwen2 and Qwen3 families for a gradient: few operations, little kept."""
