"""Every kernel of the libraries and the examples passes `nki check --for` the newest release.

The kernels of documents are checked where they run: tests/test_docs.py, tests/test_site.py (the tutorial) and
tests/nkilib/test_catalogue.py (the examples in docstrings).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from documented_kernels import checked, show_source
from nki.check.releases import NAMES
from nki.cli import main

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(f for f in (ROOT / "examples").rglob("*.py") if "nki.jit" in f.read_text())


def findings(capsys, *targets):
    capsys.readouterr()
    main(["check", *map(str, targets), "--for", NAMES[-1], "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["kernels"]
    return [f"{one['file']}:{one['line']} {one['kind']}: {one['message']}" for one in told["findings"]]


@pytest.mark.parametrize("library", ["nkilib", "trnblas"])
def test_a_library_passes(library, capsys):
    pytest.importorskip("torch")  # trnblas
    assert findings(capsys, library) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes(example, capsys):
    for package in ("torch", "jax", "transformers"):
        if re.search(rf"^(import|from) {package}\b", example.read_text(), re.M):
            pytest.importorskip(package)
    assert findings(capsys, example) == []


WRONG = """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    sizes = [n for n in x.shape]
    nisa.dma_copy(out, nl.divide(nl.load(x), nl.load(x)))
    return out


kernel(np.ones((2, 2), np.float32))
"""


@pytest.mark.filterwarnings("ignore")
def test_a_document_with_a_wrong_kernel_is_found():
    show_source("wrong.md", WRONG)
    with pytest.raises(AssertionError) as found, checked("wrong.md"):
        exec(compile(WRONG, "wrong.md", "exec"), {"__name__": "snippet"})
    kinds = set(re.findall(r"Nki\w+\[([\w-]+)\]", str(found.value)))
    assert {"py-comprehension", "output-buffer", "release-refused", "not-on-hardware"} <= kinds
