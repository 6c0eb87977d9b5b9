"""A fork waits for modules that calls of other threads import: its child would wait for them forever."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import nki

SLOW = """
import time
started.set()
forking.wait()
time.sleep(0.2)  # the fork would happen now
class ThreadpoolController:
    lib_controllers = []
    def select(self, **_):
        return self
"""
SCRIPT = f"""
import builtins, os, signal, sys, threading, warnings
from pathlib import Path
warnings.simplefilter("ignore")  # this is what the test does
builtins.started, builtins.forking = threading.Event(), threading.Event()
Path("threadpoolctl.py").write_text({SLOW!r})
sys.path.insert(0, "")
from nki.backends.reference.blas import one_blas_thread

def call():
    with one_blas_thread():
        pass

thread = threading.Thread(target=call)
thread.start()
started.wait()
os.register_at_fork(before=forking.set)
child = os.fork()
if child == 0:
    signal.alarm(60)
    call()
    os._exit(0)
thread.join()
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_the_imports_of_other_threads(tmp_path):
    source = os.path.dirname(os.path.dirname(nki.__file__))
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
