"""Importing this module raises ImportError where another trnblas is mixed into this one, or without torch."""

from open_nki import check_import

check_import("trnblas")
try:
    import torch  # noqa: F401
except ImportError as problem:
    help = "install PyTorch: pip install torch"
    raise ImportError(f"trnblas computes on PyTorch tensors; {help}") from problem
