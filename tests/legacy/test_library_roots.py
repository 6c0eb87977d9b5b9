"""Older import roots of nkilib are names of AWS's packages: stubs provide them, and a real package wins."""

import subprocess
import sys
from pathlib import Path

import pytest

import nkilib

SRC = Path(nkilib.__file__).parents[1]
each_root = pytest.mark.parametrize("root", ["nkilib_src", "nkilib_standalone"])


def python(code, *paths):
    """What a fresh Python prints that finds our packages, those below `paths`, and no other `nkilib_src`."""
    start = f"""
import os, sys
sys.path = [folder for folder in sys.path if not os.path.exists(os.path.join(folder, "nkilib_src"))]
sys.path[:0] = {[str(p) for p in (SRC, *paths)]!r}
"""
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_distribution_has_no_package_of_another_vendor():
    packages = {path.parent.relative_to(SRC).parts[0] for path in SRC.rglob("__init__.py")}
    ours = {"nki", "nki_grading", "nki_legacy", "nki_mcp", "nki_pytest", "nkilib", "open_nki", "trnblas"}
    assert packages == ours


@each_root
def test_older_roots_are_not_found_before_install(root):
    code = f"""
import nki, nkilib, nki_legacy.stubs
try:
    import {root}
except ModuleNotFoundError as problem:
    print(problem.name)
"""
    assert python(code) == [root]


@each_root
def test_older_import_roots_give_the_same_modules(root):
    code = f"""
import nki.standins  # the name of the hook that public code uses
import {root}.nkilib.core.utils.common_types as old
from {root}.nkilib.core.utils.tiled_range import TiledRange
import nkilib.core.utils.common_types as new
from nkilib.core.utils import tiled_range
assert old is new and sys.modules["{root}.nkilib"] is sys.modules["nkilib"]
assert TiledRange is tiled_range.TiledRange
assert new.__spec__.name == new.__name__ == "nkilib.core.utils.common_types"
try:
    import {root}.nkilib.nonsense
except ModuleNotFoundError as problem:
    print(problem.name)
"""
    assert python(code) == ["nkilib.nonsense"]


@each_root
def test_a_real_package_wins_and_is_not_added_to(root, tmp_path):
    real = tmp_path / root / "nkilib"
    real.mkdir(parents=True)
    (tmp_path / root / "__init__.py").write_text("")
    (real / "__init__.py").write_text("who = 'real'")
    code = f"""
from nki_legacy import stubs
stubs.install()
import {root}.nkilib
print({root}.nkilib.who)
try:
    import {root}.nkilib.core
except ModuleNotFoundError as problem:
    print(problem.name)
"""
    assert python(code, tmp_path) == ["real", f"{root}.nkilib.core"]


def test_the_hook_is_installed_once_and_can_be_removed():
    code = """
from nki_legacy import stubs
before = len(sys.meta_path)
stubs.install()
after = len(sys.meta_path)
stubs.install()
print(after > before, len(sys.meta_path) == after)
import nkilib_src.nkilib.core.utils
stubs.remove()
print([name for name in sys.modules if name.startswith("nkilib_src")], "nkilib.core.utils" in sys.modules)
try:
    import nkilib_src
except ModuleNotFoundError as problem:
    print(problem.name)
"""
    assert python(code) == ["True", "True", "[]", "True", "nkilib_src"]
