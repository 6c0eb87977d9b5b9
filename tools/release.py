"""`make release`: build wheel and sdist in dist/ and check them in a new environment. Uploads nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
NAME = "open-nki"
LARGEST = 1_400_000  # bytes of the wheel: source alone, a third of it the kernel library
ROOTS = {"nki", "nkilib", "open_nki", "trnblas"}  # and nki_*: what the wheel may install


def run(*command: object, cwd: Path = ROOT) -> str:
    print("$", *command)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}  # no sources of ours
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{done.stderr}")
    return done.stdout


def check_versions() -> str:
    """Check that all files have the same version."""
    version = re.search(r'PACKAGE = "(.*)"', (ROOT / "src/nki/version.py").read_text())[1]  # type: ignore[index]
    for name, pattern in (("CITATION.cff", rf"^version: {version}$"), ("CHANGELOG.md", rf"^## {version}\b")):
        if not re.search(pattern, (ROOT / name).read_text(), re.MULTILINE):
            raise SystemExit(f"{name} does not speak of {version}")
    return version


def check_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    roots = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    unknown = {root for root in roots if root not in ROOTS and not root.startswith("nki_")}
    if unknown:
        raise SystemExit(f"the wheel would install {', '.join(sorted(unknown))}")
    pages = [f"nki/report/page/{name}.html" for name in ("page", "viewer", "compare")]
    for needed in ("nki/py.typed", *pages, "nki_legacy/stubs/children/sitecustomize.py"):
        if needed not in names:
            raise SystemExit(f"the wheel lacks {needed}")
    if wheel.stat().st_size > LARGEST:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size:,} bytes; at most {LARGEST:,} are allowed")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {len(names)} files")


def check_installed(artefact: Path, version: str) -> None:
    """Check import, commands and demo in an empty environment, away from the sources."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run(sys.executable, "-m", "venv", home / "env")
        python = home / "env" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", artefact, cwd=home)
        run(python, "-c", "import nki, nki.isa, nki.language, nkilib; print(nki.__version__)", cwd=home)
        for command in ("nki", "open-nki"):
            run(home / "env" / "bin" / command, "info", cwd=home)
            said = run(home / "env" / "bin" / command, "doctor", cwd=home)
            if f"nki: {NAME} {version}, in {home.resolve()}" not in said:
                raise SystemExit(f"{command} doctor does not find {artefact.name}:\n{said}")
        shutil.copytree(ROOT / "examples" / "matmul", home / "matmul")
        size = (256, 256, 512)
        run(python, home / "matmul" / "demo.py", "--size", *size, "--model-size", *size, cwd=home)


def main() -> int:
    version = check_versions()
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    artefacts = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *artefacts)
    for artefact in artefacts:
        if artefact.suffix == ".whl":
            check_wheel(artefact)
        check_installed(artefact, version)
    print(f"{version} is ready: {', '.join(a.name for a in artefacts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
