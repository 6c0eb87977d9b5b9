"""The gated MLP in MXFP8, for training."""
