"""Grading: trace a submission in a sandbox, run its Programs on inputs, compare, and model the time."""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from nki.check import releases
from nki.errors import error
from nki.files import printable, read_bytes
from nki.machine import dtypes

from .roles import messages, pack, send, unpack
from .sandbox import Answer, Child
from .task import Case, Samples, Task, load_task
from .verdict import CaseVerdict, Mismatch, Verdict, compare

WHY = {
    "time": "stopped after {seconds:g} s",
    "output": "stopped: it wrote more than {output:,} bytes",
}
LARGEST_SOURCE = 4 << 20
NAMES = 200  # characters of a message that a table shows


class References:
    """The expected results of a task, computed once for each case and seed."""

    def __init__(self, task: Task, secret: int | None = None):
        self.task = task
        rng = np.random.default_rng(secrets.randbits(63) if secret is None else secret)
        hidden = [int(n) for n in rng.integers(1 << 32, 1 << 62, task.hidden_seeds)]
        self.seeds = [*task.visible_seeds, *hidden]
        self._of = lru_cache(maxsize=64)(self._compute)
        self._lock = Lock()  # threads that need the same reference wait for one computation

    def is_hidden(self, seed: int) -> bool:
        return seed not in self.task.visible_seeds

    def of(self, case: Case, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the tensors of a case, and what the reference makes of them."""
        with self._lock:
            return self._of(self.task.cases.index(case), seed)

    def _compute(self, number: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        case = self.task.cases[number]
        values = case.sample(seed)
        tensors = [values[name] for name in case.tensors]
        found = self.task.reference(**values)
        results = found if isinstance(found, (tuple, list)) else [found]
        return tensors, [_array(result) for result in results]


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def grade(
    task: Task | str | Path,
    submission: str | Path,
    *,
    secret: int | None = None,
    references: References | None = None,
) -> Verdict:
    """Return the verdict on one submission, a Python file. `secret` chooses the hidden inputs."""
    task = task if isinstance(task, Task) else load_task(task)
    references = references or References(task, secret)
    start = time.monotonic()
    verdict = Verdict(task.name, str(submission), task.target, release=task.release)
    verdict.cases = [_empty(case) for case in task.cases]
    try:
        source = _source(Path(submission))
        programs = _trace(task, source, Path(submission).name, verdict)
        if programs:
            _run(task, programs, references, verdict)
    except _Refused as problem:
        verdict.problem = str(problem)
    for case, outcome in zip(task.cases, verdict.cases, strict=True):
        if verdict.problem and not outcome.problem:
            outcome.problem = "not graded"
        outcome.give_points(case)
    verdict.seconds = time.monotonic() - start
    return verdict


class _Refused(Exception):
    """A submission cannot be graded at all."""


def _empty(case: Case) -> CaseVerdict:
    limit = case.limits_us[0][0] if case.limits_us else None
    return CaseVerdict(case.name, case.points, baseline_us=case.baseline_us, limit_us=limit)


def _source(path: Path) -> bytes:
    try:
        return read_bytes(path, LARGEST_SOURCE)
    except OSError as problem:
        raise _Refused(f"{path} cannot be read: {problem.strerror}") from None


# ---- what the submission's process answers -------------------------------------------------------


def _trace(task: Task, source: bytes, name: str, verdict: Verdict) -> dict[str, bytes]:
    """Return the Program of each case that could be traced; the other cases get their problem."""
    cases = [_job(task, case) for case in task.cases]
    job = {"file": name, "entry": task.entry, "release": _release(task), "cases": cases}
    hidden = [task.folder] if task.folder is not None else []
    answer = Child("trace", task.limits, hidden).run(job, source)
    verdict.enforced, verdict.printed = answer.enforced, printable(answer.printed)
    by_name = {outcome.name: outcome for outcome in verdict.cases}
    programs: dict[str, bytes] = {}
    imported = False
    for header, data in _received(answer, "the submission"):
        outcome = by_name.get(str(header.get("case")))
        if outcome is not None and "failed" in header:
            _note_failure(outcome, header)
        elif outcome is not None and data:
            programs[outcome.name] = data
        elif "failed" in header:
            verdict.problem, verdict.detail = f"it does not load: {_short(header['failed'])}", _long(header)
        elif header.get("imported") is True:
            imported = True
            verdict.check = [_long({"message": text}) for text in _texts(header.get("check"))]
    if not imported and not verdict.problem:
        raise _Refused(_ended(answer, task, "the submission"))
    for outcome in verdict.cases:
        if outcome.name not in programs and not outcome.problem and not verdict.problem:
            outcome.problem = _ended(answer, task, "the submission")
    return programs


def _release(task: Task) -> str | None:
    """Return the release of a task without its prefix, as the checks name it."""
    return None if task.release is None else task.release.removeprefix(releases.PREFIX)


def _job(task: Task, case: Case) -> dict[str, Any]:
    """Return what a submission's process knows of a case: shapes, dtypes and plain values."""
    arguments = {
        name: {"shape": list(value.shape), "dtype": value.dtype} if isinstance(value, Samples) else value
        for name, value in case.arguments.items()
    }
    return {"name": case.name, "arguments": arguments, "target": task.target, "lnc": case.lnc}


def _received(answer: Answer, who: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    try:
        yield from messages(answer.data)
    except ValueError:
        raise _Refused(f"{who} sent an answer that is damaged") from None


def _ended(answer: Answer, task: Task, who: str) -> str:
    if answer.why:
        return f"{who} was " + WHY[answer.why].format(**asdict(task.limits))
    if answer.code:
        return f"{who} ended with exit code {answer.code} before it was traced"
    return f"{who} ended before it was traced"


def _note_failure(outcome: CaseVerdict, header: Mapping[str, Any]) -> None:
    outcome.problem, outcome.detail = f"{_short(header['failed'])}", _long(header)


def _short(text: object) -> str:
    return printable(str(text)[:NAMES])


def _long(header: Mapping[str, Any]) -> str:
    return printable(str(header.get("message", ""))[:4000])


def _texts(value: object) -> list[str]:
    return [str(text) for text in value[:20]] if isinstance(value, list) else []


# ---- what our own process finds in the Programs --------------------------------------------------


def _run(task: Task, programs: Mapping[str, bytes], references: References, verdict: Verdict) -> None:
    """Run the Programs on every seed and note what is wrong with the results."""
    stdin = io.BytesIO()
    longest = max(programs, key=lambda name: len(programs[name]), default="")
    for case in task.cases:
        if case.name in programs:
            takes = [[list(v.shape), str(dtypes.resolve(v.dtype))] for v in case.tensors.values()]
            wanted = {"target": task.target, "lnc": case.lnc, "release": _release(task), "takes": takes}
            advise = case.name == longest  # advice takes as long as all else together
            send(stdin, {"case": case.name, "advise": advise, **wanted}, programs[case.name])
            for seed in references.seeds:
                tensors, _ = references.of(case, seed)
                heads, raw = pack(tensors)
                send(stdin, {"case": case.name, "seed": seed, "arrays": heads}, raw)
    answer = Child("run", task.limits, foreign=False).run({}, stdin.getvalue())
    by_name = {outcome.name: (outcome, case) for outcome, case in zip(verdict.cases, task.cases, strict=True)}
    for header, data in _received(answer, "the run"):
        outcome, case = by_name[header["case"]]
        if "failed" in header:
            _note_failure(outcome, header)
        elif "us" in header:
            _note_figures(outcome, header)
            verdict.check += [text for text in header["check"] if text not in verdict.check]
        elif not outcome.problem:
            _compare(task, case, outcome, header, data, references)
    for name in programs:
        outcome, _ = by_name[name]
        if not outcome.problem and (outcome.seeds < len(references.seeds) or outcome.us is None):
            outcome.problem = _ended(answer, task, "the run")


def _note_figures(outcome: CaseVerdict, header: Mapping[str, Any]) -> None:
    outcome.us, outcome.instructions = float(header["us"]), int(header["instructions"])
    outcome.sbuf_bytes, outcome.psum_bytes = int(header["sbuf_bytes"]), int(header["psum_bytes"])
    outcome.findings, outcome.advice = list(header["findings"]), list(header["advice"])


def _compare(
    task: Task,
    case: Case,
    outcome: CaseVerdict,
    header: Mapping[str, Any],
    data: bytes,
    references: References,
) -> None:
    seed, got = header["seed"], unpack(header["arrays"], data)
    tensors, expected = references.of(case, seed)
    outcome.seeds += 1
    number, message, index = compare(task, case, got, expected, tensors)
    if not message and index is None:
        return
    hidden = references.is_hidden(seed)
    inputs = "hidden inputs" if hidden else f"the inputs of seed {seed}"
    outcome.problem = f"wrong on {inputs}"
    outcome.mismatch = Mismatch(-1 if hidden else seed, hidden, number, message)
    if index is not None:
        exact = expected[number].reshape(got[number].shape)  # `any_shape` leaves the shape to the kernel
        wanted, found = float(exact[index]), float(got[number][index])
        outcome.mismatch.message = f"worst at {list(index)}: {found:g} instead of {wanted:g}"
        outcome.mismatch.index, outcome.mismatch.expected, outcome.mismatch.got = list(index), wanted, found


# ---- many submissions ----------------------------------------------------------------------------


def grade_all(
    task: Task | str | Path,
    submissions: Sequence[str | Path],
    *,
    jobs: int = 1,
    secret: int | None = None,
    ray: str | bool | None = None,
    graded: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Return the verdicts on many submissions, all on the same inputs; `graded` is called with each.

    The work is done by child processes: of this machine, or with `ray` of the workers of a cluster.
    """
    task = task if isinstance(task, Task) else load_task(task)
    chosen = secrets.randbits(63) if secret is None else secret
    outcomes = _on_ray(task, submissions, chosen, ray) if ray else _here(task, submissions, chosen, jobs)
    verdicts: dict[str, Verdict] = {}
    for verdict in outcomes:
        verdicts[verdict.submission] = verdict
        graded(verdict)
    return [verdicts[str(submission)] for submission in submissions]


def _here(task: Task, submissions: Sequence[str | Path], secret: int, jobs: int) -> Iterator[Verdict]:
    references = References(task, secret)
    pool = ThreadPoolExecutor(max(1, jobs))
    try:
        waiting = [pool.submit(grade, task, s, references=references) for s in submissions]
        for done in as_completed(waiting):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt waits for what runs, not for the rest


def _on_ray(
    task: Task, submissions: Sequence[str | Path], secret: int, address: str | bool | None
) -> Iterator[Verdict]:
    """Grade on a cluster that sees the same files; a worker that dies costs one more try."""
    try:
        import ray
    except ImportError:
        raise error("missing-package", "--ray needs Ray", help="pip install ray") from None
    own = not ray.is_initialized()
    if own:
        ray.init(address=address if isinstance(address, str) else None, log_to_driver=False)
    try:
        remote = ray.remote(max_retries=1)(_grade_on_worker)
        handle = ray.put(task)
        names = {remote.remote(handle, str(Path(s).resolve()), secret): str(s) for s in submissions}
        while names:
            (done, *_), _ = ray.wait(list(names), num_returns=1)
            name = names.pop(done)
            try:
                verdict = ray.get(done)
            except ray.exceptions.RayError:  # two workers died: grade here
                verdict = grade(task, name, secret=secret)
            verdict.submission = name
            yield verdict
    finally:
        if own:
            ray.shutdown()


_ON_WORKER: dict[tuple[str, int], References] = {}  # of a Ray worker, for all submissions that it grades


def _grade_on_worker(task: Task, submission: str, secret: int) -> Verdict:
    references = _ON_WORKER.setdefault((task.name, secret), References(task, secret))
    return grade(task, submission, references=references)


def leaderboard(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts, best first: by points, then by modelled time."""
    return sorted(verdicts, key=lambda v: (-v.earned, sum(case.us or 0.0 for case in v.cases), v.submission))
