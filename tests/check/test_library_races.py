"""No false alarm: the example of every library kernel, launched on two cores, races with nothing.

Examples that wrap a function of the library into a kernel of one core are not launched on two.
"""

from __future__ import annotations

import doctest
import inspect
import io
import warnings
from contextlib import redirect_stdout

import numpy as np
import pytest

import nki
from nki.kernel.attempts import run_call
from nkilib import catalogue
from support import target

# documented: without shard_on_tokens both cores store all tokens, the same values twice
BOTH_STORE_ALL = "router_tokens.py"
BUILT = [k for k in catalogue.kernels() if k.is_built and not inspect.isclass(k.target)]


def example_of(kernel):
    home = inspect.getmodule(kernel.target)
    first = next(other for other in BUILT if other.module == kernel.module)
    docstrings = map(inspect.getdoc, (kernel.target, home, first.target))
    text = next(text for text in docstrings if text and ">>>" in text)
    known = {"np": np, **vars(home)}
    return doctest.DocTestParser().get_doctest(text, known, kernel.name, None, 0), known


@pytest.mark.parametrize("kernel", BUILT, ids=lambda k: k.name)
def test_the_example_on_two_cores_races_with_nothing(kernel, monkeypatch):
    seen = []

    def on_two_cores(call):
        if call.kernel.grid or call.kernel.func.__code__.co_filename == "<example>":
            done = run_call(call)
        else:
            values = [tensor.value for tensor in call.arguments.tensors]
            args, kwargs = call.arguments.call(lambda *args, **kwargs: (args, kwargs), values)
            try:
                done = run_call(call.kernel[2].prepare(args, kwargs))
            except Exception:  # some kernels are for one core, and report it
                return run_call(call)
        seen.extend(d for d in done.diagnostics if d.kind == "race")
        return done

    monkeypatch.setattr(nki.kernel.kernel, "run_call", on_two_cores)
    example, known = example_of(kernel)
    with target("trn2"), warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for part in example.examples:
            exec(compile(part.source, "<example>", "single"), known)
    false = [d for d in seen if not d.site.filename.endswith(BOTH_STORE_ALL)]
    assert false == [], "\n".join(map(str, false))
