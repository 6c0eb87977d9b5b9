"""Open NKI and dummies of AWS's distributions in one environment: the reports, and repairs that repair."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pip = pytest.importorskip("pip")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="scripts are in another folder")

SOURCES = Path(__file__).parents[2] / "src"
PYTHON = {
    "nki/__init__.py": "from open_nki import checked\n",
    "nki/cli/__init__.py": "def main():\n    print('cli')\n",
}
OPEN_NKI = {
    **{f"open_nki/{path.name}": path.read_text() for path in (SOURCES / "open_nki").glob("*.py")},
    **PYTHON,
    "nki/isa/__init__.py": "ours = True\n",
    "nki/version.py": "",
    "nkilib/__init__.py": "",
    "trnblas/__init__.py": "from open_nki import check_import\n\ncheck_import('trnblas')\n",
}
AWS_NKI = {"nki/__init__.py": "", "nki/isa/__init__.py": "aws = True\n", "nki/compiler/driver.py": ""}
LIBRARY = {"nkilib/__init__.py": "", "nkilib/core/attention.py": ""}
NEWER = {**AWS_NKI, "nki/isa/newer.py": ""}
SCRIPT = "[console_scripts]\nnki = open_nki.__main__:main\nopen-nki = open_nki.__main__:main\n"


def wheel(folder: Path, name: str, version: str, files: dict[str, str], scripts: str = "") -> Path:
    """Write a wheel by hand and return its path."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": scripts,
    }
    rows = [f"{path},sha256={digest(text)},{len(text.encode())}" for path, text in files.items()]
    made = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return made


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("0.2.0", "0.3.0"):
        wheel(folder, "open-nki", version, OPEN_NKI, SCRIPT)
    wheel(folder, "nki", "0.6.0", AWS_NKI, "[console_scripts]\nnki = nki.compiler.driver:main\n")
    wheel(folder, "nki", "0.7.0", NEWER)
    wheel(folder, "nki-library", "1.0", LIBRARY)
    wheel(folder, "trnblas", "0.5.4", {"trnblas/__init__.py": "published = True\n"})
    wheel(folder, "neuronx-cc", "2.21", {"neuronxcc/__init__.py": ""})
    return folder


def environment(**more: str) -> dict[str, str]:
    dropped = ("PYTHONPATH", "PYTHONHOME", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
    return {k: v for k, v in os.environ.items() if k not in dropped} | more


class Environment:
    """A virtual environment, changed by the pip of the environment that runs the tests."""

    def __init__(self, folder: Path, wheels: Path):
        self.folder, self.wheels = folder, wheels
        self.python = folder / "bin" / "python"

    def pip(self, *arguments: str) -> None:
        options = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_NO_COMPILE": "1"}
        here = str(Path(pip.__file__).parent / "__pip-runner__.py")  # which `pip --python` starts
        command = [str(self.python), here, "--disable-pip-version-check", "-q", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(**options))
        assert done.returncode == 0, done.stderr

    def install(self, name: str) -> None:
        """Install a wheel, ours by its file, as no index has it."""
        if name.startswith("open-nki"):
            self.pip("install", str(self.wheels / f"open_nki-{name.partition('==')[2]}-py3-none-any.whl"))
        else:
            self.pip("install", name)

    def run(self, *command: str, path: str = "") -> subprocess.CompletedProcess:
        program = [str(self.python), *command]
        settings = environment(PYTHONDONTWRITEBYTECODE="1", **({"PYTHONPATH": path} if path else {}))
        return subprocess.run(program, capture_output=True, text=True, env=settings)

    def doctor(self) -> dict:
        """Return the report of a checkout's doctor: it also works where Open NKI was uninstalled."""
        done = self.run("-m", "open_nki", "doctor", "--json", path=str(self.checkout))
        report = json.loads(done.stdout)
        assert done.returncode == (1 if report["problems"] else 0), done.stderr
        return report

    @property
    def checkout(self) -> Path:
        """A folder with open_nki alone, so that the environment's own packages are found."""
        folder = self.wheels / "checkout"
        if not folder.exists():
            shutil.copytree(SOURCES / "open_nki", folder / "open_nki")
        return folder

    def repair(self, keeps: str) -> None:
        """Run the commands that keep a distribution."""
        (found,) = [r for r in self.doctor()["repairs"] if r["keeps"].startswith(keeps)]
        for command in found["commands"]:
            assert command[:3] == ["pip", "--python", str(self.python)]
            self.pip(*command[3:])

    def copy(self, folder: Path) -> Environment:
        shutil.copytree(self.folder, folder, symlinks=True)
        return Environment(folder, self.wheels)


OURS, AWS = "open-nki==0.2.0", "nki==0.6.0"
ORDERS = {"ours first": (OURS, AWS), "AWS's first": (AWS, OURS)}


@pytest.fixture(scope="module", params=["AWS's first", pytest.param("ours first", marks=pytest.mark.slow)])
def both(request, tmp_path_factory, wheels):
    """Both distributions in one environment, installed in either order."""
    folder = tmp_path_factory.mktemp("both") / "env"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, env=environment()
    )
    made = Environment(folder, wheels)
    for name in ORDERS[request.param]:
        made.install(name)
    return made, request.param


