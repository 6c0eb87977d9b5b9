"""`nki check` for people and machines, and `nki explain`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nki.cli.explaining
from nki.check.pages import PAGES
from nki.cli import main

ROOT = Path(__file__).parents[2]
SCRIPT = """
    import nki
    import nki.isa as nisa
    import nki.language as nl

    @nki.jit
    def race(x):
        # nki: check x=float32[128,512] lnc=2
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        nisa.dma_copy(out, x)
        return out

    @nki.jit
    def good(x, times=1):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        nisa.dma_copy(out, x)
        return out
"""
GEN3 = """
    import nki
    import nki.isa as nisa
    import nki.language as nl

    @nki.jit
    def modern(x):
        # nki: check x=float32[128,512]
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        nisa.dma_copy(out, x, dge_mode=nisa.dge_mode.hwdge)
        return out
"""
X = ["--arg", "x=float32[128,512]"]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A script in a fresh directory, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")

    def make(text=SCRIPT, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    return make


@pytest.fixture
def run(capsys):
    def call(*argv):
        capsys.readouterr()
        code = main(list(map(str, argv)))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def findings(result):
    return [(f["kind"], f["level"]) for f in json.loads(result[1])["findings"]]


# ---- what is checked -----------------------------------------------------------------------------


def test_a_race_is_an_error_with_its_line(run, write):
    code, out, _ = run("check", write() + ":race")
    assert code == 1
    assert "NkiError[race]: both cores write 'out'" in out and "script.py:10" in out
    assert "race: 1 error(s), 0 warning(s)" in out


def test_arguments_of_the_command_line_are_traced(run, write):
    assert run("check", write() + ":good", *X)[0] == 0
    assert run("check", write() + ":good", *X, "--lnc", 2)[0] == 1


def test_every_platform_is_asked(run, write):
    code, out, _ = run("check", write(GEN3), "--target", "all", "--json")
    (found,) = json.loads(out)["findings"]
    assert code == 1 and found["kind"] == "generation" and found["targets"] == ["trn1"]
    assert run("check", write(GEN3), "--target", "trn2")[0] == 0
    assert run("check", write(GEN3), "--target", "trn9")[0] == 2


def test_the_same_finding_on_several_platforms_is_reported_once(run, write):
    _, out, _ = run("check", write() + ":race", "--target", "all", "--json")
    found = {f["kind"]: f["targets"] for f in json.loads(out)["findings"]}
    assert found["race"] == ["trn2", "trn3"] and found["launch-grid"] == ["trn1"]


def test_platform_target_is_refused_and_its_successor_named(run, write, monkeypatch):
    text = SCRIPT.replace("    @nki.jit\n    def good", '    @nki.jit(platform_target="trn2")\n    def good')
    code, out, _ = run("check", write(text) + ":good", *X)
    assert code == 1 and "platform_target= was removed in NKI 0.3.0" in out
    assert "NEURON_PLATFORM_TARGET_OVERRIDE=trn2" in out
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    with pytest.raises(nki.NkiError, match="was removed in NKI 0.3.0"):
        nki.jit(lambda x: x, platform_target="trn2")


def test_an_error_of_python_in_a_kernel_is_a_finding(run, write):
    text = SCRIPT.replace("def good(x, times=1):", "def good(x, times=1):\n        times = 1 / 0")
    code, out, _ = run("check", write(text) + ":good", *X, "--json")
    assert code == 1 and ("python-error", "error") in findings((code, out, ""))


# ---- where ---------------------------------------------------------------------------------------


def test_a_directory_is_every_file_with_a_kernel(run, write):
    write(SCRIPT, "kernels/a.py")
    write(GEN3, "kernels/deep/b.py")
    write("raise SystemExit(3)", "kernels/no_kernel.py")
    code, out, _ = run("check", "kernels", "--json")
    assert code == 1 and json.loads(out)["kernels"] == ["race", "good", "modern"]


def test_dotted_modules_are_targets_of_every_command(run, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert run("check", "nkilib.core.cumsum:cumsum")[0] == 0
    arguments = ["--arg", "x=float32[128,512]", "--json"]
    assert json.loads(run("profile", "nkilib.core.cumsum:cumsum", *arguments)[1])["total_us"] > 0
    assert json.loads(run("trace", "nkilib.core.cumsum:cumsum", *arguments)[1])
    assert run("check", "nkilib.core.nowhere:none")[0] == 2


def test_a_directory_with_one_kernel_of_that_name_can_be_profiled(run, write):
    write(SCRIPT, "kernels/a.py")
    write(GEN3, "kernels/b.py")
    assert run("profile", "kernels:modern", *X)[0] == 0
    code, _, err = run("profile", "kernels", *X)
    assert code == 2 and "is a directory" in err


# ---- what is left out ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "code"),
    [
        ("# nki: ignore[race]", 0),
        ("# nki: ignore", 0),
        ("# why  # nki: ignore[capacity, race]", 0),
        ("# nki: ignore[capacity]", 1),
        ("# nki: ignore[]", 1),
    ],
)
def test_a_comment_on_the_line_leaves_a_finding_out(run, write, comment, code):
    text = SCRIPT.replace("nisa.dma_copy(out, x)\n", f"nisa.dma_copy(out, x)  {comment}\n", 1)
    assert run("check", write(text) + ":race")[0] == code


def test_a_baseline_suppresses_earlier_findings(run, write):
    name = write()
    assert run("check", name, "--baseline", "known.json", "--update-baseline")[0] == 0
    code, out, _ = run("check", name, "--baseline", "known.json")
    assert code == 0 and "1 more in the baseline" in out
    moved = SCRIPT.replace("    @nki.jit\n    def race", "    # a line more\n\n    @nki.jit\n    def race")
    assert run("check", write(moved), "--baseline", "known.json")[0] == 0, "lines may move"
    name = write(textwrap.dedent(SCRIPT) + textwrap.dedent(SCRIPT).replace("def race", "def another"))
    assert run("check", name, "--baseline", "known.json")[0] == 1, "a second one is new"


def test_a_wrong_baseline_is_named(run, write):
    name = write()
    Path("known.json").write_text("{}")
    assert run("check", name, "--baseline", "known.json")[0] == 2
    assert run("check", name, "--baseline", "none.json")[0] == 2
    assert run("check", name, "--update-baseline")[0] == 2


# ---- for machines --------------------------------------------------------------------------------


def test_json_is_one_object(run, write):
    code, out, err = run("check", write(), "--json")
    facts = json.loads(out)
    assert code == 1 and facts["errors"] == 1 and facts["kernels"] == ["race", "good"]
    assert facts["findings"][0]["file"] == "script.py" and facts["findings"][0]["line"] == 10
    assert facts["findings"][0]["help"] and facts["findings"][0]["notes"] and err == ""


def test_github_gets_annotations(run, write):
    code, out, _ = run("check", write(), "--github")
    (line,) = out.splitlines()
    assert code == 1 and line.startswith(
        "::error file=script.py,line=10,col=1,title=nki race::both cores write"
    )
    assert "%0A" in line


def test_sarif_has_the_fields_that_the_standard_requires(run, write):
    code, out, _ = run("check", write(), "--sarif", "-")
    log = json.loads(out)
    assert code == 1 and log["version"] == "2.1.0"
    (checked,) = log["runs"]
    rules = [rule["id"] for rule in checked["tool"]["driver"]["rules"]]
    (result,) = checked["results"]
    assert rules[result["ruleIndex"]] == result["ruleId"] == "race" and result["level"] == "error"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "script.py" and place["region"]["startLine"] == 10


@pytest.mark.skipif("SARIF_SCHEMA" not in os.environ, reason="SARIF_SCHEMA names the schema of OASIS")
def test_sarif_is_valid(run, write):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(os.environ["SARIF_SCHEMA"]).read_text())
    for arguments in (["--target", "all"], ["--front-end", "tracer"]):
        log = json.loads(run("check", write(), "--sarif", "-", *arguments)[1])
        jsonschema.validate(log, schema)
    write(GEN3, "other.py")
    run("check", ".", "--sarif", "log.sarif", "--target", "all")
    jsonschema.validate(json.loads(Path("log.sarif").read_text()), schema)


def test_two_formats_for_one_place_are_refused(run, write):
    assert run("check", write(), "--json", "--github")[0] == 2


def test_exit_codes_survive_a_closed_pipe(write):
    name = write()
    command = f"{sys.executable} -m nki check {name} | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", command]).returncode == 1
    command = f"{sys.executable} -m nki check {name}:good | true; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", command]).returncode == 0


# ---- nki explain ---------------------------------------------------------------------------------


def test_explain_prints_a_page(run):
    code, out, _ = run("explain", "race")
    assert code == 0 and "wrong:" in out and "right:" in out and "kernel[2](" in out
    assert run("explain", "NkiError[race]")[1] == out


def test_explain_lists_all_kinds(run):
    code, out, _ = run("explain")
    assert code == 0 and all(f"  {kind}" in out for kind in PAGES)
    assert max(map(len, out.splitlines())) <= 100
    assert set(json.loads(run("explain", "--json")[1])) == set(PAGES)


def test_explain_names_the_nearest_kind(run):
    code, _, err = run("explain", "rase")
    assert code == 2 and "did you mean race?" in err
    facts = json.loads(run("explain", "capacity", "--json")[1])
    assert facts["wrong"] and facts["right"] and facts["meaning"]


def test_the_page_of_kinds_is_what_the_code_says():
    for path, text in nki.cli.explaining.kinds_pages().items():
        assert (ROOT / "docs" / path).read_text() == text, "run `make docs`"
