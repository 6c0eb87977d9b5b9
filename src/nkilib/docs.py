"""`python -m nkilib.docs` writes docs/library.md and a table of docs/models.md from the catalogue."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from nkilib.catalogue import CatalogueEntry, kernels

PAGE = Path("docs/library.md")
MODELS = Path("docs/models.md")
_TABLE = re.compile(r"(?<=<!-- backward -->\n).*?(?=<!-- end -->)", re.DOTALL)
HEADINGS = ("kernel", "import from", "meaning", "since", "backward")

_INTRODUCTION = """\
# Kernel library

<!-- Written by `make docs` (`python -m nkilib.docs`). Do not edit: change the code and run it again. -->

`nkilib` holds kernels under the import paths of AWS's kernel library, written from its public documentation.
They use only the public API of `nki`. This page is generated from `src/nkilib/catalogue` and the
docstrings, and `tests/nkilib/test_docs.py` fails when page and code differ. `nki kernels` prints the same
list, `make bench-kernels` the modelled time of each kernel.

```python
import numpy as np
from nkilib.core.rmsnorm.rmsnorm_quant import RmsNormQuantKernelArgs, rmsnorm_quant_kernel

hidden = np.random.default_rng(0).standard_normal((1, 7, 512)).astype(np.float32)
gamma = np.ones(512, np.float32)
packed = rmsnorm_quant_kernel(hidden, gamma, RmsNormQuantKernelArgs(lower_bound=0.0))
packed_on_two_cores = rmsnorm_quant_kernel[2](hidden, gamma, RmsNormQuantKernelArgs(lower_bound=0.0))
assert packed.shape == (1, 7, 512 + 4)  # FP8 values, and the scale of each row in its last four bytes
```

`help(rmsnorm_quant_kernel)` shows shapes, formula and options. Every kernel has a numpy reference next to it.
`nkilib.kernels` has all kernels by name; after `nki_legacy.stubs.install()` they can also be imported from
the older roots `nkilib_src.nkilib` and `nkilib_standalone.nkilib`, unless a real package has that name. Wrong
arguments fail before any instruction is issued, with an `AssertionError` that names the argument; an option
that is not implemented yet raises a `NotImplementedError` that names it.
"""


def page() -> str:
    """The text of docs/library.md."""
    built = [kernel for kernel in kernels() if kernel.is_built]
    missing = [kernel for kernel in kernels() if not kernel.is_built]
    areas = {"Core": "nkilib.core.", "Experimental": "nkilib.experimental."}
    sections = [_section(title, built, prefix) for title, prefix in areas.items()]
    return "\n".join([_INTRODUCTION, *sections, _section("Not yet", missing, "nkilib.")])


def _section(title: str, chosen: list[CatalogueEntry], prefix: str) -> str:
    rows = [_row(kernel) for kernel in chosen if kernel.module.startswith(prefix)]
    return "\n".join([f"## {title}\n", _line(HEADINGS), _line(["---"] * len(HEADINGS)), *rows, ""])


def _row(kernel: CatalogueEntry) -> str:
    backward = f"`{kernel.backward}`" if kernel.backward else ""
    return _line([f"`{kernel.name}`", f"`{kernel.module}`", kernel.meaning, kernel.release, backward])


def _line(cells: Iterable[str]) -> str:
    escaped = [re.sub("[|<]", r"\\\g<0>", cell) for cell in cells]
    return f"| {' | '.join(escaped)} |"


def backwards(page: str) -> str:
    """Return docs/models.md with its table of kernels that have gradients."""
    functions = [k for k in kernels() if k.is_built and not isinstance(k.target, type)]
    rows = [_line(("kernel", "its gradients", "in PyTorch")), _line(["---"] * 3)]
    rows += [
        _line(
            (
                f"`{kernel.name}`",
                f"`{kernel.backward}`" if kernel.backward else "itself",
                f"`{kernel.differentiable}`" if kernel.differentiable else "`differentiable`",
            )
        )
        for kernel in functions
        if kernel.backward or kernel.differentiable
    ]
    others = len(functions) - len(rows) + 2
    text = "\n".join(
        [*rows, "", f"The other {others} have no kernel for their gradients: use `gradient_of`.", ""]
    )
    return _TABLE.sub(lambda _: f"\n{text}\n", page)


def main(arguments: list[str]) -> None:
    """Write the page to docs/library.md, or to the file named."""
    path = Path(arguments[0]) if arguments else PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page())
    if not arguments:
        MODELS.write_text(backwards(MODELS.read_text()))
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
