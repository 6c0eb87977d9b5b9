"""What the MX kernels share."""
