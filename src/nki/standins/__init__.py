"""Imported for its effect: names of other vendors' packages that scripts expect become importable.

A real package of a name wins over its stand-in. See docs/scripts.md.
"""

from __future__ import annotations

import importlib
import importlib.util

from . import finder, profiler
from .table import TABLE

finder.install(TABLE)
profiler.install()
if importlib.util.find_spec("nkilib") is not None:
    importlib.import_module("nkilib.import_roots").install()
