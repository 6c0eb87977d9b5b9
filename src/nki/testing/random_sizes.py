"""check_kernel: a kernel against its reference, with random sizes that hypothesis chooses and shrinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ..errors import NkiError, error
from ..kernel.kernel import Kernel
from ..machine.dtypes import DTypeLike
from ..options import choose_machine
from ..options import options as on
from .close import assert_close

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EDGES = (1, 2, 31, 32, 33, 127, 128, 129, 255, 256, 257, 511, 512, 513)  # where tiles end
Dimension = int | str


def check_kernel(
    kernel: Kernel,
    reference: Callable[..., object],
    shapes: Sequence[Sequence[Dimension]],
    dtypes: Sequence[DTypeLike] = ("float32", "bfloat16"),
    *,
    sizes: Mapping[str, tuple[int, int] | Sequence[int]] | None = None,
    options: Mapping[str, object] | None = None,
    cores: Sequence[int] = (1,),
    targets: Sequence[str] = (),
    examples: int = 25,
    terms: int | None = None,
    through: DTypeLike | None = None,
    refuses: Sequence[str] = (),
    scale: float = 1.0,
) -> None:
    """Compare `kernel(*arrays, **options)` with `reference(*arrays in float64)` for random sizes.

    `shapes` has a shape for each array; an entry is a number, or a letter whose size is random: one letter is
    one size. `sizes` gives the range of a letter, (lowest, highest) as a tuple or a list to choose from;
    (1, 300) without. Sizes beside multiples of 32, 128 and 512 are more frequent. A case that fails is
    shrunk: the smallest sizes are reported. `refuses` names kinds of errors with which the kernel may refuse.
    """
    hypothesis, st = _hypothesis()
    letters = list(dict.fromkeys(d for shape in shapes for d in shape if isinstance(d, str)))
    ranges = {letter: _sizes(st, (sizes or {}).get(letter, (1, 300))) for letter in letters}
    platforms = list(targets) or [choose_machine(kernel.target).name]

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
    )
    @hypothesis.given(
        st.fixed_dictionaries(ranges),
        st.sampled_from(list(dtypes)),
        st.sampled_from(list(cores)),
        st.sampled_from(platforms),
        st.integers(0, 3),
    )
    def case(chosen: dict[str, int], dtype: DTypeLike, lnc: int, platform: str, seed: int) -> None:
        arrays = _arrays(shapes, chosen, dtype, seed, scale)
        named = ", ".join(f"{letter}={size}" for letter, size in chosen.items())
        what = f"{kernel.__name__} with {named or 'fixed sizes'}, {_label(dtype)}, {lnc} core(s), {platform}"
        launched = kernel if lnc == 1 else kernel[lnc]
        with on(target=platform):
            try:
                result = launched(*(array.copy() for array in arrays), **(options or {}))
            except NkiError as problem:
                if problem.kind in refuses:
                    return
                problem.notes.append(f"called as {what}")
                raise
        try:
            assert_close(result, reference, arrays, terms=terms, through=through)
        except AssertionError as wrong:
            raise AssertionError(f"{what}: {wrong}") from None

    case()


def _hypothesis() -> tuple[ModuleType, ModuleType]:
    try:
        import hypothesis
        from hypothesis import strategies
    except ImportError:
        raise error(
            "missing-package", "nki.testing.check_kernel needs hypothesis", help="pip install hypothesis"
        ) from None
    return hypothesis, strategies


def _sizes(st: ModuleType, given: Sequence[int]) -> SearchStrategy[int]:
    if isinstance(given, tuple) and len(given) == 2:
        low, high = given
        edges = [size for size in EDGES if low <= size <= high]
        spread = st.integers(low, high)
        return spread if not edges else st.one_of(st.sampled_from(edges), spread)
    return st.sampled_from(list(given))


def _arrays(
    shapes: Sequence[Sequence[Dimension]],
    chosen: Mapping[str, int],
    dtype: DTypeLike,
    seed: int,
    scale: float,
) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    found = []
    for shape in shapes:
        size = tuple(chosen[d] if isinstance(d, str) else d for d in shape)
        values = (scale * random.standard_normal(size)).astype(np.float32)
        found.append(values.astype(_numpy_dtype(dtype)))
    return found


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype, dtype) if isinstance(dtype, str) else dtype)


def _label(dtype: DTypeLike) -> str:
    return _numpy_dtype(dtype).name
