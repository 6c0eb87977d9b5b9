"""nki.autotune: a kernel that chooses its configuration by the shapes it is called with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import error
from ..kernel.kernel import Kernel
from ..kernel.specs import as_specs, label
from ..options import choose_machine
from .space import Space, Where
from .tuning import Tuning, tune


class Tuned:
    """A kernel with a space of configurations. Calling it tunes once for shapes, then runs the best."""

    def __init__(self, kernel: Kernel, space: Space, where: Where, settings: Mapping[str, Any]):
        self.kernel, self.space, self.where, self.settings = kernel, space, where, dict(settings)
        self.known: dict[str, Tuning] = {}
        functools.update_wrapper(self, kernel, updated=())

    def __getitem__(self, degree: int | Sequence[int]) -> Tuned:
        return Tuned(self.kernel[degree], self.space, self.where, self.settings)

    def tune(self, *args: Any, **kwargs: Any) -> Tuning:
        """Return the best configuration for arguments (or `nki.TensorSpec`s) on the platform of a call."""
        shapes = repr(label([as_specs(args), as_specs(kwargs)]))
        call = f"{choose_machine(self.kernel.target).name} {shapes}"
        if call not in self.known:
            self.known[call] = tune(
                self.kernel, args, kwargs, vary=self.space.vary, where=self.where, **self.settings
            )
        return self.known[call]

    def __call__(self, *args: object, **kwargs: object) -> Any:
        missing = self.space.vary.keys() - kwargs.keys()
        if not missing:  # everything was chosen by the caller
            return self.kernel(*args, **kwargs)
        if missing != self.space.vary.keys():
            given = ", ".join(sorted(self.space.vary.keys() - missing))
            raise error(
                "argument",
                f"{self.kernel.__name__}: {given} is given, {', '.join(sorted(missing))} is not",
                help="give all varied arguments, or none of them",
            )
        return self.kernel(*args, **kwargs, **self.tune(*args, **kwargs).best)

    def __repr__(self) -> str:
        return f"<nki.autotune {self.kernel!r} over {', '.join(self.space.vary)}>"


def autotune(
    vary: Mapping[str, Sequence[object]],
    where: Where = None,
    *,
    budget: int = 500,
    jobs: int | None = None,
    cache: bool = True,
) -> Callable[[Callable[..., Any]], Tuned]:
    """Over `@nki.jit`: vary these arguments, and run the configuration that is fastest by the model.

    The choice depends on shapes, dtypes and the platform. It is made at the first call with them, and cached
    in JSON files.
    """
    space = Space(vary, where)

    def make(kernel: Callable[..., object]) -> Tuned:
        kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
        unknown = space.vary.keys() - kernel.__signature__.parameters.keys()
        if unknown:
            raise error("argument", f"autotune: {kernel.__name__} has no parameter {sorted(unknown)[0]}")
        return Tuned(kernel, space, where, {"budget": budget, "jobs": jobs, "cache": cache})

    return make
