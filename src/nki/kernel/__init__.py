"""A call of a kernel: its arguments and results, when its Python may be skipped, profiles."""
