"""Grading: right, wrong and hostile submissions, in processes with limits."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import submissions as given

from nki.cli import main
from nki_grading import Case, Task, TaskError, grade, grade_all, integers, load_task, normal, sandbox, uniform
from nki_grading.grade import References, leaderboard
from nki_grading.pages import leaderboard_page, page
from nki_grading.roles import messages
from nki_grading.sandbox import isolation
from nki_grading.verdict import Verdict, worst

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows passes no pipes to children")

TASK = """
import numpy as np
from nki_grading import Case, Limits, Task, normal

def reference(x):
    return 2 * x.astype(np.float64)

TASK = Task(
    "double", "double", reference, [Case("small", {"x": normal((8, 32))})],
    limits=Limits(seconds=SECONDS, memory=3 << 29, processes=32, files=64, output=32 << 20),
)
"""


def write_task(folder, seconds=60):
    folder.mkdir(exist_ok=True)
    (folder / "task.py").write_text(TASK.replace("SECONDS", str(seconds)))
    return folder


def write(folder, sources):
    """Files of submissions by name."""
    folder.mkdir(exist_ok=True)
    files = {}
    for number, (name, source) in enumerate(sources.items()):
        files[name] = folder / f"s{number}.py"
        files[name].write_text(source if "\0" in source else given.HEAD + source)
    return files


def verdicts_on(tmp_path, sources, seconds=60, jobs=2):
    task = load_task(write_task(tmp_path / "task", seconds))
    files = write(tmp_path / "submissions", sources)
    found = grade_all(task, list(files.values()), jobs=jobs)
    return dict(zip(files, found, strict=True))


def digest(folder):
    """Digests of all files but the byte code that the grader's own import of the task leaves."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.suffix != ".pyc"
    }


# ---- right and wrong -----------------------------------------------------------------------------


def test_a_right_submission_passes_with_its_modelled_time(tmp_path):
    verdict = grade(write_task(tmp_path / "task"), write(tmp_path, {"right": given.RIGHT})["right"])
    assert verdict.passed and (verdict.earned, verdict.points) == (1.0, 1.0), verdict.summary()
    (case,) = verdict.cases
    assert case.us > 0 and case.seeds == 2 and case.instructions == 3 and case.sbuf_bytes > 0
    assert "time" in verdict.enforced and "passed" in verdict.summary()
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))).to_dict() == {
        **verdict.to_dict(),
        "enforced": list(verdict.enforced),
    }


def test_wrong_submissions_fail_with_the_reason(tmp_path):
    found = verdicts_on(tmp_path, given.WRONG)
    assert not [name for name, verdict in found.items() if verdict.passed]
    mismatch = found["wrong value"].cases[0].mismatch
    assert mismatch.got == pytest.approx(1.25 * mismatch.expected) and len(mismatch.index) == 2
    assert "[16, 16]" in found["wrong shape"].cases[0].mismatch.message
    assert "bfloat16" in found["wrong dtype"].cases[0].mismatch.message
    assert "2 tensors" in found["two results"].cases[0].mismatch.message
    assert "no kernel double" in found["no kernel"].detail
    assert "SyntaxError" in found["syntax error"].problem
    assert "tensor-value" in found["reads values"].cases[0].problem


def test_time_limits_give_shares_of_the_points(tmp_path):
    file = write(tmp_path, {"right": given.RIGHT})["right"]
    cases = [
        Case("easy", {"x": normal((8, 32))}, points=2, limits_us=((1e6, 1.0),)),
        Case("partly", {"x": normal((8, 32))}, points=4, limits_us=((1e-3, 1.0), (1e6, 0.5))),
        Case("impossible", {"x": normal((8, 32))}, limits_us=((1e-3, 1.0),)),
    ]
    verdict = grade(Task("double", "double", lambda x: 2 * x, cases), file)
    assert [case.earned for case in verdict.cases] == [2, 2, 0] and not verdict.passed
    assert "too slow" in verdict.cases[2].problem


def test_a_release_refuses_what_it_does_not_have(tmp_path):
    newer = "most = nl.tile_size.psum_bank_fmax\n    nisa.tensor_scalar(tile, tile, nl.relu, 0.0)\n    "
    file = write(tmp_path, {"newer": given.RIGHT.replace("nisa.tensor_scalar", newer + "nisa.tensor_scalar")})
    cases = [Case("small", {"x": uniform((8, 32))})]
    old, new = (
        grade(Task("double", "double", lambda x: 2 * x, cases, target="trn3", release=release), file["newer"])
        for release in ("aws-0.3", "aws-0.6")
    )
    assert new.passed, new.summary()
    assert not old.passed and old.earned == 1.0 and len(old.check) == 2
    assert "psum_bank_fmax" in old.check[0] and "relu" in old.check[1]  # of the source, and of the Program
    assert "check --for aws-0.3" in old.summary()


