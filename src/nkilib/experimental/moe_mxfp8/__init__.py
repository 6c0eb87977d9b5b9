"""Blockwise experts of training in MXFP8, forward and backward."""
