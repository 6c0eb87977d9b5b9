"""Attention over sequences that several ranks hold."""