def test_two_threads_compute_a_reference_once():
    calls = []
    task = Task("t", "k", lambda x: calls.append(1) or x, [Case("c", {"x": normal((4, 4))})])
    references = References(task, 0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: references.of(task.cases[0], 0), range(32)))
    assert len(calls) == 1


def test_inputs_are_equal_for_equal_seeds_and_of_their_dtype():
    case = Case("c", {"a": uniform((4, 4), "bfloat16", 1, 2), "b": integers((9,), high=3), "n": 7})
    first, again, other = case.sample(3), case.sample(3), case.sample(4)
    assert (first["a"] == again["a"]).all() and (first["a"] != other["a"]).any() and first["n"] == 7
    assert first["a"].dtype.name == "bfloat16" and first["b"].max() <= 2 and first["b"].dtype == np.int32


def test_a_task_that_is_wrong_says_what_is_wrong(tmp_path):
    with pytest.raises(TaskError, match="no case"):
        Task("t", "k", len, [])
    with pytest.raises(TaskError, match="release is none of aws-"):
        Task("t", "k", len, [Case("a", {})], release="0.6")
    with pytest.raises(TaskError, match="same name"):
        Task("t", "k", len, [Case("a", {}), Case("a", {})])
    with pytest.raises(TaskError, match="there is no task nowhere"):
        load_task("nowhere")
    (tmp_path / "task.py").write_text("TASK = 3")
    with pytest.raises(TaskError, match="has no TASK"):
        load_task(tmp_path)


def test_the_worst_element_is_found_and_not_a_number_counts():
    exact = np.zeros((2, 3))
    assert worst(np.array([[0, 0.4, 0], [0, 0, -0.5]]), exact, 1, 0.0, 0.5) is None
    assert worst(np.array([[0, 2.0, 0], [0, 0, -3.0]]), exact, 1, 0.0, 0.5) == (1, 2)
    assert worst(np.array([[0, 2.0, 0], [np.nan, 0, -3.0]]), exact, 1, 0.0, 0.5) == (1, 0)


def test_a_large_result_is_compared_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((7, 11))
    got = exact + rng.standard_normal((7, 11))
    whole = worst(got, exact, 1, None, 0.0)
    monkeypatch.setattr("nki_grading.verdict.PART", 10)
    assert (
        worst(got, exact, 1, None, 0.0)
        == whole
        == np.unravel_index(
            int((np.abs(got - exact) / (np.abs(exact) + np.abs(exact).max())).argmax()), exact.shape
        )
    )


CONVOLUTION = Path(__file__).with_name("conv2d_solution.py")


def test_the_convolution_of_cs149_is_graded_at_its_small_sizes(tmp_path):
    source = CONVOLUTION.read_text()
    wrong_file = write(tmp_path, {"no bias": source.replace("nl.add, wide", "nl.add, 0.0")})["no bias"]
    task = load_task("cs149-conv2d-small")
    right = grade(task, CONVOLUTION)
    wrong = grade(replace(task, cases=task.cases[:1]), wrong_file)
    assert right.passed and right.earned == right.points == 10, right.summary()
    assert wrong.earned == 0


# ---- hostile -------------------------------------------------------------------------------------


def test_hostile_submissions_get_no_points_and_hurt_nothing(tmp_path):
    task = write_task(tmp_path / "task")
    before = digest(task)
    found = verdicts_on(tmp_path, given.HOSTILE)
    assert {name: verdict.earned for name, verdict in found.items() if verdict.passed} == {}
    assert "hidden inputs" in found["knows the answer"].cases[0].problem
    assert "not a saved program" in found["patches save"].cases[0].detail
    assert len(found["prints much"].printed) < 5000
    assert digest(task) == before


def test_submissions_that_do_not_end_are_stopped(tmp_path):
    found = verdicts_on(tmp_path, given.STOPPED, seconds=2, jobs=5)
    assert {name: verdict.earned for name, verdict in found.items() if verdict.passed} == {}
    assert "stopped after 2 s" in found["endless trace"].cases[0].problem
    assert "stopped after 2 s" in found["sleeps"].problem


def test_attempts_that_come_to_nothing_change_no_verdict(tmp_path):
    found = verdicts_on(tmp_path, given.HARMLESS)
    assert [name for name, verdict in found.items() if not verdict.passed] == []


