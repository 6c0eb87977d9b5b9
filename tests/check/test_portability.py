"""`nki check --for aws-0.5`: the tables of releases.md; each row is reported, in its releases alone."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import release_kernels

import nki.collectives
import nki.isa
import nki.language
from nki.check import portability
from nki.check.findings import CheckFinding
from nki.check.pages import PAGES, PRELUDE, SECTIONS
from nki.check.release_conditions import CONDITIONS
from nki.check.releases import ERRORS, NAMES, SILENT, WARNINGS, changes, error_codes
from nki.cli import main
from nki.cli.docs import release_page
from nki.options import RELEASES

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks
SAMPLES = SECTIONS["Releases of AWS's NKI"]
API = json.loads((ROOT / "tests" / "data" / "documented_api.json").read_text())
SOURCE = r"notes 0\.\d [A-Z]\w+( [A-Z]\w+)?|stub v2\.\d\d\.0"
IN_SOURCE = {"[while register]": "while", "[frozen NKIObject]": "frozen"}
REMOVED = {subject for change in changes() if change.how == "removed" for subject in change.subjects}
ROWS = [pytest.param(change, id=f"{change.section} {change.what[:40]}") for change in changes()]
REPORTED = [
    pytest.param(change, subject, id=f"{subject} {change.releases}")
    for change in changes()
    for subject in change.subjects
    if change.how not in SILENT
]


# ---- the tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ROWS)
def test_a_row_has_releases_a_way_to_report_it_and_a_source(change):
    assert re.fullmatch(r"all|(<|>=|)0\.[3-6]", change.releases)
    assert change.how in {*ERRORS, *WARNINGS, *SILENT}
    assert re.fullmatch(SOURCE, change.source), change.source
    assert change.subjects or change.how in SILENT
    assert change.what or change.how in ("missing", "removed", "extension")


def resolve(name):
    first, *rest = name.split(".")
    value = nki if first == "nki" else nki.language.NkiTensor
    for part in rest:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(("change", "subject"), REPORTED)
def test_a_subject_exists(change, subject):
    if subject.startswith("["):
        assert subject in CONDITIONS or subject in IN_SOURCE or subject == "[list as argument]"
    elif subject.startswith("{"):
        assert subject[1:-1] in PAGES
    elif subject not in REMOVED:
        name, argument = re.fullmatch(r"([\w.]+)(?:\((\w*).*\))?", subject).groups()
        found = resolve(name)
        assert not argument or argument in inspect.signature(found).parameters or name == "nki.jit"


def test_every_condition_is_used_and_has_a_kernel():
    used = {subject for change in changes() for subject in change.subjects}
    assert set(CONDITIONS) <= used
    assert set(release_kernels.CASES) == set(CONDITIONS)


@pytest.mark.parametrize("module", ["nki.language", "nki.isa", "nki.collectives"])
def test_a_name_that_is_not_documented_is_an_extension(module):
    extensions = {s for change in changes() if change.how == "extension" for s in change.subjects}
    documented = {name for names in API[module].values() for name in names}
    ours = set(importlib.import_module(module).__all__) - documented - {"constants"}
    assert {f"{module}.{name}" for name in ours} <= extensions


@pytest.mark.parametrize("module", ["nki.language", "nki.isa", "nki.collectives"])
def test_the_tables_give_the_documented_parameters_of_the_newest_release(module):
    from benchmarks.portability import expected

    documented = {name: [p for p, _ in given] for name, given in API[module]["functions"].items()}
    assert {
        name: names for name, names in expected(module, RELEASES[-1]).items() if name in documented
    } == documented


def test_an_error_code_belongs_to_a_kind_and_names_its_page():
    for code in error_codes():
        assert code.kind in PAGES
        assert re.fullmatch(r"errors E[A-Z]{3}\d{3}", code.source)
        assert code.code == f"NCC_{code.source.removeprefix('errors ')}"


@pytest.mark.tiny
def test_the_page_of_changes_matches_the_tables():
    assert (ROOT / "docs" / "release-changes.md").read_text() == release_page(), "run `make docs`"


# ---- every row is reported, in its releases alone -----------------------------------------------


def source_of(subject):
    """A kernel that uses a name, an argument, a method or a construct."""
    if subject == "[while register]":
        body = "r = nisa.register_alloc(1)\nwhile r:\n    nisa.register_move(r, 0)"
    elif subject == "[frozen NKIObject]":
        body = "made = Frozen(1)"
    elif subject.startswith("nki.jit("):
        return f"@nki.jit({subject[8:-1]}='trn2')\ndef kernel(x):\n    return x\n"
    elif subject.startswith("NkiTensor."):
        body = f"y = x.{subject.removeprefix('NkiTensor.')}"
    else:
        name, parentheses, argument = subject.rstrip(")").partition("(")
        given = (
            argument.replace("=number", "=2.0") if "=" in argument else f"{argument}=x" if argument else ""
        )
        body = f"y = {name}({given})" if parentheses else f"y = {name}"
    return f"@nki.jit\ndef kernel(x):\n{textwrap.indent(body, '    ')}\n    return x\n"


HEAD = """
import nki.collectives
from dataclasses import dataclass

