"""Budgets: the modelled costs of the kernels that a test calls, against numbers and earlier snapshots."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import error
from ..files import Form, read_json
from ..kernel.jit import profile
from ..kernel.kernel import Kernel
from ..kernel.listeners import distinct_calls

FORMAT = "open-nki costs 1"


Line = dict[str, Any]  # place, source, us


@dataclass
class Cost:
    """What one call costs: modelled microseconds, the most bytes of SBUF and PSUM, and the lines' parts."""

    call: str  # kernel(float32[128, 512], ...) on trn2
    us: float
    sbuf: int
    psum: int
    lines: list[Line]  # of the critical path

    def to_dict(self) -> dict[str, Any]:
        lines = [{"source": line["source"], "us": line["us"]} for line in self.lines]
        return {"us": self.us, "sbuf": self.sbuf, "psum": self.psum, "lines": lines}


@contextmanager
def measured() -> Iterator[list[Cost]]:
    """Yield the costs of all kernels that are called inside, each distinct call once; filled at the end.

    They are modelled from the shapes of the arguments, on the platform of the call.
    """
    costs: list[Cost] = []
    with distinct_calls() as calls:
        yield costs
    for text, call in calls.items():
        costs.append(_cost(text, *call))


def _cost(call: str, kernel: Kernel, args: tuple, kwargs: dict) -> Cost:
    figures = profile(kernel)(*args, **kwargs).to_dict()
    lines = [
        {"place": line["line"], "source": line["source"], "us": line["critical_us"]}
        for line in figures["lines"]
        if line["critical_us"] > 0
    ]
    return Cost(call, figures["total_us"], figures["sbuf_peak_bytes"], figures["psum_peak_bytes"], lines)


# ---- budgets -------------------------------------------------------------------------------------


Bytes = int | str | None  # 4096 or "12 MiB"


def over_budget(
    costs: Sequence[Cost], us: float | None = None, sbuf: Bytes = None, psum: Bytes = None
) -> list[str]:
    """Return a message for each call that costs more than its budget."""
    wrong = []
    if not costs:
        wrong.append("the test calls no kernel, so its budget applies to nothing")
    for cost in costs:
        if us is not None and cost.us > us:
            wrong.append(f"{cost.call} takes {cost.us:.2f} us, its budget is {us:g} us\n{_slowest(cost)}")
        for name, used, allowed in (("SBUF", cost.sbuf, sbuf), ("PSUM", cost.psum, psum)):
            if allowed is not None and used > as_bytes(allowed):
                wrong.append(
                    f"{cost.call} needs {used:,} bytes of {name}, its budget is {as_bytes(allowed):,}"
                )
    return wrong


def _slowest(cost: Cost) -> str:
    worst = sorted(cost.lines, key=lambda line: -line["us"])[:3]
    return "\n".join(f"  {line['us']:9.2f} us  {line['place']}: {line['source']}" for line in worst)


UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "kb": 1000, "mb": 1_000_000}


def as_bytes(amount: int | str) -> int:
    """Return a number of bytes, from a number or a text like "12 MiB"."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([a-zA-Z]*)\s*", str(amount))
    if match is None or match.group(2).lower() not in UNITS:
        raise error("argument", f"{amount!r} is no number of bytes", help='write 4096 or "12 MiB"')
    return int(float(match.group(1)) * UNITS[match.group(2).lower()])


def as_part(text: str | float) -> float:
    """Return 0.03 for "3%"."""
    match = re.fullmatch(r"\s*([\d.]+)\s*%\s*", str(text))
    if match is not None:
        return float(match.group(1)) / 100
    try:
        return float(text)
    except ValueError:
        raise error("argument", f"{text!r} is no part of a whole", help='write "3%" or 0.03') from None


# ---- snapshots -----------------------------------------------------------------------------------


class Snapshots:
    """The costs of the tests of one file, stored beside it as JSON."""

    def __init__(self, test_file: str | os.PathLike):
        file = Path(test_file)
        self.path = file.parent / "__nki__" / f"{file.stem}.json"

    def read(self) -> dict[str, dict[str, Any]]:
        if not self.path.exists():
            return {}
        form: Form = {"format": FORMAT, "tests": dict}
        help = "write it again with pytest --nki-update"
        tests = read_json(self.path, form, kind="costs-file", what="a file of costs", help=help)["tests"]
        if not all(_is_snapshot(calls) for calls in tests.values()):
            raise error("costs-file", f"{self.path} has costs with parts missing or changed", help=help)
        return tests

    def write(self, test: str, costs: Sequence[Cost]) -> None:
        tests = self.read()
        tests[test] = {cost.call: cost.to_dict() for cost in costs}
        self.path.parent.mkdir(exist_ok=True)
        content = {"format": FORMAT, "tests": dict(sorted(tests.items()))}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)

    def slower(self, test: str, costs: Sequence[Cost], allowed: float) -> list[str]:
        """Return a message for each call that costs more than its snapshot, by more than `allowed`."""
        snapshot = self.read().get(test)
        if snapshot is None:
            return [f"there is no snapshot of {test} in {self.path}\n  help: pytest --nki-update writes it"]
        wrong = []
        for cost in costs:
            before = snapshot.get(cost.call)
            if before is None:
                wrong.append(f"there is no snapshot of {cost.call}\n  help: pytest --nki-update writes it")
            elif cost.us > before["us"] * (1 + allowed):
                more = 100 * (cost.us / max(before["us"], 1e-9) - 1)
                wrong.append(
                    f"{cost.call} takes {cost.us:.2f} us, it took {before['us']:.2f} us: {more:.1f}% slower\n"
                    + _grown(before["lines"], cost.lines)
                )
        return wrong


def _is_snapshot(calls: object) -> bool:
    """Whether this is what `write` stores of a test: the costs of each call, by its label."""
    return isinstance(calls, dict) and all(
        isinstance(cost, dict)
        and _is_time(cost.get("us"))
        and isinstance(lines := cost.get("lines"), list)
        and all(isinstance(x, dict) and _is_time(x.get("us")) and "source" in x for x in lines)
        for cost in calls.values()
    )


def _is_time(us: object) -> bool:
    return isinstance(us, (int, float)) and us >= 0


def _grown(before: Sequence[Line], now: Sequence[Line]) -> str:
    """List the lines whose part of the critical path has grown, most first; a line is matched by its text."""
    old: dict[str, float] = {}
    for line in before:
        old[line["source"]] = old.get(line["source"], 0.0) + line["us"]
    new: dict[str, float] = {}
    places: dict[str, str] = {}
    for line in now:
        new[line["source"]] = new.get(line["source"], 0.0) + line["us"]
        places.setdefault(line["source"], line["place"])
    grown = sorted(((new[s] - old.get(s, 0.0), s) for s in new), reverse=True)
    shown = [
        f"  {old.get(s, 0.0):9.2f} -> {new[s]:.2f} us  {places[s]}: {s}"
        for more, s in grown[:5]
        if more > 0.005
    ]
    return "\n".join(shown)
