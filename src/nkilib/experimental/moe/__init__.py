"""Mixture of experts for training."""
