"""A published figure of a kernel, and how ours is found."""

from dataclasses import replace
from typing import Any, NamedTuple

import nki
from nki.timing.compiler.stage import TRANSFORMATIONS, Part


class Case(NamedTuple):
    """A kernel and its published figures: (name, unit, value, how ours is read off a profile)."""

    name: str
    source: str
    use: str
    target: str
    kernel: Any
    arguments: tuple
    figures: tuple
    quick: bool = False
    long: bool = False  # minutes
    only: tuple = ()  # transformations of the compiler, for a figure of an old-API kernel
    family: str = "single instructions"

    def profile(self, uncertainty: bool = False):
        """Return the modelled run, with what the compiler is known to have done."""
        if not self.only:
            return nki.profile(self.kernel, target=self.target, uncertainty=uncertainty)(*self.arguments)
        with nki.options(target=self.target):
            program = self.kernel.trace(*self.arguments)
        others = tuple(
            one.name for one in TRANSFORMATIONS if one.name not in self.only and one.part is not Part.ANY
        )
        with nki.options(without=others):
            return replace(program, transformed=True).profile()


def spec(dtype, *shape):
    return nki.TensorSpec(shape, dtype)


def total_us(profile):
    return profile.total_us
