"""The mixture-of-experts block with MX weights."""
