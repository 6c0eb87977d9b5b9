"""tune: try the configurations of a space by the timing model, and cache the best."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import error
from ..kernel.kernel import Kernel
from ..kernel.specs import as_specs
from ..options import choose_machine
from . import stored
from .model import Outcome, TuningJob
from .search import EXHAUSTIVE, exhaustive, search
from .space import Config, Space, Where
from .workers import workers

Progress = Callable[[int, int, float], None]  # configurations done, in all, the best time so far


@dataclass
class Tuning:
    """The result of tuning a call."""

    kernel: str
    target: str
    best: Config
    us: float  # modelled, of the best
    outcomes: list[Outcome] = field(default_factory=list, repr=False)  # best first; those dropped last
    tried: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # by the kind of error
    pruned: int = 0  # could not have been the best
    same: int = 0  # were the same program as another
    seconds: float = 0.0
    from_cache: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "target": self.target,
            "best": self.best,
            "us": self.us,
            "tried": self.tried,
            "dropped": dict(self.dropped),
            "pruned": self.pruned,
            "same": self.same,
            "seconds": round(self.seconds, 3),
            "from_cache": self.from_cache,
            "configurations": [{"config": o.config, "us": o.us, "why": o.why} for o in self.outcomes],
        }

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.best.items())
        return f"{self.kernel} on {self.target}: {shown} takes {self.us:.2f} us by the model"


def tune(
    kernel: Kernel,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    vary: Mapping[str, Sequence[Any]],
    where: Where = None,
    target: str | None = None,
    budget: int = EXHAUSTIVE,
    jobs: int | None = None,
    ray: str | bool | None = None,
    cache: bool | str | os.PathLike = True,
    seed: int = 0,
    progress: Progress = lambda done, total, best: None,
) -> Tuning:
    """Return the configuration of `vary` with which `kernel(*args, **kwargs, **configuration)` is fastest.

    By the timing model: arrays may be `nki.TensorSpec`s, nothing is computed. All configurations are tried if
    there are at most `budget`, else a search tries as many. `jobs` is the number of processes: all cores
    without it. `ray` is the address of a Ray cluster, or True for one on this machine. `cache` may name the
    folder in which the best is stored.
    """
    space = Space(vary, where)
    job = TuningJob(
        kernel,
        as_specs(tuple(args)),
        as_specs(dict(kwargs or {})),
        target or choose_machine(kernel.target).name,
    )
    name = stored.key(job, space, budget)
    place = stored.folder() if cache is True else Path(cache or "")
    known = stored.read(name, space, place) if cache else None
    if known is not None:
        return Tuning(kernel.__name__, job.target, known["config"], known["us"], from_cache=True)
    begin = time.perf_counter()
    outcomes = _tried(job, space, budget, jobs, ray, seed, progress)
    found = _summed(job, outcomes, time.perf_counter() - begin)
    if cache:
        facts = {"kernel": found.kernel, "target": found.target, "config": found.best, "us": found.us}
        stored.write(name, {**facts, "tried": found.tried}, place)
    return found


def _tried(
    job: TuningJob,
    space: Space,
    budget: int,
    jobs: int | None,
    ray: str | bool | None,
    seed: int,
    progress: Progress,
) -> list[Outcome]:
    whole = list(exhaustive(space)) if space.size <= max(budget, EXHAUSTIVE) else None
    if whole is not None and not whole:
        raise error("tune-space", "`where` refuses all configurations")
    total = len(whole) if whole is not None else budget
    if whole is not None and len(whole) < 8 and not ray:
        jobs = 1
    outcomes: list[Outcome] = []
    with workers(job, jobs, ray) as busy:

        def evaluate(configs: Iterable[Config]) -> None:
            for outcome in busy.outcomes(configs):
                outcomes.append(outcome)
                progress(len(outcomes), total, busy.best)

        if whole is not None:
            evaluate(whole)
        else:

            def times(configs: Sequence[Config]) -> list[float | None]:
                first = len(outcomes)
                evaluate(configs)
                by_config = {repr(o.config): o.us for o in outcomes[first:]}
                return [by_config[repr(config)] for config in configs]

            search(space, budget, max(2, 2 * busy.count), times, seed)
    return outcomes


def _summed(job: TuningJob, outcomes: list[Outcome], seconds: float) -> Tuning:
    # equal times: the configuration that comes first in the space, whatever process was faster
    good = sorted((o for o in outcomes if o.us is not None), key=lambda o: (o.us, repr(o.config)))
    bad = [o for o in outcomes if o.us is None]
    if not good:
        wrong = Counter(o.why for o in bad)
        raise error(
            "tune-space",
            f"{job.kernel.__name__}: none of {len(outcomes)} configurations can be used",
            notes=[f"{count} x {why}" for why, count in wrong.most_common()] + [bad[0].message],
        )
    return Tuning(
        job.kernel.__name__,
        job.target,
        good[0].config,
        float(good[0].us or 0.0),
        good + bad,
        len(outcomes),
        Counter(o.why for o in bad if o.why != "bound"),
        sum(o.why == "bound" for o in bad),
        sum(o.why == "same" for o in good),
        seconds,
    )
