"""What a person sees of each verb: live tables and plain lines."""
