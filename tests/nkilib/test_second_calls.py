"""The Python of every kernel of the library can be skipped from the second call on."""

from __future__ import annotations

import importlib
import pkgutil

import nkilib
from nki.kernel.kernel import Kernel


def kernels():
    for module in pkgutil.walk_packages(nkilib.__path__, "nkilib."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Kernel):
                yield value


def test_all_that_the_kernels_can_read_is_known():
    found = {kernel.func: kernel for kernel in kernels()}
    assert len(found) > 50
    assert [k.__name__ for k in found.values() if not k.cache_info().cacheable] == []
