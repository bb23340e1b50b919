"""Reports: run directories in, pages out. Nothing here knows the trainer."""