def kinds(report: dict) -> set[tuple[str, str]]:
    return {(problem["kind"], problem["package"]) for problem in report["problems"]}


def test_a_mixed_environment_is_explained_by_doctor_commands_and_import(both):
    env, order = both
    report = env.doctor()
    assert kinds(report) == {("mixed", "nki")}
    assert "open-nki 0.2.0" in report["packages"]["nki"] and "nki 0.6.0" in report["packages"]["nki"]
    assert [repair["keeps"] for repair in report["repairs"]] == ["Open NKI", "nki 0.6.0"]
    for command in (["doctor"], ["profile", "x.py"]):
        done = env.run("-m", "open_nki", *command)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and "mixed: nki: " in said and "pip --python" in said
    script = subprocess.run([env.folder / "bin" / "open-nki", "info"], capture_output=True, text=True)
    assert script.returncode == 1 and "mixed: nki: " in script.stderr
    imported = env.run("-c", "import nki")
    if order == "ours first":  # AWS's file is on top: nothing of ours runs
        assert imported.returncode == 0
    else:
        assert (
            "ImportError: mixed: nki: " in imported.stderr and "uninstall -y nki open-nki" in imported.stderr
        )


def check_repaired(env: Environment, keeps: str, version: str) -> None:
    env.repair(keeps)
    report = env.doctor()
    assert report["problems"] == [] and report["packages"]["nki"].startswith(version)
    assert env.run("-c", "import nki, nki.isa").returncode == 0
    if keeps == "Open NKI":
        assert env.run("-m", "open_nki", "info").stdout == "cli\n" and "nkilib" in report["packages"]
    else:
        assert env.run("-c", "import open_nki").returncode == 1


@pytest.mark.parametrize("keeps, version", [("Open NKI", "open-nki 0.2.0"), ("nki", "nki 0.6.0")])
def test_a_mixed_environment_is_repaired(both, tmp_path, keeps, version):
    check_repaired(both[0].copy(tmp_path / "env"), keeps, version)


@pytest.mark.parametrize(
    "upgrade, keeps, version",
    [("open-nki==0.3.0", "nki", "nki 0.6.0"), ("nki==0.7.0", "Open NKI", "open-nki 0.2.0")],
)
@pytest.mark.slow
def test_an_upgrade_of_either_is_explained_and_repaired(both, tmp_path, upgrade, keeps, version):
    env = both[0].copy(tmp_path / "env")
    env.install(upgrade)
    report = env.doctor()
    assert kinds(report) == {("mixed", "nki")}
    assert upgrade.replace("==", " ") in report["packages"]["nki"]
    check_repaired(env, keeps, version)


@pytest.mark.parametrize(
    "gone, keeps, version", [("open-nki", "nki", "nki 0.6.0"), ("nki", "Open NKI", "open-nki 0.2.0")]
)
def test_what_uninstalling_either_breaks_is_explained_and_repaired(both, tmp_path, gone, keeps, version):
    env = both[0].copy(tmp_path / "env")
    env.pip("uninstall", "-y", gone)
    report = env.doctor()
    assert kinds(report) == {("damaged", "nki")} and "nki/__init__.py" in report["problems"][0]["text"]
    if gone == "nki":
        done = env.run("-m", "open_nki", "info")
        assert done.returncode == 1 and "damaged: nki: open-nki 0.2.0" in done.stderr
    check_repaired(env, keeps, version)


# ---- folders, without pip ------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, wheels):
    """Return folder(name, ...): wheels unpacked over each other, as pip does."""

    def unpack(*names: str, into: str = "site") -> Path:
        for name in names:
            with zipfile.ZipFile(min(wheels.glob(f"{name}-*.whl"))) as archive:
                archive.extractall(tmp_path / into)
        return tmp_path / into

    return unpack


def doctor(*path: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "open_nki", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=os.pathsep.join(map(str, path))),
    )
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["problems"] else 0)
    return report


