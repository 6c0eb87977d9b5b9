"""PyTorch: tensors as arguments and results, compiled functions, gradients (frameworks.md 3).

An eager call runs at once on the tensors' own memory. Inside `torch.compile` and `torch.export`, and with
tensors that have no values, a call becomes one operator: `open_nki::call`, or `open_nki::call_` when
the kernel writes its arguments. The operator carries the key of a staged call as a string.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import Site, emit_warning, error, user_site
from ..kernel import Kernel, Staged
from .programs import Programs, dump, result_leaves

try:
    import torch
except ImportError as problem:
    raise error(
        "missing-package", "nki.frameworks.torch needs PyTorch", help="pip install 'open-nki[torch]'"
    ) from problem
