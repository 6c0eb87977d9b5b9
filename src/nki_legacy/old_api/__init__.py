"""`neuronxcc.nki`, the NKI of SDK 2.20 to 2.27, as a layer on today's `nki`.

It is importable under the old names where the import stubs are installed: in `nki run`, with pytest's
`--nki-stubs`, and after `nki_legacy.stubs.install()`. Kernels are traced, as today's are: loops are Python's,
index tensors are arrays of integers, and each old call becomes instructions of `nki.isa`.
"""

import logging

from nki.kernel.pure import add_language

from . import compiler, isa, language, typing
from .kernel import FrameworkKernel, baremetal, benchmark, jit, profile, simulate_kernel, trace
from .operators import give_operators
from .typing import tensor

give_operators()
add_language(__name__, isa.__name__, language.__name__)  # kernels that use them are cached
if not hasattr(logging, "OFF"):
    logging.OFF = logging.CRITICAL + 10  # type: ignore[attr-defined]  # importing neuronxcc defined it

__all__ = [
    "FrameworkKernel",
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate_kernel",
    "tensor",
    "trace",
    "typing",
]
