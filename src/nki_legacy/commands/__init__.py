"""Subcommands of `nki` for older code and for device scripts."""
