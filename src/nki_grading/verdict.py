"""Verdicts: what a grader says of a submission, as data and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nki.testing.close import sum_length, tolerance

if TYPE_CHECKING:
    from .task import Case, Task

FORMAT = "open-nki verdict 1"
PART = 1 << 22  # elements that are compared at once: results may fill a quarter of the memory


@dataclass
class Mismatch:
    """The worst element of a wrong result."""

    seed: int
    hidden: bool
    result: int  # its number, where a kernel returns several
    message: str
    index: list[int] = field(default_factory=list)
    expected: float | None = None
    got: float | None = None


@dataclass
class CaseVerdict:
    """One case: is it right, how long would it take, what is it worth."""

    name: str
    points: float
    earned: float = 0.0
    problem: str = ""  # why it is wrong, in one line; "" where it is right
    detail: str = ""  # the error, as its author sees it
    seeds: int = 0  # inputs that were tried
    mismatch: Mismatch | None = None
    findings: list[str] = field(default_factory=list)  # races, and more memory than there is
    us: float | None = None
    baseline_us: float | None = None
    limit_us: float | None = None  # for all points
    instructions: int = 0
    sbuf_bytes: int = 0
    psum_bytes: int = 0
    advice: list[dict[str, Any]] = field(default_factory=list)  # on the case with the longest Program

    @property
    def correct(self) -> bool:
        return not self.problem and not self.findings

    def give_points(self, case: Case) -> None:
        """Give the points that a right result of this modelled time earns."""
        if self.correct and self.us is not None:
            self.earned = case.points * case.share(self.us)
            if not self.earned:
                self.problem = f"too slow: {self.us:.1f} us, the limit is {case.limits_us[-1][0]:.1f} us"


@dataclass
class Verdict:
    """What a grader says of one submission."""

    task: str
    submission: str
    target: str
    problem: str = ""  # why nothing could be graded
    detail: str = ""
    release: str | None = None
    check: list[str] = field(default_factory=list)  # what AWS's front end would refuse
    cases: list[CaseVerdict] = field(default_factory=list)
    enforced: tuple[str, ...] = ()
    seconds: float = 0.0  # of grading
    printed: str = ""  # the end of what the submission printed

    @property
    def passed(self) -> bool:
        return not self.problem and not self.check and all(c.correct and not c.problem for c in self.cases)

    @property
    def earned(self) -> float:
        return sum(case.earned for case in self.cases)

    @property
    def points(self) -> float:
        return sum(case.points for case in self.cases)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data; `nki grade --json` prints this."""
        computed = {"format": FORMAT, "passed": self.passed, "earned": self.earned, "points": self.points}
        return {**computed, **asdict(self)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Verdict:
        """Return the verdict that `to_dict` described."""
        known = {name: data[name] for name in Verdict.__dataclass_fields__ if name in data}
        known["cases"] = [_case_from(case) for case in data["cases"]]
        return Verdict(**known)

    def summary(self) -> str:
        """Return the verdict as text within 100 columns."""
        state = "passed" if self.passed else "failed"
        lines = [f"{self.submission}: {state}, {self.earned:g} of {self.points:g} points for {self.task}"]
        lines += [f"  {text}" for text in (self.problem, *self.detail.splitlines()) if text]
        lines += [
            f"  check --for {self.release}: {line}" for text in self.check for line in text.splitlines()[:1]
        ]
        for case in self.cases:
            lines += _case_lines(case)
        advice = next((case.advice for case in self.cases if case.advice), [])
        lines += [f"  advice: {a['title']} (gains {a['gain_us']:.1f} us)"[:100] for a in advice]
        return "\n".join(lines)


def _case_from(data: dict[str, Any]) -> CaseVerdict:
    mismatch = data.get("mismatch")
    return CaseVerdict(**{**data, "mismatch": Mismatch(**mismatch) if mismatch else None})


def _case_lines(case: CaseVerdict) -> list[str]:
    time = "" if case.us is None else f"{case.us:10.1f} us"
    limit = "" if case.limit_us is None else f" (limit {case.limit_us:.1f})"
    mark = "ok   " if case.correct else "wrong"
    lines = [f"  {mark} {case.name:<32.32} {case.earned:5g}/{case.points:<5g}{time}{limit}"]
    lines += [f"        {text[:90]}" for text in (case.problem, *case.findings) if text]
    if case.mismatch is not None and case.mismatch.message:
        lines.append(f"        {case.mismatch.message}"[:100])
    lines += [f"        {text}"[:100] for text in case.detail.splitlines()[:6]]
    return lines


def compare(
    task: Task, case: Case, got: list[np.ndarray], expected: list[np.ndarray], inputs: list[np.ndarray]
) -> tuple[int, str, tuple[int, ...] | None]:
    """Return the number of the first wrong result, what is wrong with it, and its worst element."""
    if len(got) != len(expected):
        return 0, f"the kernel returns {len(got)} tensors, the reference {len(expected)}", None
    for number, (value, exact) in enumerate(zip(got, expected, strict=True)):
        if task.any_shape and value.size == exact.size:
            exact = exact.reshape(value.shape)
        if value.shape != exact.shape:
            return number, f"the shape is {list(value.shape)}, the reference has {list(exact.shape)}", None
        wanted = task.dtype or (inputs[0].dtype.name if inputs else value.dtype.name)
        if value.dtype.name != wanted:
            return number, f"the dtype is {value.dtype.name}, the task asks for {wanted}", None
        terms = task.terms or sum_length(value.shape, [a.shape for a in inputs])
        place = worst(value, exact, terms, task.rtol if case.rtol is None else case.rtol, task.atol)
        if place is not None:
            return number, "", place
    return 0, "", None


def worst(
    got: np.ndarray, expected: np.ndarray, terms: int, rtol: float | None, atol: float
) -> tuple[int, ...] | None:
    """Return the index of the element that is farthest beyond the tolerance, or None."""
    if got.size == 0:
        return None
    values, exact = got.reshape(-1), expected.reshape(-1)
    parts = range(0, got.size, PART)
    largest = max(_largest(exact[start : start + PART]) for start in parts)
    found = [
        _worst_of(values[start : start + PART], exact[start : start + PART], largest, terms, rtol, atol)
        for start in parts
    ]
    part = int(np.argmax([excess for excess, _ in found]))
    excess, place = found[part]
    index = np.unravel_index(part * PART + place, got.shape)
    return tuple(int(i) for i in index) if excess > 1 else None


def _largest(exact: np.ndarray) -> float:
    return float(np.abs(exact[np.isfinite(exact)]).max(initial=0))


def _worst_of(
    got: np.ndarray, expected: np.ndarray, largest: float, terms: int, rtol: float | None, atol: float
) -> tuple[float, int]:
    """Return how often the worst error is what is allowed, and where it is."""
    values, exact = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        equal = (values == exact) | (np.isnan(values) & np.isnan(exact))
        limit = np.maximum(_allowed(got.dtype, exact, largest, terms, rtol) + atol, 1e-300)
        excess = np.where(equal, 0.0, np.abs(values - exact) / limit)
    excess = np.where(np.isnan(excess), np.inf, excess)
    place = int(excess.argmax())
    return float(excess[place]), place


def _allowed(
    dtype: np.dtype, exact: np.ndarray, largest: float, terms: int, rtol: float | None
) -> np.ndarray:
    """Return the error that each element may have; without `rtol`, what rounding in a right kernel gives."""
    if rtol is not None:
        return rtol * np.abs(exact)
    if dtype.kind in "iub":
        return np.zeros_like(exact)
    allowed = tolerance(dtype, terms)
    return allowed.relative * np.abs(exact) + allowed.absolute * largest
