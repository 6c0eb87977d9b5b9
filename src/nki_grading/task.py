"""Tasks: a reference, the inputs of each case, what a submission must define, and what it is worth."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nki import TensorSpec
from nki.check import releases
from nki.machine import dtypes

from .sandbox import Limits

SAMPLES: dict[str, Callable[..., np.ndarray]] = {
    "normal": lambda rng, shape, a, b: rng.standard_normal(shape) * b + a,
    "uniform": lambda rng, shape, a, b: rng.random(shape) * (b - a) + a,
    "integers": lambda rng, shape, a, b: rng.integers(int(a), int(b), shape),
}


class TaskError(ValueError):
    """A task is wrong: the teacher's mistake, not the submission's."""


@dataclass(frozen=True)
class Samples:
    """An input tensor: its shape, its dtype and how its values are sampled."""

    shape: tuple[int, ...]
    dtype: str
    distribution: str
    a: float  # mean, or the lower bound
    b: float  # standard deviation, or the upper bound (exclusive)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Return random values; equal generators give equal values."""
        values = SAMPLES[self.distribution](rng, self.shape, self.a, self.b)
        return np.asarray(values).astype(dtypes.resolve(self.dtype).storage)


def normal(shape: Sequence[int], dtype: str = "float32", mean: float = 0.0, std: float = 1.0) -> Samples:
    """Return an input of normally distributed values."""
    return Samples(tuple(shape), dtype, "normal", mean, std)


def uniform(shape: Sequence[int], dtype: str = "float32", low: float = 0.0, high: float = 1.0) -> Samples:
    """Return an input of values between `low` and `high`."""
    return Samples(tuple(shape), dtype, "uniform", low, high)


def integers(shape: Sequence[int], dtype: str = "int32", low: int = 0, high: int = 128) -> Samples:
    """Return an input of integers from `low` up to, and without, `high`."""
    return Samples(tuple(shape), dtype, "integers", low, high)


@dataclass(frozen=True)
class Case:
    """One call of the kernel: its arguments by name, what it is worth, and how fast it must be."""

    name: str
    arguments: Mapping[str, Any]  # `Samples` for tensors, plain values for the rest; passed in this order
    points: float = 1.0
    limits_us: Sequence[tuple[float, float]] = ()  # (modelled time, share of the points), fastest first
    baseline_us: float | None = None  # a time to compare with
    lnc: int | None = None  # cores
    rtol: float | None = None  # in place of the task's

    @property
    def tensors(self) -> dict[str, Samples]:
        return {name: value for name, value in self.arguments.items() if isinstance(value, Samples)}

    def sample(self, seed: int) -> dict[str, Any]:
        """Return the arguments with sampled tensors."""
        rng = np.random.default_rng(seed)
        return {
            name: value.sample(rng) if isinstance(value, Samples) else value
            for name, value in self.arguments.items()
        }

    def share(self, us: float) -> float:
        """Return the share of the points that a modelled time earns."""
        if not self.limits_us:
            return 1.0
        return next((share for limit, share in self.limits_us if us <= limit), 0.0)


@dataclass(frozen=True)
class Task:
    """What is asked, and how it is graded."""

    name: str
    entry: str  # the kernel that a submission defines
    reference: Callable[..., Any]  # of the same arguments, as NumPy arrays
    cases: Sequence[Case]
    text: str = ""  # what the author of a submission reads
    rtol: float | None = None  # None: what the dtype of the result and the length of its sums allow
    atol: float = 0.0
    terms: int | None = None  # the length of the sums, where shapes do not show it
    dtype: str | None = None  # of every result; None: that of the first tensor
    any_shape: bool = False  # a result may have any shape of as many elements
    target: str = "trn2"
    release: str | None = None  # of AWS, for `nki check --for`: aws-0.6
    visible_seeds: Sequence[int] = (0,)
    hidden_seeds: int = 1  # how many more seeds are chosen when grading
    limits: Limits = field(default_factory=Limits)
    folder: Path | None = None  # where the task is: submissions cannot read it

    def __post_init__(self) -> None:
        if not self.cases:
            raise TaskError(f"task {self.name}: there is no case")
        if not self.entry.isidentifier():
            raise TaskError(f"task {self.name}: entry must be the name of a kernel, got {self.entry!r}")
        if self.release is not None and self.release not in releases.NAMES:
            raise TaskError(f"task {self.name}: release is none of {', '.join(releases.NAMES)}")
        names = [case.name for case in self.cases]
        if len(set(names)) != len(names):
            raise TaskError(f"task {self.name}: two cases have the same name")

    @property
    def points(self) -> float:
        return sum(case.points for case in self.cases)

    def to_dict(self) -> dict[str, Any]:
        """Return what the author of a submission may know, as plain data: no reference, no inputs."""
        names = ("name", "entry", "text", "target", "release", "dtype", "points")
        cases = [
            {
                "name": case.name,
                "arguments": {name: _described(value) for name, value in case.arguments.items()},
                "points": case.points,
                "limits_us": [list(limit) for limit in case.limits_us],
                "lnc": case.lnc,
            }
            for case in self.cases
        ]
        return {**{name: getattr(self, name) for name in names}, "cases": cases}

    def describe(self) -> str:
        """Return what the author of a submission reads, as text."""
        lines = [f"{self.name}: the kernel {self.entry} on {self.target}, {self.points:g} points", self.text]
        for case in self.to_dict()["cases"]:
            call = ", ".join(f"{name}={value}" for name, value in case["arguments"].items())
            limits = ", ".join(f"{share:.0%} up to {us:g} us" for us, share in case["limits_us"])
            lines.append(f"  {case['name']}: {call}: {case['points']:g} points" + (limits and f", {limits}"))
        return "\n".join(lines)


def _described(value: Any) -> Any:
    """Return an argument as `nki profile --arg` takes it."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]" if isinstance(value, Samples) else value


def load_task(place: str | Path) -> Task:
    """Return the `TASK` of a file, of `task.py` in a folder, or one of ours: `cs149-conv2d`, `puzzle-4`."""
    path = Path(place)
    file = path / "task.py" if path.is_dir() else path
    if file.suffix == ".py" and file.exists():
        found = getattr(_module(file), "TASK", None)
        if not isinstance(found, Task):
            raise TaskError(f"{file} has no TASK = nki.grading.Task(...)")
        return _located(found, file.resolve().parent)
    ours = ready()
    found = ours.get(str(place).replace("_", "-"))
    if found is None:
        raise TaskError(
            f"there is no task {place}; a file, a folder with task.py, or one of {', '.join(ours)}"
        )
    return found


def ready() -> dict[str, Task]:
    """Return the tasks that come with Open NKI: the `TASKS` of the modules in `tasks`."""
    folder = Path(__file__).parent / "tasks"
    names = sorted(file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))
    modules = [importlib.import_module(f"nki_grading.tasks.{name}") for name in names]
    return {task.name: _located(task, folder) for module in modules for task in module.TASKS}


def _located(task: Task, folder: Path) -> Task:
    return task if task.folder is not None else replace(task, folder=folder)


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"nki_task_{file.parent.name}_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