@dataclass(frozen=True)
class Frozen(nl.NKIObject):
    n: int

"""


def load(path, source):
    """The kernel of a module; its classes are found in `sys.modules`, as those of an import are."""
    path.write_text(PRELUDE + HEAD + source)
    spec = importlib.util.spec_from_file_location(f"portable_{abs(hash(source))}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def found_by_release(subject, tmp_path):
    """(kind, message) of what each release reports of a kernel with the subject."""
    if subject.startswith("{"):
        finding = CheckFinding(subject[1:-1], "none", "", "file.py", 1)
        return {r: [(portability.as_seen_by(r, finding).level, "")] for r in RELEASES}
    if subject in CONDITIONS:
        body = release_kernels.CASES[subject]
        shown = [r for r in RELEASES if subject != "[transpose into another rank]" or r == "0.3"]
        told = {r: portability.of_call(release_kernels.traced(body, r), [], r) for r in shown}
        return {r: [(d.kind, d.message) for d, _ in found] for r, found in told.items()}
    if subject == "[list as argument]":
        program = release_kernels.traced(release_kernels.float_to_integer, "0.6")
        told = {r: portability.of_call(program, [[1, 2]], r) for r in RELEASES}
        return {r: [(d.kind, d.message) for d, _ in found] for r, found in told.items()}
    kernel = load(tmp_path / "kernel.py", source_of(subject))
    return {r: [(f.kind, f.message) for f in portability.of_source(kernel, r, {})] for r in RELEASES}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("change", "subject"), REPORTED)
def test_a_row_is_reported_in_its_releases_alone(change, subject, tmp_path):
    for release, found in found_by_release(subject, tmp_path).items():
        if subject.startswith("{"):
            levels = {c.level for c in changes() if subject in c.subjects and c.holds_in(release)}
            wanted = {c.how for c in changes() if subject in c.subjects and c.holds_in(release)} - set(SILENT)
            assert {level for level, _ in found} == (levels if wanted else {"none"})
        else:
            told = (change.kind, change.message(subject.replace("=None", "").replace("=number", ""), release))
            assert (told in found) == change.holds_in(release), release


@pytest.mark.parametrize("release", RELEASES)
def test_a_plain_kernel_passes_for_every_release(release):
    assert list(portability.of_source(release_kernels.plain, release, {})) == []
    with nki.options(target="trn2", api=release):
        program = release_kernels.plain.trace(release_kernels.X)
    assert list(portability.of_call(program, [], release)) == []


# ---- the command ---------------------------------------------------------------------------------


def check(tmp_path, capsys, code, *arguments):
    """(exit status, kinds) of `nki check` on a kernel's code."""
    file = tmp_path / "sample.py"
    file.write_text(PRELUDE + code.replace("kernel(np.ones((128, 512), np.float32))", ""))
    capsys.readouterr()
    status = main(["check", str(file), "--json", *arguments])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return status, findings


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_samples_of_a_page_are_reported_as_it_says(kind, tmp_path, capsys):
    page = SAMPLES[kind]
    release = re.search(r"# nki check --for (\S+)", page.wrong)[1]
    status, found = check(tmp_path, capsys, page.wrong_code, "--for", release)
    assert kind in [one["kind"] for one in found]
    assert status == (kind.removeprefix("release-") in ERRORS)
    _, found = check(tmp_path, capsys, page.right_code, "--for", release)
    assert kind not in [one["kind"] for one in found]


def test_without_a_release_nothing_of_releases_is_reported(tmp_path, capsys):
    status, found = check(tmp_path, capsys, SAMPLES["release-missing"].wrong_code)
    assert (status, found) == (0, [])


def test_a_finding_names_its_source_the_remedy_and_an_error_code_of_aws(tmp_path, capsys):
    call = "# nki: check x=float32[128,512] lnc=2"
    code = f"@nki.jit\ndef kernel(x):\n    {call}\n    nisa.memset(x, 1 << 40)\n    return x\n"
    _, found = check(tmp_path, capsys, code, "--for", "aws-0.5", "--target", "trn1")
    notes = {one["kind"]: one["notes"] for one in found}
    assert any("NCC_ESFH002" in note for note in notes["py-big-int"])
    assert any("NCC_EARG001" in note for note in notes["launch-grid"])
    _, (one,) = check(tmp_path, capsys, SAMPLES["release-missing"].wrong_code, "--for", "aws-0.5")
    assert "source: notes 0.6 New Features" in one["notes"]
    assert one["help"].startswith("use `nisa.max8`")


def test_an_unknown_release_is_refused_with_the_known_ones(capsys):
    assert main(["check", "x.py", "--for", "aws-9.9"]) == 2
    told = capsys.readouterr().err
    assert all(name in told for name in NAMES)
