"""The largest element of rows."""

from .cascaded_max import cascaded_max, cascaded_max_ref

__all__ = ["cascaded_max", "cascaded_max_ref"]
