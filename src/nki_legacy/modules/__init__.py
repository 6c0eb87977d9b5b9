"""Modules of `nki` that other releases have, under the names that pyproject.toml gives them."""
