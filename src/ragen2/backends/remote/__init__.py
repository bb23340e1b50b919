"""Models behind an HTTP server: sampling, scoring, and what is kept of them on disk."""
