"""The compiler as a stage: which transformations there are, and to which programs they apply.

Kernels of the current API run as written, but for what is no instruction of theirs: the inside of an nl call,
and the engine of a copy that names none. Old kernels under `skip_middle_end_transformations` have what the
compiler's back end does, other old kernels have all. Numerics never see this stage: the timing model alone
reads the transformed instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from ...errors import unknown_name
from ...ir.program import Program
from . import broadcasts, copies, engines, loads, repeats, small_work, tiles, transfers
from .compilation import Compilation


class Part(Enum):
    """The part of the compiler that does a transformation, which tells to which programs it applies.

    Four compiled convolutions of students (NEFF, trn2, all under `skip_middle_end_transformations`) show what
    the back end does: they have no memset, a load of the bias in 222 iterations is there 8 times, ScalarE
    and VectorE share the copies out of PSUM. But 36 copies of adjacent transposes stay 36, and copies whose
    only reader could read PSUM stay.
    """

    ANY = auto()  # also of the current API
    BACK_END = auto()  # of the old API
    MIDDLE_END = auto()  # of the old API, unless the kernel skips it


class Transformation(NamedTuple):
    """One thing that the compiler does; its evidence is in the text of `apply`."""

    name: str
    changes: str  # what `apply` counts
    apply: Callable[[Compilation], int]
    part: Part = Part.MIDDLE_END


TRANSFORMATIONS = (
    Transformation(
        "tiles", "tiles of their own for values that overwrite others", tiles.rename_tiles, Part.BACK_END
    ),
    Transformation("zeros", "fills left out", tiles.drop_zeros, Part.BACK_END),
    Transformation("casts", "casts of transposes within PSUM left out", tiles.drop_casts, Part.ANY),
    Transformation(
        "loads", "loads left out, since SBUF still holds the data", loads.drop_loads, Part.BACK_END
    ),
    Transformation("transposed-loads", "loads of columns done by TensorE", loads.transpose_loads),
    Transformation("repeats", "instructions left out that repeat others", repeats.drop_repeats),
    Transformation("broadcasts", "broadcasts read in PSUM", broadcasts.read_broadcasts_in_psum, Part.ANY),
    Transformation("divisions", "reciprocals computed as divisions", engines.divide),
    Transformation("scalings", "scalings moved to ScalarE", engines.scale_on_scalar),
    Transformation("psum-reads", "copies left out, since their readers read PSUM", copies.read_in_psum),
    Transformation("merged-copies", "copies merged with others", copies.merge_copies),
    Transformation("merged-transfers", "transfers merged with others", transfers.merge_transfers),
    Transformation(
        "hardware-descriptors",
        "transfers whose descriptors hardware makes",
        transfers.use_hardware_descriptors,
    ),
    Transformation("small-work", "small instructions merged with others", small_work.merge_small_work),
    Transformation("spread-copies", "copies moved to ScalarE", copies.spread_copies, Part.BACK_END),
    Transformation("engines", "copies moved to an engine with less work", engines.share_copies, Part.ANY),
)


EVERYTHING = "all"  # instead of names: leave out all of them


def parts(program: Program) -> Collection[Part]:
    """Return the parts of the compiler that change a program."""
    if not program.transformed:
        return (Part.ANY,)
    return (Part.ANY, Part.BACK_END) if program.skips_middle_end else tuple(Part)


def compiled(core: Compilation, by: Collection[Part], without: Collection[str] = ()) -> dict[str, int]:
    """Apply what parts of the compiler do, except those named; return how much each changed, by name."""
    _check(without)
    done: dict[str, int] = {}
    for one in TRANSFORMATIONS:
        if one.part in by and not {one.name, EVERYTHING} & {*without}:
            count = one.apply(core)
            if count:
                done[one.name] = count
    return done


def described(done: Sequence[Mapping[str, int]]) -> list[tuple[str, str, int]]:
    """Return name, what was counted and how often, of each transformation that some core had."""
    total = {one: sum(counts.get(one.name, 0) for counts in done) for one in TRANSFORMATIONS}
    return [(one.name, one.changes, count) for one, count in total.items() if count]


def _check(names: Collection[str]) -> None:
    known = [*(one.name for one in TRANSFORMATIONS), EVERYTHING]
    for name in names:
        if name not in known:
            raise unknown_name(f"there is no transformation {name!r}", name, known, "there are")
