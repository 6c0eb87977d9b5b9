"""What a kernel would take on the device, without one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..backends.reference.collector import fewer_collections, no_collections
from ..errors import error
from ..files import read_json
from ..ir.caches import cached_property
from ..ir.program import Diagnostic, Loop, Program
from ..ir.statistics import Statistics
from ..ir.tree import leaves
from ..launch.loop_counters import record_iterations
from ..launch.world import Described, using
from ..options import options
from ..progress import Progress
from ..timing import Timeline, schedule
from ..timing.links import Communication, communication
from ..timing.schedule import schedule_ranks
from ..timing.uncertainty import Uncertainty
from ..timing.uncertainty import uncertainty as interval
from ..tracebacks import hides_our_frames
from .arrays import TensorSpec
from .explain import explains_calls
from .run import CalledKernel


@dataclass
class Profile:
    """A modelled run: the Timeline, the counts of the trace, and its diagnostics."""

    kernel: str
    timeline: Timeline
    statistics: Statistics
    diagnostics: list[Diagnostic] = field(default_factory=list)
    assumed_loops: Sequence[Loop] = ()  # dynamic loops whose trip count is unknown: assumed to run once
    result: Any = None  # what the kernel returned, when it was also run
    uncertainty: Uncertainty | None = None  # the time as an interval, when it was asked for

    @property
    def total_us(self) -> float:
        return self.timeline.total_us

    @cached_property
    def findings(self) -> list[Any]:
        """What holds the kernel back, most expensive first."""
        from ..timing.advisor import advise

        with no_collections():
            return advise(self.timeline)

    @cached_property
    def _figures(self) -> dict[str, Any]:
        from ..report.figures import figures

        return figures(self)

    def to_dict(self) -> dict[str, Any]:
        """The figures of the profile as plain data; `nki profile --json` prints this."""
        return dict(self._figures)

    def save(self, path: str | os.PathLike) -> None:
        """Write `x.html`, the page; `x.pftrace`, the trace for Perfetto; any other name, the figures as JSON.

        `load` reads the last kind, which has no single instructions.
        """
        kind = os.path.splitext(os.fspath(path))[1]
        if kind == ".html":
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.html())
        elif kind == ".pftrace":
            with open(path, "wb") as trace:
                trace.write(self.perfetto())
        else:
            SavedProfile(self.kernel, self.to_dict()).save(path)

    @staticmethod
    def load(path: str | os.PathLike) -> SavedProfile:
        """What `save` wrote: figures to print, to compare and to read, without a Timeline."""
        return SavedProfile.load(path)

    def summary(self, assumptions: bool = False) -> str:
        """The profile as text; `assumptions` lists the constants that no source publishes."""
        from ..report.text import summary

        return summary(self, assumptions)

    def html(self) -> str:
        """A page of its own: timeline, source, memory, roofline, findings."""
        from ..report.html import page

        return page(self)

    def perfetto(self) -> bytes:
        """A Perfetto trace, one track per engine and DMA queue."""
        from ..report.perfetto import trace

        return trace(self)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from ..report.html import embedded

        return embedded(self)


FORMAT = "open-nki profile 1"


@dataclass
class SavedProfile:
    """The figures of an earlier profile: a JSON object with `format`, `kernel` and `figures`."""

    kernel: str
    figures: dict[str, Any]

    @property
    def total_us(self) -> float:
        return self.figures["total_us"]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.figures)

    def summary(self, assumptions: bool = False) -> str:
        from ..report.text import summary

        return summary(self, assumptions)

    def __str__(self) -> str:
        return self.summary()

    def save(self, path: str | os.PathLike) -> None:
        content = {"format": FORMAT, "kernel": self.kernel, "figures": self.figures}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> SavedProfile:
        content = read_json(
            path,
            {"format": FORMAT, "kernel": str, "figures": dict},
            kind="profile-file",
            what="a saved profile",
            help="write one with nki profile --save path, or name a kernel as script.py:kernel",
        )
        saved = cls(content["kernel"], content["figures"])
        if not _is_whole(saved):
            raise error(
                "profile-file",
                f"{os.fspath(path)} is a saved profile with parts missing or changed",
                help="save it again: it was edited or cut off",
            )
        return saved


@dataclass
class WorldProfile:
    """The modelled run of a world: a Profile for each rank, on one clock, joined where they exchange data.

    Ranks that begin together do the same at the same time, so that they share one Profile.
    """

    kernel: str
    ranks: list[Profile]
    starts_us: Sequence[float] | None = None

    @property
    def total_us(self) -> float:
        """Until the last rank has ended."""
        return max(profile.total_us for profile in self.ranks)

    @cached_property
    def communication(self) -> list[Communication]:
        """What each rank spent on its links, and how much of that nothing else hid."""
        known = {id(p): communication(p.timeline) for p in self.ranks}
        return [known[id(profile)] for profile in self.ranks]

    @property
    def findings(self) -> list[Any]:
        """What holds the slowest rank back."""
        return max(self.ranks, key=lambda profile: profile.total_us).findings

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        from ..report.world import figures

        return figures(self)

    def summary(self) -> str:
        """A table of the ranks."""
        from ..report.world import summary

        return summary(self)

    def html(self) -> str:
        """A page of its own: every rank's timeline, one after the other."""
        from ..report.world import page

        return page(self)

    def __str__(self) -> str:
        return self.summary()


