"""Grading on a real local Ray of two workers, one of which is killed on the way: no verdict is lost."""

from __future__ import annotations

import os
import signal
import time

import pytest
import submissions as given
from test_grading import write, write_task

from nki_grading import grade_all

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    yield
    ray.shutdown()


@pytest.fixture
def worker(cluster):
    """The process of one of the workers."""

    @ray.remote
    def pid():
        time.sleep(0.5)
        return os.getpid()

    return min(ray.get([pid.remote() for _ in range(2)]))


def test_a_worker_that_is_killed_costs_a_retry(tmp_path, worker):
    task = write_task(tmp_path / "task")
    sources = {f"right {n}": given.RIGHT for n in range(8)}
    files = write(tmp_path / "submissions", {**sources, "wrong": given.WRONG["wrong value"]})
    killed = []

    def graded(verdict):
        if not killed:
            killed.append(worker)
            os.kill(worker, signal.SIGKILL)

    found = grade_all(task, list(files.values()), ray=True, secret=1, graded=graded)
    assert killed and [verdict.passed for verdict in found] == [True] * 8 + [False]
