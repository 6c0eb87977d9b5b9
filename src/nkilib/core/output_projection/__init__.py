"""Output projection of attention."""
