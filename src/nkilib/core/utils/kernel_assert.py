"""How kernels refuse: wrong arguments by kernel_assert, options that are not built by not_built."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from nkilib.core.utils.types import Tensor


def kernel_assert(condition: bool, error_text: str) -> None:
    """Fail at trace time. The text names the argument, what it got and what is allowed."""
    assert condition, f"[NCC_INKI016] Kernel validation exception: {error_text}"


def assert_shape(tensor: Tensor, shape: tuple, name: str) -> None:
    """The tensor has exactly this shape."""
    got, wanted = tuple(tensor.shape), tuple(shape)
    kernel_assert(got == wanted, f"{name}: got shape {got}, expected {wanted}")


class _ValueCheck:
    """Callable object instead of a function: the NKI compiler reads functions, and knows no `raise`."""

    def __call__(self, condition: object, error_text: str) -> None:
        """kernel_assert for what is documented to be a ValueError."""
        if not condition:
            raise ValueError(f"[NCC_INKI016] Kernel validation exception: {error_text}")


value_assert = _ValueCheck()


class NotBuilt(NotImplementedError):
    """A documented option that this library does not have yet."""

    kind = "not-implemented-yet"


class _Refusal:
    """Callable object instead of a function: the NKI compiler reads functions, and knows no `raise`."""

    def __call__(self, option: str, why: str) -> NoReturn:
        """Raise for a documented option that the kernel lacks, e.g. not_built("layout=MX", "needs ...")."""
        raise NotBuilt(f"not-implemented-yet: {_kernel_name()} option {option}: {why}")


not_built = _Refusal()


def _kernel_name() -> str:
    """The kernel below which this is called: the library's outermost function before nki's own frames."""
    frame: Any = sys._getframe(2)  # a frame, None past the outermost
    name = frame.f_code.co_name
    while frame is not None and _package(frame) != "nki":
        if _package(frame) == "nkilib":
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def _package(frame: Any) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]
