"""Small kernels, by their older names."""
