"""QKV projections of particular models."""