def test_a_submission_has_no_network_and_cannot_see_or_change_files(tmp_path):
    if not isolation():
        pytest.skip("this system has no namespaces for submissions")
    task = write_task(tmp_path / "task")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reached = threading.Event()
        threading.Thread(target=lambda: (server.accept(), reached.set()), daemon=True).start()
        tries = {
            "network": f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
            "reads the task": f"print(open({str(task / 'task.py')!r}).read())",
            "writes the task": f"open({str(task / 'task.py')!r}, 'w').write('')",
            "writes elsewhere": f"open({str(tmp_path / 'x')!r}, 'w').write('')",
            "reads its parent": "print(open(f'/proc/{os.getppid()}/environ').read())",
            "unmounts": given.UNMOUNT.format(task=str(task)),
        }
        sources = {name: given.at_import(code) for name, code in tries.items()}
        found = verdicts_on(tmp_path, sources)
        assert not reached.is_set()
    for name in ("network", "reads the task", "writes the task", "writes elsewhere", "reads its parent"):
        assert "Error" in found[name].problem, (name, found[name].problem)
    assert "[-1, -1] []" in found["unmounts"].printed  # refused, and the folder stays empty
    assert not (tmp_path / "x").exists() and "reference" in (task / "task.py").read_text()
    assert {"no network", "hidden task"} <= set(found["network"].enforced)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"{}\n",
        b'{"bytes": 5}\nab',
        b'{"bytes": -1}\n',
        b'{"bytes": true}\n',
        b"[" * 100_000 + b"\n",
        b"[]\n",
    ],
)
def test_a_damaged_answer_is_an_error(data):
    with pytest.raises(ValueError):
        list(messages(data))


@pytest.mark.skipif(not sandbox.FORKS, reason="children are new processes")
def test_a_server_that_was_killed_is_started_again(tmp_path):
    server = sandbox.server().process
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    assert verdicts_on(tmp_path, {"right": given.RIGHT})["right"].passed


@pytest.mark.parametrize("forks", [True, False] if sandbox.FORKS else [False])
def test_without_namespaces_the_limits_hold(tmp_path, monkeypatch, forks):
    monkeypatch.setattr(sandbox, "FORKS", forks)
    monkeypatch.setattr(sandbox, "isolation", lambda: False)
    hostile = {name: given.HOSTILE[name] for name in ("exits at import", "much memory", "kills its parent")}
    found = verdicts_on(tmp_path, {"right": given.RIGHT, **(hostile if forks else {})})
    assert [name for name, verdict in found.items() if verdict.passed] == ["right"]
    assert "no network" not in found["right"].enforced and "memory" in found["right"].enforced


def test_no_process_is_left_behind(tmp_path):
    marker = f"nki_left_{os.getpid()}"
    sleeper = f"import time; time.sleep(60) # {marker}"
    code = f"import subprocess\nsubprocess.Popen([sys.executable, '-c', {sleeper!r}])"
    verdicts_on(tmp_path, {"daemon": given.at_import(code)})
    if os.path.isdir("/proc") and isolation():
        assert marker not in "".join(p.read_text() for p in Path("/proc").glob("[0-9]*/cmdline"))


# ---- many, pages, the command --------------------------------------------------------------------


def run(capsys, *words):
    code = main(["grade", *map(str, words)])
    return code, *capsys.readouterr()


def test_the_command_grades_resumes_and_writes_pages(tmp_path, capsys):
    task = write_task(tmp_path / "task")
    files = write(tmp_path / "s", {"right": given.RIGHT, "html": given.WRONG["names of HTML"]})
    results, pages = tmp_path / "r.jsonl", tmp_path / "pages"
    words = (task, tmp_path / "s", "--results", results, "--html", pages, "--jobs", 2)
    code, out, err = run(capsys, *words)
    assert code == 1 and "passed" in out and "failed" in out and "2 of 2" in err
    assert all(len(line) <= 100 for line in out.splitlines() if str(tmp_path) not in line)
    results.write_text(results.read_text().splitlines()[0] + "\n{cut off")
    code, out, err = run(capsys, *words)
    assert code == 1 and err.count(" of 2: ") == 1  # one was known
    texts = [p.read_text() for p in sorted(pages.iterdir())]
    assert len(texts) == 3 and not any("<script>" in text for text in texts)
    code, out, _ = run(capsys, task, files["right"], "--json")
    assert code == 0 and json.loads(out)["passed"] is True
    assert run(capsys, "nowhere", files["right"])[0] == 2


def test_a_leaderboard_is_ordered_by_points_and_then_by_time():
    def made(name, earned, us):
        task = Task("t", "k", len, [Case("c", {})])
        verdict = Verdict("t", name, "trn2")
        from nki_grading.grade import _empty

        verdict.cases = [_empty(case) for case in task.cases]
        verdict.cases[0].earned, verdict.cases[0].us = earned, us
        return verdict

    board = leaderboard([made("slow", 1, 9.0), made("wrong", 0, 1.0), made("fast", 1, 2.0)])
    assert [verdict.submission for verdict in board] == ["fast", "slow", "wrong"]
    text = leaderboard_page("<t>", board)
    assert text.index("fast") < text.index("slow") and "&lt;t&gt;" in text and "<t>" not in text
    assert "fast" in page(board[0])
