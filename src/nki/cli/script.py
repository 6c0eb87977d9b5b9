"""Kernels in files, for the command line: `script.py:kernel` and `--arg name=value`."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import runpy
import shlex
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import plugins
from ..errors import NkiError, nearest, suggestion
from ..files import read_bytes
from ..kernel.arrays import TensorSpec
from ..kernel.kernel import Kernel
from ..options import choose_machine
from ..typing import check_shapes
from .terminal import complain, user_traceback


class UsageError(Exception):
    """The command line is wrong; nothing was run."""


# ---- the file ------------------------------------------------------------------------------------


class Target(NamedTuple):
    """Where a kernel is: a Python file or a dotted module, and the name of the kernel if it was given."""

    place: Path | str
    name: str | None = None
    among_others: bool = False  # of a directory: it may turn out to have no kernel

    def __str__(self) -> str:
        return str(self.place)


def target(spec: str) -> Target:
    """`dir/script.py:kernel`, `package.module:kernel` or `directory:kernel`; the kernel may be left out."""
    path, colon, name = spec.rpartition(":")
    if not colon or Path(spec).exists():
        path, name = spec, ""
    file = Path(path)
    if file.is_dir():
        return _in_directory(file, name or None)
    if file.exists():
        return Target(file, name or None)
    if _DOTTED.fullmatch(path) and file.suffix != ".py" and _is_module(path):
        return Target(path, name or None)
    what = "file or module" if _DOTTED.fullmatch(path) and file.suffix != ".py" else "file"
    raise UsageError(f"there is no {what} {path}{_nearby(file)}")


def targets(spec: str) -> list[Target]:
    """All that a spec means: every file of a directory or package that makes kernels, or the one there is."""
    path, colon, name = (spec, "", "") if Path(spec).exists() else spec.rpartition(":")
    path, name = (path, name) if colon else (spec, "")
    folder = Path(path) if Path(path).is_dir() else _package(path)
    if folder is None:
        return [target(spec)]
    files = _files_with_kernels(folder, name or None)
    found = [Target(_importable(file) or file, name or None, True) for file in files]
    if not found:
        raise UsageError(f"no Python file below {folder} has {f'a kernel {name}' if name else 'a kernel'}")
    return found


def _package(dotted: str) -> Path | None:
    """Return the folder of a package that can be imported."""
    if not _DOTTED.fullmatch(dotted) or Path(dotted).exists() or not _is_module(dotted):
        return None
    found = importlib.util.find_spec(dotted)
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) if places else None


def _importable(file: Path) -> str | None:
    """The dotted name by which this file is imported elsewhere, if it has one: then it may stay imported."""
    _, dotted = _place(file.resolve())
    if "." not in dotted or not _is_module(dotted):
        return None
    found = importlib.util.find_spec(dotted)
    return dotted if found is not None and found.origin == str(file.resolve()) else None


_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MAKES = re.compile(r"@(?:nki\.)?jit\b|\bnki\.jit\(")
_SKIPPED = {"__pycache__", "node_modules", "build", "dist", "site-packages"}


def _is_module(dotted: str) -> bool:
    try:
        return importlib.util.find_spec(dotted) is not None
    except (ImportError, ValueError):
        return False


def _files_with_kernels(folder: Path, name: str | None) -> list[Path]:
    """Files below a folder whose text makes kernels; nothing is run to find out."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        parts = set(file.relative_to(folder).parts[:-1])
        if parts & _SKIPPED or any(part.startswith(".") for part in parts):
            continue
        text = _text(file)
        if _MAKES.search(text) and (name is None or re.search(rf"\b{re.escape(name)}\b", text)):
            found.append(file)
    return found


def _text(file: Path) -> str:
    """Return the text of a file, as far as it can be read."""
    try:
        return read_bytes(file).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _in_directory(folder: Path, name: str | None) -> Target:
    """Return the one file of a directory that defines the kernel."""
    files = _files_with_kernels(folder, name)
    if name is not None:
        defining = [f for f in files if re.search(rf"^\s*def {re.escape(name)}\b", _text(f), re.M)]
        files = defining or files
    if len(files) == 1:
        return Target(files[0], name)
    shown = ", ".join(map(str, files[:4])) or "none"
    what = f"the kernel {name}" if name else "kernels"
    raise UsageError(
        f"{folder} is a directory; name a Python file, as in {folder}/script.py:kernel\n"
        f"  files with {what}: {shown}"
    )


def _nearby(file: Path) -> str:
    folder = file.parent
    close = nearest(file.name, [p.name for p in folder.glob("*.py")]) if folder.is_dir() else None
    return f"; did you mean {folder / close}?" if close else ""


@contextmanager
def importable() -> Iterator[None]:
    """Let scripts import what plugins provide for them."""
    with ExitStack() as stack:
        for entry in plugins.entry_points("nki.scripts").values():
            stack.enter_context(plugins.load(entry)())
        yield


