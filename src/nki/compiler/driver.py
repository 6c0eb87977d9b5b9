"""Stands where AWS's compiler has its driver; every name raises NkiError[no-compiler]."""

from . import absent

__getattr__ = absent("nki.compiler.driver")
