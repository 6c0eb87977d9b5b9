"""first_difference: where a kernel first departs from a reference, and which lines computed it."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..errors import Site, error
from ..ir.boxes import box, space_of
from ..ir.context import current
from ..ir.dependences import RAW, AccessHistory, Waits
from ..ir.effects import effects
from ..ir.instruction import Instruction
from ..ir.tree import leaves
from ..ir.view import View
from ..ir.writers import Writers
from ..kernel.attempts import run_eagerly
from ..kernel.jit import as_kernel
from ..kernel.kernel import Kernel
from ..kernel.run import Run
from ..launch.observers import observe
from ..machine.dtypes import DTypeLike
from .close import arrays_of, as_float64, as_numpy, sum_length, wrong_elements

MOST_LINES = 12  # of those that computed a tile


@dataclass(frozen=True)
class WriteStep:
    """One instruction of a run, and what it wrote."""

    number: int
    instruction: str
    place: str  # file:line
    source: str
    shape: tuple[int, ...]
    low: float  # of the finite values it wrote
    high: float
    nans: int


@dataclass(frozen=True)
class Difference:
    """The first tile of a result that differs, the step that wrote it, and the lines that computed it."""

    kernel: str
    result: int  # its number among those the kernel returns
    wrong: int  # elements of the result
    elements: int
    tile: tuple[tuple[int, int], ...]  # the range of each dimension
    wrong_in_tile: int
    index: tuple[int, ...]  # of the worst element of the tile
    got: float
    expected: float
    steps: int  # of the whole run
    writer: WriteStep | None  # None: nothing has written the tile
    lines: list[WriteStep] = field(default_factory=list)  # each source line once, the last first

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        ranges = ", ".join(f"{low}:{high}" for low, high in self.tile)
        lines = [
            f"{self.kernel}: result {self.result} differs from the reference in {self.wrong:,} of "
            f"{self.elements:,} elements",
            f"  the first wrong tile is [{ranges}], with {self.wrong_in_tile:,} wrong elements; the worst is",
            f"  {list(self.index)}: {self.got:.6g} instead of {self.expected:.6g}",
        ]
        if self.writer is None:
            return "\n".join([*lines, "  help: nothing has written this tile; a loop or a store is missing"])
        lines += [f"  --> {self.writer.place} wrote it, in step {self.writer.number:,} of {self.steps:,}"]
        lines += [f"   |     {self.writer.source}", "  computed by, the last first:"]
        lines += [
            f"  {step.place:>20}  {_range(step):28} {step.source[:44]}" for step in (self.writer, *self.lines)
        ]
        first = next((step for step in reversed(self.lines) if step.nans), None)
        if first is not None:
            lines += [f"  help: {first.place} writes the first NaN ({first.nans:,} of them)"]
        return "\n".join(lines)


def _range(step: WriteStep) -> str:
    return f"{step.low:.4g} to {step.high:.4g}" + (f", {step.nans:,} NaN" if step.nans else "")


def first_difference(
    kernel: object,
    reference: object,
    inputs: Sequence[object],
    *,
    terms: int | None = None,
    through: DTypeLike | None = None,
    **options: object,
) -> Difference | None:
    """Run a kernel step by step; return where its results first depart from a reference, None if nowhere.

    `reference`, `terms` and `through` mean what they do for `assert_close`. The first wrong tile is the one
    that was written first of those that have a wrong element at the end.
    """
    made = as_kernel(kernel)
    recorder = _Recorder()
    with observe(recorder):
        run, views = run_for_views(made, tuple(inputs), options)
    for number, pair in enumerate(compared(made.__name__, run, reference, inputs, terms, through)):
        if pair.wrong.any():
            return _difference(made.__name__, number, pair, recorder, views[number])
    return None


def run_for_views(kernel: Kernel, args: tuple, kwargs: dict[str, Any]) -> tuple[Run, list[View]]:
    """Run a kernel instruction by instruction; return the run, and the views that the kernel returned."""
    returned: list[Any] = []

    @functools.wraps(kernel.func)
    def noted(*args: Any, **kwargs: Any) -> Any:
        result = kernel.func(*args, **kwargs)
        returned.append(result)
        return result

    run = run_eagerly(kernel._with(func=noted).prepare(args, kwargs))
    return run, leaves(returned[-1], View)  # of the attempt that finished


class ComparedResult(NamedTuple):
    """A result beside its reference: its elements that are wrong, and the error of each that is allowed."""

    got: np.ndarray
    expected: np.ndarray
    wrong: np.ndarray
    allowed: np.ndarray


def compared(
    name: str,
    run: Run,
    reference: object,
    inputs: Sequence[object],
    terms: int | None = None,
    through: DTypeLike | None = None,
) -> Iterator[ComparedResult]:
    """Yield the results of a run, each compared with a reference."""
    if callable(reference):
        reference = reference(*map(as_float64, inputs))
    results, wanted = arrays_of(run.result), [as_numpy(one) for one in arrays_of(reference)]
    if len(results) != len(wanted):
        raise error("argument", f"{len(results)} results, the reference has {len(wanted)}")
    shapes = [as_numpy(one).shape for one in arrays_of(list(inputs))]
    for number, (got, expected) in enumerate(zip(map(as_numpy, results), wanted, strict=True)):
        if got.shape != expected.shape:
            message = f"result {number} has shape {got.shape}, the reference {expected.shape}"
            raise error("argument", f"{name}: {message}")
        wrong, allowed, largest = wrong_elements(
            got, expected, terms or sum_length(got.shape, shapes), through
        )
        limit = allowed.relative * np.abs(expected.astype(np.float64)) + allowed.absolute * largest
        yield ComparedResult(got, expected, wrong, limit)


def _difference(
    name: str,
    number: int,
    pair: ComparedResult,
    recorder: _Recorder,
    view: View,
) -> Difference:
    got, expected, wrong, _ = pair
    writers = recorder.writers.of(view).reshape(wrong.shape)
    first = int(writers[wrong].min())
    tile = writers == first
    inside = wrong & tile
    off = np.where(inside, np.abs(got.astype(np.float64) - expected.astype(np.float64)), -1.0)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape)
    places = np.argwhere(tile)
    ranges = zip(places.min(0).tolist(), (places.max(0) + 1).tolist(), strict=True)
    return Difference(
        name,
        number,
        int(wrong.sum()),
        wrong.size,
        tuple(ranges),
        int(inside.sum()),
        tuple(int(i) for i in worst),
        float(got[worst]),
        float(expected[worst]),
        len(recorder.steps),
        recorder.steps[first - 1] if first else None,
        list(recorder.lines_before(first)) if first else [],
    )


class _Recorder:
    """What each instruction read and wrote, in the order in which they ran; steps count from 1."""

    def __init__(self) -> None:
        self.steps: list[WriteStep] = []
        self.sources: list[list[int]] = []  # of each step, the earlier ones whose values it read
        self.writers = Writers()
        self.histories: dict[Hashable, AccessHistory] = {}

    def __call__(self, instruction: Instruction) -> None:
        done = effects(instruction)
        number = len(self.steps) + 1
        written = [view.bare() for view in (*done.writes, *done.adds_to)]
        self.steps.append(_step(number, instruction, [current().values(view) for view in written]))
        waits: Waits = {}
        for view in (*done.reads, *done.adds_to):
            self._history(view).read(number, box(view.bare()), waits)
        self.sources.append([other for other, why in waits.items() if why == RAW])
        for view in written:
            self._history(view).write(number, box(view), {})
            self.writers.note(number, view)

    def _history(self, view: View) -> AccessHistory:
        return self.histories.setdefault(space_of(view.storage), AccessHistory())

    def lines_before(self, step: int) -> Iterator[WriteStep]:
        """Yield the steps that a step depends on, each source line once, the last first."""
        seen, todo, places = {step}, [step], {self.steps[step - 1].place}
        while todo and len(places) <= MOST_LINES:
            found = max(todo)
            todo.remove(found)
            for number in self.sources[found - 1]:
                if number not in seen:
                    seen.add(number)
                    todo.append(number)
            one = self.steps[found - 1]
            if one.place not in places:
                places.add(one.place)
                yield one


def _step(number: int, instruction: Instruction, written: list[np.ndarray]) -> WriteStep:
    site: Site | None = instruction.site
    values = np.concatenate([np.ravel(one).astype(np.float64) for one in written]) if written else np.zeros(0)
    finite = values[np.isfinite(values)]
    return WriteStep(
        number,
        instruction.public or type(instruction).__name__,
        f"{site.filename.rpartition('/')[2]}:{site.lineno}" if site else "",
        site.text.strip() if site else "",
        written[0].shape if written else (),
        float(finite.min()) if finite.size else np.nan,
        float(finite.max()) if finite.size else np.nan,
        int(np.isnan(values).sum()),
    )


__all__ = ["Difference", "WriteStep", "first_difference"]