def imported(path: Path, *names: str) -> str:
    """Return the error of importing these packages, which is empty if there is none."""
    command = [sys.executable, "-S", "-c", f"import {', '.join(names)}"]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(PYTHONPATH=str(path))
    ).stderr


def test_one_distribution_alone_is_right(folder):
    site = folder("open_nki")
    assert doctor(site) == {
        "packages": {name: f"open-nki 0.2.0, in {site}" for name in ("nki", "nkilib", "trnblas")},
        "problems": [],
        "repairs": [],
    }
    assert imported(site, "nki", "trnblas") == ""


def test_packages_that_only_one_has_are_no_problem(folder):
    site = folder("open_nki", "neuronx_cc")
    report = doctor(site)
    assert report["problems"] == [] and report["packages"]["neuronxcc"] == f"neuronx-cc 2.21, in {site}"
    assert imported(site, "nki", "neuronxcc") == ""


@pytest.mark.parametrize("other, package", [("nki_library", "nkilib"), ("trnblas", "trnblas")])
def test_the_other_packages_are_compared_too(folder, other, package):
    site = folder(other, "open_nki")
    assert kinds(doctor(site)) == {("mixed", package)}
    failing = {"nkilib": "nki", "trnblas": "trnblas"}[package]  # nkilib imports nki
    assert f"ImportError: mixed: {package}: " in imported(site, failing)
    assert package == "nkilib" or imported(site, "nki") == ""


def test_the_real_package_refuses_a_mixed_folder(folder):
    site = folder("nki", "open_nki")
    shutil.copy(SOURCES / "nki" / "__init__.py", site / "nki")
    assert "ImportError: mixed: nki: " in imported(site, "nki")


def test_an_edited_or_lost_file_is_found(folder):
    site = folder("open_nki")
    (site / "nki" / "version.py").write_text("changed")
    (site / "nki" / "isa" / "__init__.py").unlink()
    (problem,) = doctor(site)["problems"]
    assert problem["kind"] == "damaged"
    assert "1 missing (nki/isa/__init__.py), 1 overwritten (nki/version.py)" in problem["text"]


def test_a_second_folder_is_an_error_only_if_it_hides_open_nki(folder):
    ours, others = folder("open_nki", into="ours"), folder("nki", into="others")
    report = doctor(ours, others)
    assert report["problems"] == []
    assert report["packages"]["nki"] == f"open-nki 0.2.0, in {ours}; also installed, not imported: nki 0.6.0"
    assert kinds(doctor(others, ours)) == {("hidden", "nki")}


@pytest.mark.parametrize("kind", ["pth", "finder"])
def test_an_editable_installation_behind_another_distribution_is_hidden(tmp_path, folder, kind):
    sources, site = folder("open_nki", into="checkout"), folder("nki")
    shutil.rmtree(next(sources.glob("*.dist-info")))
    info = site / "open_nki-0.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: open_nki\nVersion: 0.2.0\n")
    url = (tmp_path / "checkout").as_uri()
    (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    lines = {"__editable__.open_nki-0.2.0.pth": f"{sources}\n"}
    if kind == "finder":
        mapping = {"nki": str(sources / "nki"), "open_nki": str(sources / "open_nki")}
        lines = {
            "__editable__.open_nki-0.2.0.pth": "import __editable___open_nki_0_2_0_finder\n",
            "__editable___open_nki_0_2_0_finder.py": f"MAPPING: dict[str, str] = {mapping!r}\n",
        }
    for name, text in lines.items():
        (site / name).write_text(text)
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in lines))
    report = doctor(site, sources)
    assert kinds(report) == {("hidden", "nki")}
    assert report["repairs"][0]["commands"][1][-2:] == ["-e", url]
    assert doctor(sources, site)["packages"]["nki"].startswith("open-nki 0.2.0 (editable), in ")


def test_the_check_at_import_reads_no_metadata_without_a_suspect(folder):
    code = "import open_nki.checked, sys; print('importlib.metadata' in sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    settings = environment(PYTHONPATH=str(folder("open_nki")))
    assert subprocess.run(command, capture_output=True, text=True, env=settings).stdout == "False\n"


# ---- this environment ----------------------------------------------------------------------------


def test_the_command_and_info_report_this_installation(capsys):
    from nki.cli import main

    assert main(["doctor"]) == 0
    assert "nki: " in (said := capsys.readouterr().out) and "nothing is wrong" in said
    assert main(["info", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["installation"]["packages"]) >= {
        "nki",
        "nkilib",
        "trnblas",
    }
    assert main(["info"]) == 0 and "nkilib: " in capsys.readouterr().out
