"""Creating tensors (language.md 9)."""

from __future__ import annotations

from .. import dtypes
from ..core import current
from ..storage import SBUF
from ..tensor import whole


def ndarray(shape, dtype, buffer=SBUF, name="", address=None):
    storage, lease = current().allocate(tuple(shape), dtypes.resolve(dtype), buffer, name or "", address)
    return whole(storage, lease)
