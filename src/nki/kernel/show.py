"""nki.show: a call as a page to step through, instruction by instruction."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.context import current
from ..ir.tree import leaves
from ..launch.observers import observe
from ..report.steps import Steps
from .arrays import TensorSpec
from .attempts import run_eagerly
from .jit import as_kernel


def show(kernel: object) -> Callable[..., Steps]:
    """`nki.show(kernel)(*args)`: a page with the tiles of HBM, SBUF and PSUM and what each step does to them.

    Given arrays, the kernel runs and the page has the values of small tiles; given TensorSpecs it is traced.
    A notebook shows the page by itself; `.html()` is its text.
    """
    made = as_kernel(kernel)

    def call(*args: object, **kwargs: object) -> Steps:
        if leaves([args, kwargs], TensorSpec):
            steps = Steps(made.__name__)
            for instruction in made.trace(*args, **kwargs).walk():
                steps(instruction)
            return steps
        steps = Steps(made.__name__, lambda view: current().values(view))
        with observe(lambda instruction: steps(instruction) if current().index == 0 else None):
            run_eagerly(made.prepare(args, kwargs))
        return steps

    return call
