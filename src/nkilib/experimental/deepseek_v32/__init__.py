"""DeepSeek V3.2, decode: latent attention over chosen keys, its indexer, and the router of its experts."""
