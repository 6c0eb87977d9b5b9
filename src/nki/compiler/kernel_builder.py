"""Stands where AWS's compiler has its kernel_builder; every name raises NkiError[no-compiler]."""

from . import absent

__getattr__ = absent("nki.compiler.kernel_builder")
