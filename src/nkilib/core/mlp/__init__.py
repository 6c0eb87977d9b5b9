"""Gated MLP."""
