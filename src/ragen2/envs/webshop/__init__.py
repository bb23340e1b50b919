"""WebShop: shopping in a simulated web shop, with WebShop's own files or a generated catalogue."""
