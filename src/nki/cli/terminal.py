"""What a person sees of a command: tables with colour on a terminal, errors, progress."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, TextIO

from ..errors import is_ours
from ..progress import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn

DELAY = 2.0  # seconds until progress is shown
MACHINERY = ("importlib", "contextlib", "threading", "runpy")  # lies between nki and the script


def show(shown: RenderableType) -> None:
    """Print a table: with colour on a terminal, else as plain text."""
    from rich.console import Console  # slow to import: `nki --help` does without

    from ..report.text import plain

    if sys.stdout.isatty():
        Console(markup=False, emoji=False, highlight=False).print(shown)
    else:
        sys.stdout.write(plain(shown))


def complain(text: str) -> None:
    """Print to stderr, the first line in red on a terminal."""
    show_message(text.rstrip(), sys.stderr, "bold red")


STYLES = {  # of the lines of errors and findings, by how they begin
    "NkiError": "bold red",
    "NkiWarning": "bold yellow",
    "-->": "cyan",
    "help:": "green",
    "wrong:": "bold red",
    "right:": "bold green",
}


def show_message(text: str, file: TextIO | None = None, first: str = "") -> None:
    """Print lines as they are, on a terminal with colours; `first` is the style of the first one."""
    file = sys.stdout if file is None else file
    if not file.isatty():
        print(text, file=file)
        return
    from rich.console import Console

    console = Console(file=file, markup=False, emoji=False, highlight=False, soft_wrap=True)
    for number, line in enumerate(text.split("\n")):
        begun = (style for start, style in STYLES.items() if line.lstrip().startswith(start))
        console.print(line, style=first if first and not number else next(begun, ""))


def user_traceback(problem: BaseException) -> str:
    """Return the script's part of a traceback: nothing of nki, nothing of Python's machinery."""
    frames = []
    for frame, line in traceback.walk_tb(problem.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if not is_ours(module) and module.partition(".")[0] not in MACHINERY:
            frames.append((frame, line))
    text = "".join(traceback.format_exception_only(problem)).rstrip()
    if frames:
        steps = "".join(traceback.StackSummary.extract(iter(frames)).format())
        return f"{text}\n{steps}"
    if isinstance(problem, SyntaxError):
        return text
    return f"{text}\n  this is a fault of Open NKI itself; run it again with --traceback to see where"


def _time_left(stages: Stages) -> ProgressColumn:
    """Return a column with the time left, which is asked for whenever the bar is drawn."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(stages.left())

    return TimeLeft()


class Stages:
    """Report on stderr what is being done, once it takes longer than DELAY seconds.

    On a terminal it is a bar that goes away; in a log, a line per stage.
    """

    def __init__(self, total: int = 4):
        self.total = total
        self.done = 0
        self.current = ""
        self.begun = 0.0  # of the stage
        self.bar: Bar | None = None
        self.visible = self.over = False
        self.lock = threading.Lock()
        self.timer = threading.Timer(DELAY, self._appear)
        self.timer.daemon = True

    def __enter__(self) -> Stages:
        self.timer.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.timer.cancel()
        with self.lock:
            self.visible, self.over = False, True
            if self.bar is not None:
                self.bar.stop()

    def __call__(self, what: str) -> None:
        """Begin a stage."""
        with self.lock:
            self.done += bool(self.current)
            self.current, self.begun = what, time.monotonic()
            if self.visible:
                self._show()

    def _appear(self) -> None:
        with self.lock:
            if self.over:
                return
            self.visible = True
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True)
            if console.is_terminal:
                left = _time_left(self)
                columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), left)
                self.bar = Bar(*columns, console=console, transient=True)
                self.bar.add_task("", total=self.total)
                self.bar.start()
            self._show()

    def left(self) -> str:
        """Return an estimate of the time left in this stage, where it is known how much is done."""
        since = time.monotonic() - self.begun
        done = self.current.part() if isinstance(self.current, Progress) else 0.0
        return f"about {since * (1 - done) / done:.0f} s left" if done > 0.02 else ""

    def _show(self) -> None:
        if self.bar is None:
            print(f"nki: {self.current} ...", file=sys.stderr, flush=True)
        else:
            self.bar.update(self.bar.task_ids[0], description=self.current, completed=self.done)
