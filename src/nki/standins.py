"""Imported for its effect: names of other vendors' packages that scripts expect become importable.

A real package of the name wins. So far these are the older roots of the kernel library, `nkilib_src` and
`nkilib_standalone`.
"""

from __future__ import annotations

import importlib
import importlib.util

if importlib.util.find_spec("nkilib") is not None:
    importlib.import_module("nkilib.import_roots").install()
