"""`jax_neuronx`: imported for its effect, which here is none, and `nki_call` of SDK 2.20 to 2.22."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..old_api import jit as old_jit
from .missing import missing

__version__ = f"{jax.__version__}+open.nki"


def nki_call(
    kernel: Callable[..., Any], *args: jax.Array, grid: int | Sequence[int] | None = None, out_shape: Any
) -> Any:
    """Call a kernel of the old API that writes the outputs after its inputs; also inside jax.jit."""
    outlines, structure = jax.tree_util.tree_flatten(out_shape)
    made = old_jit(kernel, kernel_return=False)
    launched = made if grid is None else made[grid]

    def run(*arrays: jax.Array) -> list[np.ndarray]:
        outputs = [np.zeros(outline.shape, outline.dtype) for outline in outlines]
        launched(*map(np.asarray, arrays), *outputs)
        return outputs

    shapes = [jax.ShapeDtypeStruct(outline.shape, outline.dtype) for outline in outlines]
    return jax.tree_util.tree_unflatten(structure, jax.pure_callback(run, shapes, *args))


__getattr__ = missing("jax_neuronx")
