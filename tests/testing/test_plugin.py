"""The pytest plugin: its fixtures, budgets, snapshots, and that it costs next to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

KERNEL = """
    import numpy as np
    import pytest
    import nki
    import nki.isa as nisa
    import nki.language as nl

    STEPS = {steps}

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        for _ in range(STEPS):
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        nisa.dma_copy(out, tile)
        return out

    X = np.ones((128, 512), np.float32)
"""

ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # what else is installed takes longer than these suites


@pytest.fixture
def suite(tmp_path):
    """Runs pytest on a test file of its own; returns (exit code, output)."""

    def run(text, *options, steps=1, name="test_it.py"):
        body = textwrap.dedent(KERNEL).format(steps=steps) + textwrap.dedent(text)
        (tmp_path / name).write_text(body)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "nki_pytest", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-W", "ignore", *options, str(tmp_path / name)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2", **ALONE},
        )
        return done.returncode, done.stdout + done.stderr

    run.folder = tmp_path
    return run


def test_fixtures_for_platforms_strict_mode_cores_and_caches(suite):
    code, out = suite(
        """
        def test_targets(nki_target):
            import os
            assert os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] == nki_target
            assert kernel.trace(nki.TensorSpec((128, 512), "float32")).machine.name == nki_target

        @pytest.mark.nki_targets("trn3")
        def test_one_target(nki_target):
            assert nki_target == "trn3"

        @nki.jit
        def forgets(x):
            nisa.dma_copy(x, nl.ndarray(x.shape, x.dtype))

        def test_strict(nki_strict):
            with pytest.raises(nki.NkiError):
                forgets(X.copy())

        def test_not_strict():
            forgets(X.copy())

        def test_cores(nki_cores):
            assert nki_cores in (1, 2)

        def test_caches(nki_fresh_caches):
            import os
            assert "nki-cache" in os.environ["OPEN_NKI_CACHE_DIR"]
            kernel(X)
        """,
    )
    assert code == 0, out
    assert f"{3 + 1 + 1 + 1 + 2 + 1} passed" in out


def test_the_command_line_chooses_platforms_and_strict_mode(suite):
    code, out = suite("def test_targets(nki_target): pass", "--nki-targets", "trn1,trn2")
    assert code == 0 and "2 passed" in out
    text = """
        @nki.jit
        def forgets(x):
            nisa.dma_copy(x, nl.ndarray(x.shape, x.dtype))

        def test_forgets():
            forgets(X.copy())
    """
    assert suite(text)[0] == 0
    assert suite(text, "--nki-strict")[0] == 1


def test_budgets_of_time_and_memory(suite):
    text = """
        @pytest.mark.nki_budget(us={us}, sbuf="{sbuf}")
        def test_cost():
            kernel(X)
    """
    assert suite(text.format(us=1000, sbuf="1 MiB"))[0] == 0
    code, out = suite(text.format(us=1, sbuf="1 MiB"))
    assert code == 1 and "its budget is 1 us" in out and "kernel(float32[128, 512]) on trn2 takes" in out
    assert "nisa." in out, "the lines that take the time"
    code, out = suite(text.format(us=1000, sbuf="1 KiB"))
    assert code == 1 and "needs 262,144 bytes of SBUF, its budget is 1,024" in out


def test_a_budget_without_a_kernel_is_an_error(suite):
    code, out = suite("@pytest.mark.nki_budget(us=1)\ndef test_cost(): pass")
    assert code == 1 and "calls no kernel" in out


def test_snapshots_fail_with_the_lines_that_got_slower(suite):
    text = """
        @pytest.mark.nki_snapshot(slower="3%")
        def test_cost():
            kernel(X)
    """
    code, out = suite(text)
    assert code == 1 and "no snapshot" in out and "--nki-update" in out
    assert suite(text, "--nki-update")[0] == 0
    kept = json.loads((suite.folder / "__nki__" / "test_it.json").read_text())
    assert list(kept["tests"]) == ["test_cost"]
    assert suite(text)[0] == 0
    code, out = suite(text, steps=20)
    assert code == 1 and "% slower" in out and "nisa.tensor_scalar(tile, tile, nl.add, 1.0)" in out
    assert suite(text, steps=0)[0] == 0, "faster is fine"
    assert suite(text, "--nki-update", steps=20)[0] == 0 and suite(text, steps=20)[0] == 0
    (suite.folder / "__nki__" / "test_it.json").write_text("{}")
    assert "is not a file of costs" in suite(text)[1]


def test_the_plugin_imports_nothing_of_nki_until_it_is_needed():
    code = "import nki_pytest, sys; print(*[m for m in sys.modules if m.split('.')[0] in ('nki', 'numpy')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_an_empty_suite_takes_at_most_30_ms_more(tmp_path):
    def seconds(*options):
        """Of the processor: other people's work does not count."""
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
        times = []
        for _ in range(7):
            begin = os.times()
            subprocess.run([*command, str(tmp_path)], capture_output=True, cwd=tmp_path)
            end = os.times()
            times.append(sum(end[2:4]) - sum(begin[2:4]))
        return min(times)

    assert seconds("-p", "nki_pytest") - seconds("-p", "no:nki_pytest") < 0.030


def test_compare_fails_when_slower(tmp_path, capsys):
    from nki.cli import main

    for name, steps in (("fast", 1), ("slow", 40)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(KERNEL).format(steps=steps))
        spec = f"{tmp_path / name}.py:kernel"
        arguments = ["--arg", "x=float32[128,512]", "--save", f"{tmp_path / name}.json"]
        assert main(["profile", spec, *arguments]) == 0
    fast, slow = f"{tmp_path / 'fast'}.json", f"{tmp_path / 'slow'}.json"
    assert main(["compare", fast, slow]) == 0
    assert main(["compare", fast, slow, "--fail-if-slower", "3%"]) == 1
    assert "slower, 3% are allowed" in capsys.readouterr().err
    assert main(["compare", slow, fast, "--fail-if-slower", "3%"]) == 0
    assert main(["compare", fast, fast, "--fail-if-slower", "0"]) == 0
    assert main(["compare", fast, slow, "--fail-if-slower", "much"]) == 2
    assert Path(fast).exists()