@contextmanager
def loaded(place: Path | str) -> Iterator[types.ModuleType]:
    """Yield the module of a file, or of a dotted name."""
    with ExitStack() as stack:
        stack.enter_context(importable())
        if isinstance(place, str):
            with _no_exit(place):
                yield importlib.import_module(place)
        else:
            yield stack.enter_context(_loaded_file(place))


@contextmanager
def _loaded_file(file: Path) -> Iterator[types.ModuleType]:
    """Yield the module of a script, with its folder importable for as long as it is used.

    A file of a package is imported as part of it. Afterwards its neighbours are removed from sys.modules:
    another script may have neighbours of the same names.
    """
    root, name = _place(file.resolve())
    folder = str(root)
    before = set(sys.modules)
    sys.path.insert(0, folder)
    try:
        with _no_exit(file):
            module = _run(file) if "." not in name else importlib.import_module(name)
        yield module
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
        for name in set(sys.modules) - before:
            if _lies_in(sys.modules[name], folder):
                del sys.modules[name]


def _run(file: Path) -> types.ModuleType:
    path = str(file.resolve())
    name = f"{re.sub(r'[^0-9a-zA-Z_]', '_', file.stem)}_{zlib.crc32(path.encode()):08x}"
    loader = importlib.machinery.SourceFileLoader(name, path)  # whatever the suffix
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _place(file: Path) -> tuple[Path, str]:
    """Return the folder from which a file can be imported, and its dotted name there."""
    folder, parts = file.parent, [] if file.stem == "__init__" else [file.stem]
    if not file.stem.isidentifier():  # mm.v2.py cannot be imported by name
        return folder, "script"
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


@contextmanager
def _no_exit(file: Path | str) -> Iterator[None]:
    try:
        yield
    except SystemExit as stop:
        raise UsageError(
            f"{file} ended itself with SystemExit({stop.code}) while it was loaded; "
            'put what it does under if __name__ == "__main__":'
        ) from None


def _lies_in(module: types.ModuleType, folder: str) -> bool:
    path = getattr(module, "__file__", None) or ""
    return path.startswith(folder + "/") and "site-packages" not in path[len(folder) :]


