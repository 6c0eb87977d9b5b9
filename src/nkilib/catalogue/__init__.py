"""The one table of the library: which documented kernel has which import path and names.

The docstring of a kernel describes what it computes and takes. A kernel is built if its code exists.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

from nkilib.catalogue.first_pages import FIRST_PAGES
from nkilib.catalogue.options import added_options
from nkilib.catalogue.pages_2_31 import PAGES_2_31
from nkilib.catalogue.pages_2_33 import PAGES_2_33
from nkilib.catalogue.rows import EXTENSION, HELPER, CatalogueRow
from nkilib.catalogue.without_page import EXTENSIONS, HELPERS

TABLE = [*FIRST_PAGES, *PAGES_2_31, *PAGES_2_33, *HELPERS, *EXTENSIONS]

DIFFERENTIABLE = (  # the names of nkilib.autograd, which imports PyTorch
    "RoPE",
    "attention_cte",
    "avg_pooling_3d",
    "batch_norm",
    "blockwise_mm_fwd_mxfp8",
    "conv1d",
    "conv3d",
    "conv3d_temporal_unroll",
    "conv3d_transpose",
    "cross_entropy_forward",
    "depthwise_conv1d_implicit_gemm",
    "flash_attention_2",
    "gather",
    "gdn_conv1d_prefill",
    "gdn_cte",
    "layer_norm",
    "matmul_mxfp8",
    "max_pooling_3d",
    "mlp",
    "mlp_forward_mxfp8_nki",
    "moe_cte",
    "ms_deformable_attention",
    "ring_attention_spmd_fwd",
    "rms_norm",
    "scatter_add",
)


@dataclass(frozen=True)
class CatalogueEntry:
    """A public name of the library."""

    name: str
    module: str  # to import it from
    page: str
    meaning: str
    target: Any  # the function or class; None while it is not built
    release: str = ""
    backward: str = ""
    also: str = ""

    @property
    def differentiable(self) -> str:
        """The function of PyTorch that has its gradients; "" if there is none."""
        return f"nkilib.autograd.{self.name}" if self.name in DIFFERENTIABLE else ""

    @property
    def options(self) -> dict[str, str]:
        """The options that came after the kernel, each with its release."""
        return added_options(self.name)

    @property
    def is_built(self) -> bool:
        return self.target is not None

    @property
    def is_documented(self) -> bool:
        """AWS has a page for it."""
        return self.page not in (EXTENSION, HELPER)

    @property
    def is_extension(self) -> bool:
        """The documented library has no such kernel."""
        return self.page == EXTENSION

    @property
    def status(self) -> str:
        return "built" if self.is_built else "not yet"


def register(row: CatalogueRow) -> None:
    """Let the catalogue know a kernel that the documented library lacks: `Row(EXTENSION, module, names)`."""
    TABLE.append(row)
    kernels.cache_clear()


@cache
def kernels() -> tuple[CatalogueEntry, ...]:
    """Every public name, in the order of the documentation. Imports what is built."""
    return tuple(_entry(row, name) for row in TABLE for name in row.names.split())


def _entry(row: CatalogueRow, name: str) -> CatalogueEntry:
    target = _target(row, name)
    meaning = row.meaning if target is None else _first_line(target)
    backward = row.backward if name == row.names.split()[0] else ""
    return CatalogueEntry(
        name, f"nkilib.{row.module}", row.page, meaning, target, row.release, backward, row.also
    )


def _target(row: CatalogueRow, name: str) -> Any:
    """The object of a public name; None if its module or the name in it is not there."""
    path = f"nkilib.{row.module}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as missing:
        if missing.name and f"{path}.".startswith(f"{missing.name}."):
            return None
        raise
    found = getattr(module, name, None)
    return found if callable(found) else None


def _first_line(target: Any) -> str:
    return (inspect.getdoc(target) or "").split("\n")[0]


def find(name: str) -> Any:
    """The kernel of this name; AttributeError if there is none, or it is not built."""
    for row in TABLE:
        if name in row.names.split():
            target = _target(row, name)
            if target is None:
                raise AttributeError(f"nkilib: {name} ({row.page}: {row.meaning}) is not built yet")
            return target
    raise AttributeError(f"nkilib has no kernel named {name!r}; `nki kernels` lists them")
