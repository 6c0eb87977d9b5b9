"""How kernels refuse: wrong arguments by kernel_assert, options that are not built by not_built."""

from __future__ import annotations

import enum
import sys
import warnings
from typing import Any, NoReturn

from nkilib.core.utils.types import Tensor


def kernel_assert(condition: bool, error_text: str) -> None:
    """Fail at trace time. The text names the argument, what it got and what is allowed."""
    assert condition, f"[NCC_INKI016] Kernel validation exception: {error_text}"


def assert_shape(tensor: Tensor, shape: tuple, name: str) -> None:
    """The tensor has exactly this shape."""
    got, wanted = tuple(tensor.shape), tuple(shape)
    kernel_assert(got == wanted, f"{name}: got shape {got}, expected {wanted}")


def refuse_without_effect(effective: bool, needs: str, arguments: tuple) -> None:
    """Refuse arguments, pairs (name, value), that this call would ignore, unless they are None or False."""
    for argument in arguments:
        unset = argument[1] is None or (isinstance(argument[1], bool) and not argument[1])
        kernel_assert(
            effective or unset, f"{argument[0]}: got a value without effect, allowed only with {needs}"
        )


class _EffectWarning:
    """Callable object instead of a function: the NKI compiler reads functions, and knows no warnings."""

    def __call__(self, effective: bool, needs: str, arguments: tuple) -> None:
        """Warn of what refuse_without_effect refuses, where published callers always pass the arguments."""
        for name, value in arguments:
            if not effective and value is not None:
                text = f"{_kernel_name()}: {name} has no effect, it has one only with {needs}"
                warnings.warn(text, stacklevel=_levels_above_caller())


warn_without_effect = _EffectWarning()


class _TensorCheck:
    """Callable object instead of a function: the NKI compiler reads functions, and knows no `hasattr`."""

    def __call__(self, required: tuple, optional: tuple = ()) -> None:
        """Refuse what is no tensor, by its name: pairs (name, value); optional ones may be None."""
        for name, value in (*required, *(pair for pair in optional if pair[1] is not None)):
            got = "None" if value is None else f"a {type(value).__name__}"
            kernel_assert(hasattr(value, "shape"), f"{name}: got {got}, expected a tensor")


assert_tensors = _TensorCheck()


class _MemberCheck:
    """Callable object instead of a function: the NKI compiler reads functions, and knows no enum.Enum."""

    def __call__(self, *arguments: tuple) -> None:
        """Refuse what is no member of an enumeration, by its name: triples (name, value, enumeration)."""
        for name, value, members in arguments:
            kernel_assert(
                isinstance(value, (int, enum.Enum)) and not isinstance(value, bool),
                f"{name}: got {value!r}, expected a member of {members.__name__}",
            )


assert_members = _MemberCheck()


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


def _levels_above_caller() -> int:
    """How far above the function that asks the first frame is that is neither the library's nor nki's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package(frame) in ("nki", "nkilib"):
        level, frame = level + 1, frame.f_back
    return level


def _package(frame: Any) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]