def run_as_main(what: list[str], is_module: bool = False) -> int:
    """Run a script, or a module, as python would: argv, path, `__main__`; returns the exit code."""
    before = sys.argv, list(sys.path)
    try:
        sys.argv = list(what)
        if is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(what[0], run_name="__main__", alter_sys=True)
        else:
            if not Path(what[0]).exists():
                raise UsageError(f"there is no file {what[0]}")
            sys.path.insert(0, str(Path(what[0]).resolve().parent))
            runpy.run_path(what[0], run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return int(stop.code or 0)
    except OSError as problem:  # of the script, not of the command line
        complain(user_traceback(problem))
        return 1
    finally:
        sys.argv, sys.path[:] = before
    return 0


# ---- the kernel ----------------------------------------------------------------------------------


def _undecorated(value: object) -> object:
    """Return the kernel below @nki.autotune or @nki.benchmark; other values unchanged."""
    inner = getattr(value, "__dict__", {}).get("kernel")
    return inner if isinstance(inner, Kernel) else value


def kernels_of(module: types.ModuleType) -> dict[str, Kernel]:
    """Return the kernels a script has: its own, or those it imports when it has none."""
    names = {name: _undecorated(value) for name, value in vars(module).items()}
    found = {name: value for name, value in names.items() if isinstance(value, Kernel)}
    own = {name: k for name, k in found.items() if k.__module__ == module.__name__}
    return own or found


def find_kernel(module: types.ModuleType, file: Path | str, name: str | None) -> Kernel:
    """Return the kernel of that name, or the only one."""
    found = kernels_of(module)
    listed = f"kernels in {file}: {', '.join(found)}" if found else f"{file} has no function with @nki.jit"
    if name is None:
        if len(found) == 1:
            return next(iter(found.values()))
        why = "name a kernel, as in" if found else "there is no kernel to take;"
        raise UsageError(f"{why} {file}:{next(iter(found), 'kernel')}\n  {listed}")
    value = getattr(module, name, None)
    value = _undecorated(value)
    if isinstance(value, Kernel):
        return value
    if isinstance(value, types.FunctionType):  # nki.profile takes plain functions too
        return Kernel(value)
    hint = suggestion(name, found)
    wrong = f"{name} in {file} is no kernel" if value is not None else f"there is no kernel {name} in {file}"
    raise UsageError(f"{wrong}{hint}\n  {listed}")


@contextmanager
def kernel_at(spec: str, stage: Callable[[str], None]) -> Iterator[Kernel]:
    """Load the kernel of `script.py:kernel`, for as long as it is used."""
    found = target(spec)
    stage(f"loading {found}")
    with loaded(found.place) as module:
        yield find_kernel(module, found.place, found.name)


def launched(kernel: Kernel, cores: int | None) -> Kernel:
    """Return kernel[cores], if the platform has as many."""
    if cores is None:
        return kernel
    platform = choose_machine(kernel.target)
    if cores not in platform.lnc_degrees:
        allowed = " or ".join(map(str, platform.lnc_degrees))
        raise UsageError(f"--lnc {cores}: {platform.name} launches a kernel on {allowed} core(s)")
    return kernel[cores]


# ---- its arguments -------------------------------------------------------------------------------

EXAMPLE = "lhsT=float32[8192,4096] or BLOCK=4"


def parse_arguments(texts: list[str]) -> dict[str, Any]:
    """Return the values of `--arg name=value`."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise UsageError(f"--arg {text}: write name=value, for example {EXAMPLE}")
        if name in values:
            raise UsageError(f"--arg {name} is given twice")
        values[name] = parse_value(name, value)
    return values


def parse_value(name: str, text: str) -> Any:
    """A tensor like float32[8192,4096], else a Python literal, else the text itself."""
    if re.fullmatch(r"\s*\w+\s*\[.*\]\s*", text):
        return _tensor(name, text)
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text


def _tensor(name: str, text: str) -> TensorSpec:
    try:
        spec = TensorSpec.parse(text)
    except NkiError as problem:
        help = f"\n  help: {problem.help}" if problem.help else ""
        raise UsageError(f"--arg {name}: {problem.message}{help}") from None
    if 0 in spec.shape:
        raise UsageError(f"--arg {name}: {text.strip()} holds no element")
    return spec


def bind(kernel: Kernel, values: Mapping[str, object]) -> inspect.BoundArguments:
    """Return the arguments of the call; UsageError if one is missing, unknown or of a wrong shape."""
    parameters = kernel.__signature__.parameters.values()
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes = f"\n  {kernel.__name__}{kernel.__signature__}"
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in values:
            if name not in named:
                hint = suggestion(name, named)
                raise UsageError(f"{kernel.__name__} has no parameter {name}{hint}{takes}")
    missing = [
        p.name for p in parameters if p.name in named and p.default is p.empty and p.name not in values
    ]
    if missing:
        help = f"add {' '.join(f'--arg {name}=...' for name in missing)}, for example {EXAMPLE}"
        raise UsageError(f"{kernel.__name__} needs {', '.join(missing)}{takes}\n  help: {help}")
    first = [values[p.name] for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in values]
    rest = {name: value for name, value in values.items() if not _positional_only(kernel, name)}
    bound = kernel.__signature__.bind(*first, **rest)
    try:
        check_shapes(kernel.func, bound.arguments)
    except NkiError as problem:
        notes = "".join(f"\n  {note}" for note in problem.notes)
        raise UsageError(f"{kernel.__name__}: {problem.message}{notes}") from None
    return bound


def _positional_only(kernel: Kernel, name: str) -> bool:
    parameter = kernel.__signature__.parameters.get(name)
    return parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY


class DeclaredCall(NamedTuple):
    """One call of a kernel to trace: its arguments by name, and the cores."""

    values: dict[str, Any]
    lnc: int | None


_CASE = re.compile(r"^\s*#\s*nki:\s*check\s+(.*)$")


def declared_cases(kernel: Kernel, lnc: int | None) -> Iterator[DeclaredCall]:
    """Yield the calls that comments in the source declare: `# nki: check x=float32[128,512] lnc=2`."""
    try:
        lines, _ = inspect.getsourcelines(inspect.unwrap(kernel.func))
    except (OSError, TypeError):
        return
    for line in lines:
        match = _CASE.match(line)
        if match is not None:
            words = shlex.split(match.group(1))
            cores = [int(word[4:]) for word in words if word.startswith("lnc=")]
            values = parse_arguments([word for word in words if not word.startswith("lnc=")])
            yield DeclaredCall(values, cores[0] if cores else lnc)


def call_of(
    kernel: Kernel, values: Mapping[str, object], lnc: int | None
) -> tuple[Kernel, inspect.BoundArguments]:
    """Return the kernel on its cores with its arguments: those given, else of its first `# nki: check`."""
    case = None if values else next(declared_cases(kernel, lnc), None)
    if case is not None:
        values, lnc = case.values, lnc or case.lnc
    kernel = launched(kernel, lnc)
    return kernel, bind(kernel, values)


def filled(values: Mapping[str, object]) -> dict[str, Any]:
    """Put random arrays in place of described tensors."""
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(v.shape).astype(np.dtype(v.dtype)) if isinstance(v, TensorSpec) else v
        for name, v in values.items()
    }
