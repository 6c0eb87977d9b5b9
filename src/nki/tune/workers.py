"""Where configurations are modelled: in this process, in one process per core, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import islice
from multiprocessing.managers import SyncManager
from typing import TYPE_CHECKING, Any

from ..backends.fused.threads import available
from ..errors import error
from ..ranks.lifetime import die_with
from .model import Outcome, TuningJob, evaluate
from .space import Config

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

CHUNK = 4


class Workers:
    """Models in this process."""

    count = 1

    def __init__(self, job: TuningJob):
        self.job = job
        self.known: dict[str, float] = {}
        self.best = float("inf")

    def outcomes(self, configs: Iterable[Config]) -> Iterator[Outcome]:
        """Yield the outcomes of configurations, in any order."""
        for config in configs:
            yield self._noted(evaluate(self.job, config, self.known, self.best))

    def _noted(self, outcome: Outcome) -> Outcome:
        if outcome.us is not None:
            self.best = min(self.best, outcome.us)
        return outcome

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *problem: object) -> None:
        pass


# ---- a process for each core ---------------------------------------------------------------------

_job: TuningJob | None = None  # in the processes of the pool
_known: MutableMapping[str, float] = {}
_best: Synchronized[float] | None = None


def _begin(job: TuningJob, known: MutableMapping[str, float], best: Synchronized[float], parent: int) -> None:
    global _job, _known, _best
    die_with(parent)
    _job, _known, _best = job, known, best


def _model(config: Config) -> Outcome:
    assert _job is not None and _best is not None
    outcome = evaluate(_job, config, _known, _best.value)
    if outcome.us is not None:
        with _best.get_lock():
            _best.value = min(_best.value, outcome.us)
    return outcome


class Processes(Workers):
    """Models on all cores. The processes are forked, so they have everything that the kernel needs."""

    def __init__(self, job: TuningJob, count: int):
        super().__init__(job)
        self.count = count
        context = multiprocessing.get_context("fork")
        self.manager = SyncManager(ctx=context)
        self.manager.start(die_with, (os.getpid(),))
        self.shared = self.manager.dict()
        self.least = context.Value("d", float("inf"))
        self.pool = context.Pool(count, _begin, (job, self.shared, self.least, os.getpid()))

    def outcomes(self, configs: Iterable[Config]) -> Iterator[Outcome]:
        yield from map(self._noted, self.pool.imap_unordered(_model, configs))

    def __exit__(self, *problem: object) -> None:
        self.pool.terminate()
        self.pool.join()
        self.manager.shutdown()


# ---- Ray -----------------------------------------------------------------------------------------


class Cluster(Workers):
    """Models on a Ray cluster. A task whose worker dies is repeated by another."""

    def __init__(self, job: TuningJob, address: str | None):
        super().__init__(job)
        try:
            import ray
        except ImportError:
            raise error("missing-package", "--ray needs Ray", help="pip install ray") from None
        self.ray = ray
        self.own = not ray.is_initialized()
        if self.own:
            ray.init(address=address or None, log_to_driver=False)
        self.count = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.handle = ray.put(job)
        self.remote = ray.remote(max_retries=5, retry_exceptions=False)(_chunk)

    def outcomes(self, configs: Iterable[Config]) -> Iterator[Outcome]:
        waiting: dict[Any, Sequence[Config]] = {}
        source = iter(configs)
        more = True
        while more or waiting:
            while more and len(waiting) < 2 * self.count:
                part = list(islice(source, CHUNK))
                more = len(part) == CHUNK
                if part:
                    waiting[self.remote.remote(self.handle, part, self.best, dict(self.known))] = part
            if waiting:
                (done, *_), _ = self.ray.wait(list(waiting), num_returns=1)
                yield from map(self._noted, self._received(done, waiting.pop(done)))

    def _received(self, done: object, part: Sequence[Config]) -> list[Outcome]:
        try:
            found, known = self.ray.get(done)
        except self.ray.exceptions.RayError:  # workers died repeatedly: evaluate here
            return [evaluate(self.job, config, self.known, self.best) for config in part]
        self.known.update(known)
        return found

    def __exit__(self, *problem: object) -> None:
        if self.own:
            self.ray.shutdown()


def _chunk(
    job: TuningJob, configs: Sequence[Config], best: float, known: dict[str, float]
) -> tuple[list[Outcome], dict[str, float]]:
    """Evaluate configurations in a worker of the cluster."""
    found = [evaluate(job, config, known, best) for config in configs]
    return found, known


def workers(job: TuningJob, jobs: int | None, ray: str | bool | None) -> Workers:
    """Return a cluster if `ray` is set, else as many processes as there are cores."""
    if ray:
        return Cluster(job, ray if isinstance(ray, str) else None)
    forks_safely = sys.platform != "darwin"  # its libraries do not survive a fork: only if `jobs` is given
    count = jobs or (available() if forks_safely else 1)
    if count > 1 and "fork" in multiprocessing.get_all_start_methods():
        return Processes(job, count)
    return Workers(job)
