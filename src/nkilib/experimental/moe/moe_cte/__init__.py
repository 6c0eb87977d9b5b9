"""Blockwise experts for prefill, second version."""
