"""The router of mixtures of experts."""
