"""Commands of `nki` on kernels that an agent wrote: each runs in a child of the grader's sandbox."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from nki.cli.script import UsageError
from nki.errors import suggestion
from nki.files import parse_json, printable, read_bytes
from nki_grading import Limits, Task, TaskError, grade, load_task
from nki_grading.grade import LARGEST_SOURCE, WHY
from nki_grading.roles import messages
from nki_grading.sandbox import Answer, Child
from nki_grading.task import ready

NAME = "kernel.py"  # of a kernel that came as text
LARGEST_ANSWER = 8 << 20  # bytes of JSON
FOLDER = re.compile(r"/\S*/nki-grade-\w+/")  # of a child: no agent knows it
Value = str | int | float | bool


@dataclass(frozen=True)
class Workshop:
    """Where kernels and tasks are read from, and what a child that runs them may use."""

    folder: Path  # kernels may be named as files below it
    tasks: Path | None = None  # tasks of whoever runs the server; no kernel can read them
    limits: Limits = field(default_factory=Limits)
    free: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(os.cpu_count() or 1))

    # ---- kernels ---------------------------------------------------------------------------------

    def source(self, text: str, file: str) -> tuple[str, bytes]:
        """Return the name and the bytes of a kernel that is given as text or as a file."""
        if bool(text) == bool(file):
            raise UsageError("give the kernel as source= or as file=, one of both")
        if not file:
            content = text.encode("utf-8", "surrogatepass")
            if len(content) > LARGEST_SOURCE:
                raise UsageError(f"the source is larger than {LARGEST_SOURCE:,} bytes")
            return NAME, content
        try:
            path = (self.folder / file).resolve()
            if not path.is_relative_to(self.folder) or self.tasks and path.is_relative_to(self.tasks):
                raise UsageError(f"{printable(file[:200])} is not a file of the folder that is served")
            return path.name, read_bytes(path, LARGEST_SOURCE)
        except (OSError, ValueError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else problem
            raise UsageError(f"{printable(file[:200])} cannot be read: {why}") from None

    def data_of(self, command: str, kernel: str, options: Sequence[str], text: str, file: str) -> Any:
        """Return the JSON of a command on a kernel; UsageError with what it printed if it prints none."""
        name, content = self.source(text, file)
        place = f"{name}:{kernel}" if kernel else name
        answer = self._child([command, place, "--json", *options], name, content, data=True)
        code, data = _sent(answer, self.limits)
        if not data:
            raise UsageError(answer.printed.strip() or f"nki {command} ended with exit code {code}")
        return parse_json(data)

    def run(self, arguments: Sequence[str], text: str, file: str) -> dict[str, Any]:
        """Run a script as `nki run` does; return its exit code and what it printed."""
        name, content = self.source(text, file)
        answer = self._child(["run", name, *arguments], name, content, data=False)
        code, _ = _sent(answer, self.limits)
        return {"exit_code": code, "printed": answer.printed, "seconds": round(answer.seconds, 2)}

    def _child(self, arguments: list[str], name: str, content: bytes, data: bool) -> Answer:
        child = Child(
            "command",
            replace(self.limits, output=LARGEST_ANSWER),
            [self.tasks] if self.tasks else [],
        )
        with self.free:
            answer = child.run({"file": name, "arguments": arguments, "data": data}, content)
        return replace(answer, printed=FOLDER.sub("", printable(answer.printed)))

    # ---- tasks -----------------------------------------------------------------------------------

    def task_names(self) -> list[str]:
        """Return the tasks that kernels can be graded for."""
        own = [] if self.tasks is None else [*self.tasks.glob("*/task.py"), *self.tasks.glob("*.py")]
        names = {path.parent.name if path.name == "task.py" else path.stem for path in own}
        return sorted({*names, *ready()})

    def task(self, name: str) -> Task:
        """Return a task by its name; paths are refused, since a task is code that runs in this process."""
        names = self.task_names()
        if name not in names:
            hint = suggestion(name, names)
            raise UsageError(f"there is no task {printable(name[:200])}{hint}\n  tasks: {', '.join(names)}")
        places = [] if self.tasks is None else [self.tasks / name / "task.py", self.tasks / f"{name}.py"]
        try:
            for place in places:
                if place.exists():
                    return replace(load_task(place), folder=self.tasks)
            return ready()[name]
        except TaskError as problem:
            raise UsageError(str(problem)) from None

    def grade(self, task: str, text: str, file: str) -> dict[str, Any]:
        """Return the verdict on a kernel, as `nki grade --json` prints it."""
        wanted = self.task(task)
        name, content = self.source(text, file)
        with tempfile.TemporaryDirectory(prefix="nki-mcp-") as folder, self.free:
            path = Path(folder) / name
            path.write_bytes(content)
            verdict = grade(wanted, path)
        verdict.submission = name
        return verdict.to_dict()


def options_of(arguments: Mapping[str, Value] | None, **more: Value | None) -> list[str]:
    """Return the options of a command: `--arg=x=float32[128,512] --target=trn2`."""
    named = [f"--arg={name}={value}" for name, value in (arguments or {}).items()]
    return named + [f"--{name}={value}" for name, value in more.items() if value not in (None, "")]


def _sent(answer: Answer, limits: Limits) -> tuple[int, bytes]:
    """Return the exit code and the data that a child sent; UsageError if it ended before."""
    try:
        ((header, data),) = messages(answer.data)
        return int(header["code"]), data
    except (ValueError, KeyError, TypeError):
        why = (
            WHY[answer.why].format(**asdict(limits)) if answer.why else f"ended with exit code {answer.code}"
        )
        raise UsageError(f"the kernel {why}\n{answer.printed[-1000:]}".rstrip()) from None