def _is_whole(saved: SavedProfile) -> bool:
    """True when everything that reports and comparisons show is there."""
    from ..report.text import plain, side_by_side

    try:
        saved.summary()
        plain(side_by_side(saved.figures, saved.figures))
        return saved.total_us > 0
    except Exception:  # the reports are the definition of what a profile must have
        return False


@explains_calls
def profile_call(
    kernel: CalledKernel,
    args: tuple,
    kwargs: dict,
    run: bool = False,
    stage: Callable[[str], None] = lambda what: None,
    target: str | None = None,
    uncertain: bool = False,
) -> Profile:
    """Return the modelled run of a call. `stage` is called with what is being done, to show progress.

    Arguments are arrays or TensorSpecs; given arrays, dynamic loops are run to count their trips.
    """
    with options(target=target):
        return _profiled(kernel, args, kwargs, run, uncertain, stage)


def _profiled(
    kernel: CalledKernel, args: tuple, kwargs: dict, run: bool, uncertain: bool, stage: Callable[[str], None]
) -> Profile:
    done = None
    with no_collections():
        stage(f"tracing {kernel.__name__}")
        with record_iterations() as recorder:
            program = kernel.trace(*args, **kwargs)
        counts = program.assumed_loops and not leaves([args, kwargs], TensorSpec)
        if run or counts:
            stage(f"running {kernel.__name__}")
            done = kernel.run(*args, **kwargs)
            program = replace(program, trips=done.trips)
        found = profile_program(program, stage)
    found.timeline.iterations = recorder.table
    found.result = done.result if run and done is not None else None
    if uncertain:
        with fewer_collections():
            found.uncertainty = interval(program, found.timeline, stage)
    return found


@hides_our_frames
@explains_calls
def profile_world(
    kernel: CalledKernel,
    ranks: int,
    starts_us: Sequence[float] | None,
    stage: Callable[[str], None],
    target: str | None,
    *args: Any,
    **kwargs: Any,
) -> WorldProfile:
    """The modelled run of a world, traced once: its ranks run one program."""
    starts = None if starts_us is None else [float(start) for start in starts_us]
    if starts is not None and len(starts) != ranks:
        raise error("argument", f"profile: {len(starts)} starts for {ranks} ranks")
    stage(f"tracing {kernel.__name__}")
    with using(Described(0, ranks)), options(target=target):
        program = kernel.trace(*args, **kwargs)
    stage(f"scheduling {len(program):,} instructions")
    if starts is None:
        return WorldProfile(kernel.__name__, [profile_program(program)] * ranks)
    found = schedule_ranks(program, [1e3 * start for start in starts])
    profiles = [
        Profile(program.name, timeline, program.statistics(), list(program.diagnostics)) for timeline in found
    ]
    return WorldProfile(kernel.__name__, profiles, starts)


def profile_program(program: Program, stage: Callable[[str], None] = lambda what: None) -> Profile:
    """The modelled run of a program on its machine."""
    progress = Progress(f"scheduling {len(program):,} instructions")
    stage(progress)
    with no_collections():
        timeline, counts = schedule(program, progress), program.statistics()
    diagnostics = [*program.diagnostics, *map(_assumed, program.assumed_loops)]
    return Profile(program.name, timeline, counts, diagnostics, program.assumed_loops)


def _assumed(loop: Loop) -> Diagnostic:
    """Return the diagnostic of a loop whose trip count is unknown."""
    return Diagnostic(
        "loop-trips",
        f"{loop.function} is priced as if it ran once: its trip count depends on data",
        [],
        "give arrays instead of shapes, and it counts as often as it runs with them",
        loop.site,
    )
