"""nki.profile: what a kernel would take on the device, without one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .errors import error, without_our_frames
from .execute.collector import fewer_collections
from .explain import explain_call
from .kernel import Kernel, Trace
from .launch import Diagnostic
from .program import Instruction
from .statistics import Statistics
from .timing import Timeline, schedule
from .view import View


@dataclass
class Profile:
    """A modelled run: the Timeline, the counts of the trace, and what was said on the way."""

    kernel: str
    timeline: Timeline
    statistics: Statistics
    diagnostics: list[Diagnostic] = field(default_factory=list)
    result: Any = None  # what the kernel returned, when it was also run

    @property
    def total_us(self) -> float:
        return self.timeline.total_us

    @cached_property
    def findings(self) -> list[Any]:
        """What holds the kernel back, most expensive first."""
        from .timing.advisor import advise

        return advise(self.timeline)

    @cached_property
    def _figures(self) -> dict[str, Any]:
        from .report.figures import figures

        return figures(self)

    def to_dict(self) -> dict[str, Any]:
        """The figures of the profile as plain data; `nki profile --json` prints this."""
        return dict(self._figures)

    def save(self, path: str | os.PathLike) -> None:
        """Write the figures and the name as JSON. The single instructions are not kept."""
        SavedProfile(self.kernel, self.to_dict()).save(path)

    @staticmethod
    def load(path: str | os.PathLike) -> SavedProfile:
        """What `save` wrote: figures to print, to compare and to read, without a Timeline."""
        return SavedProfile.load(path)

    def summary(self) -> str:
        """The profile as a text table."""
        from .report.text import summary

        return summary(self)

    def html(self) -> str:
        """A page of its own: timeline, source, memory, roofline, findings."""
        from .report.html import page

        return page(self)

    def perfetto(self) -> bytes:
        """A Perfetto trace, one track per engine and DMA queue."""
        from .report.perfetto import trace

        return trace(self)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from .report.html import embedded

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

    def summary(self) -> str:
        from .report.text import summary

        return summary(self)

    def __str__(self) -> str:
        return self.summary()

    def save(self, path: str | os.PathLike) -> None:
        content = {"format": FORMAT, "kernel": self.kernel, "figures": self.figures}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> SavedProfile:
        with open(path, encoding="utf-8") as file:
            try:
                content = json.load(file)
            except ValueError:
                content = None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise error(
                "profile-file",
                f"{os.fspath(path)} is not a saved profile",
                help="make one with Profile.save(path) or nki profile --save path",
            )
        return cls(content["kernel"], content["figures"])


def profile(
    kernel: Any, run: bool = False, stage: Callable[[str], None] = lambda what: None
) -> Callable[..., Profile]:
    """`nki.profile(kernel)(*args)`: arguments are arrays or TensorSpecs; `run=True` also computes.

    `stage` is told what is being done, for those who wait.
    """
    kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)

    def call(*args: Any, **kwargs: Any) -> Profile:
        try:
            stage(f"tracing {kernel.__name__}")
            trace = kernel.trace(*args, **kwargs)
            stage(f"scheduling {sum(map(len, trace.programs)):,} instructions")
            with fewer_collections():
                timeline = time(trace)
            result = kernel(*args, **kwargs) if run else None
        except Exception as problem:
            better = explain_call(problem) if isinstance(problem, TypeError) else None
            shown = better or problem
            raise shown.with_traceback(without_our_frames(problem.__traceback__)) from shown.__cause__
        return Profile(kernel.__name__, timeline, trace.statistics, trace.launch.diagnostics, result)

    return call


def time(trace: Trace) -> Timeline:
    """The schedule of a trace, with the edges of depends_on and with_schedule and the no_reorder blocks."""
    declared: list[Any] = [*trace.launch.dependencies, *_named_edges(trace)]
    return schedule(trace.machine, trace.programs, declared, [core.ordered for core in trace.launch.cores])


def _named_edges(trace: Trace) -> list[tuple[Instruction, Instruction]]:
    """with_schedule: every instance of `later` after every instance of `earlier`, on each core."""
    edges = []
    for program in trace.programs:
        named = _by_name(program) if trace.schedule else {}
        for later, earlier in trace.schedule:
            for name in (later, *earlier):
                if name not in named:
                    raise error(
                        "schedule",
                        f"with_schedule: no instruction or tensor is named {name!r}",
                        notes=[f"named here: {', '.join(sorted(named)) or 'none'}"],
                    )
            edges += [(a, b) for a in named[later] for n in earlier for b in named[n]]
    return edges


def _by_name(program: Iterable[Instruction]) -> dict[str, list[Instruction]]:
    """The instructions that a name means: those called so, and those that write a tensor called so."""
    named: dict[str, list[Instruction]] = {}
    for instruction in program:
        operands = instruction.operands()
        written = (operands[i] for i in instruction.write_at if isinstance(operands[i], View))
        for name in {instruction.name, *(view.name for view in written)} - {None, ""}:
            named.setdefault(str(name), []).append(instruction)
    return named
