"""Parts that several environments share: records, text indexes, pixels, wording."""
