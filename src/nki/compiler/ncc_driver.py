"""Stands where AWS's compiler has its ncc_driver; every name raises NkiError[no-compiler]."""

from . import absent

__getattr__ = absent("nki.compiler.ncc_driver")
