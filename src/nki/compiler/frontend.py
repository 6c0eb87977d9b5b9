"""Stands where AWS's compiler has its frontend; every name raises NkiError[no-compiler]."""

from . import absent

__getattr__ = absent("nki.compiler.frontend")
