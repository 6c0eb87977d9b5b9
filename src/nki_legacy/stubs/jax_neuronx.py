"""`jax_neuronx`: imported for its effect, which here is none, and `nki_call` of SDK 2.20 to 2.22."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..old_api import jit as old_jit

__version__ = f"{jax.__version__}+open.nki"


def nki_call(kernel: Any, *args: Any, grid: Any = None, out_shape: Any) -> Any:
    """Call a kernel of the old API that writes the outputs after its inputs; also inside jax.jit."""
    outlines, structure = jax.tree_util.tree_flatten(out_shape)
    made = old_jit(kernel, kernel_return=False)
    launched = made if grid is None else made[grid]

    def run(*arrays: Any) -> Any:
        outputs = [np.zeros(outline.shape, outline.dtype) for outline in outlines]
        launched(*map(np.asarray, arrays), *outputs)
        return outputs

    shapes = [jax.ShapeDtypeStruct(outline.shape, outline.dtype) for outline in outlines]
    return jax.tree_util.tree_unflatten(structure, jax.pure_callback(run, shapes, *args))


def __getattr__(name: str) -> Any:
    raise AttributeError(f"the stub of Open NKI for jax_neuronx lacks jax_neuronx.{name}")
