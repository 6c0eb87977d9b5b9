"""nki tune: the best configuration of a kernel, as a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..kernel.kernel import Kernel
from ..options import choose_machine
from . import script
from .command import Command, add_kernel
from .script import UsageError
from .settings import settings
from .terminal import show

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

    from ..tune import Tuning
    from ..tune.space import Where

ROWS = 12  # of the table


def command_tune(options: argparse.Namespace) -> int:
    """nki tune"""
    from ..tune import Space, tune
    from ..tune.space import parse_vary

    vary = dict(parse_vary(text) for text in options.vary)
    target = script.target(options.kernel)
    with ExitStack() as stack:
        stack.enter_context(settings(options))
        module = stack.enter_context(script.loaded(target.place))
        kernel, own, where = _found(module, target, options.where)
        vary = vary or own
        if not vary:
            raise UsageError("there is nothing to vary\n  help: --vary TN=128,256,512 --vary BUFFERS=1..4")
        kernel = kernel if options.lnc is None else kernel[options.lnc]
        unknown = vary.keys() - kernel.__signature__.parameters.keys()
        if unknown:
            raise UsageError(f"{kernel.__name__} has no parameter {sorted(unknown)[0]} to vary")
        values = script.parse_arguments(options.arg)
        first = next(iter(Space(vary, where)), None)
        bound = script.bind(kernel, {**values, **(first or {})})
        named = {name: value for name, value in bound.arguments.items() if name not in vary}
        progress = stack.enter_context(_Bar(options.json))
        found = tune(
            kernel,
            (),
            named,
            vary=vary,
            where=where,
            target=choose_machine(kernel.target).name,
            budget=options.budget,
            jobs=options.jobs,
            ray=options.ray,
            cache=not options.no_cache,
            progress=progress,
        )
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        show(table(found))
        print(summary(found))
    return 0


def _found(
    module: ModuleType, target: script.Target, where: str | None
) -> tuple[Kernel, dict[str, list[Any]], Where]:
    """Return the kernel, and what to vary of `nki.autotune`, if it has that; the command line wins."""
    from ..tune import Tuned

    tuned = {name: value for name, value in vars(module).items() if isinstance(value, Tuned)}
    name = target.name or (next(iter(tuned)) if len(tuned) == 1 else None)
    if name in tuned:
        made = tuned[name]
        return made.kernel, dict(made.space.vary), where if where is not None else made.where
    return script.find_kernel(module, target.place, target.name), {}, where


class _Bar:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self, quiet: bool):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.bar: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self.bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)

    def __enter__(self) -> Callable[[int, int, float], None]:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task("tuning")
        return self.update

    def update(self, done: int, total: int, best: float) -> None:
        if self.bar is not None:
            shown = f"best so far {best:.2f} us" if best < float("inf") else "tuning"
            self.bar.update(self.task, total=total, completed=done, description=shown)

    def __exit__(self, *problem: object) -> None:
        if self.bar is not None:
            self.bar.stop()


def table(found: Tuning) -> RenderableType:
    """List the best configurations, with how much slower each is than the first."""
    names = list(found.best)
    from ..report.text import ruled

    made = ruled(*names, "modelled us", "of the best")
    rows = [(o.config, o.us) for o in found.outcomes if o.us is not None] or [(found.best, found.us)]
    for config, us in rows[:ROWS]:
        part = f"{us / found.us:.3f}" if us is not None else ""
        made.add_row(*(str(config[name]) for name in names), f"{us:.2f}", part)
    return made


def summary(found: Tuning) -> str:
    if found.from_cache:
        return f"{found} (from the cache; --no-cache tunes again)"
    lines = [str(found), f"{found.tried} configurations in {found.seconds:.1f} s"]
    if found.dropped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.dropped.most_common())
        lines.append(f"  {sum(found.dropped.values())} failed a check: {kinds}")
    if found.pruned:
        lines.append(f"  {found.pruned} could not be the best, by what the busiest engine must do")
    if found.same:
        lines.append(f"  {found.same} were the same program as another")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="an argument and its values: TN=128,256,512 or BUFFERS=1..4 or K=0..512..64; repeatable",
    )
    parser.add_argument("--where", metavar="CONDITION", help='only where it holds: "TM*TN<=65536"')
    add_kernel(parser)
    parser.add_argument(
        "--budget", type=int, default=500, metavar="N", help="try at most N, by a search if there are more"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one for each core)")
    parser.add_argument(
        "--ray",
        nargs="?",
        const=True,
        metavar="ADDRESS",
        help="on a Ray cluster; without ADDRESS a local one",
    )
    parser.add_argument("--no-cache", action="store_true", help="tune again, and cache nothing")


COMMAND = Command(
    "tune",
    "find the best tile sizes",
    """\
Find the configuration of a kernel that is fastest by the timing model, from shapes alone.
Configurations that fail a check are dropped and counted. The best is cached in
JSON files (OPEN_NKI_CACHE_DIR).""",
    command_tune,
    add_arguments,
    """\
examples:
  nki tune matmul.py:blocked --arg lhsT=bfloat16[2048,2048] --arg rhs=bfloat16[2048,2048] \\
      --vary TN=128,256,512 --vary BUFFERS=1..4 --where "TM*TN<=65536" --target trn2""",
)
