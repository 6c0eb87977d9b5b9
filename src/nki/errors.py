"""Errors: what was asked, what is wrong, where, and how to fix it.

`raise error("partition-limit", "tensor_tensor: data1 has 256 partitions, ...", help="...")` finds the
user's line by itself. Every kind is a class of its own, derived from NkiError and from the built-in
that callers would catch, so `except NkiError`, `except ValueError` and `err.kind` all work.
"""

from __future__ import annotations

import linecache
import sys
import types
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple


class Site(NamedTuple):
    """A place in the user's code: a code object and the instruction inside it.

    The line number is computed on demand, because a trace stores a site per instruction.
    """

    code: types.CodeType
    lasti: int

    @property
    def key(self) -> tuple[Any, int]:
        """A key that identifies the place; cheaper than the hash of a code object."""
        return id(self.code), self.lasti

    @property
    def filename(self) -> str:
        return self.code.co_filename

    @property
    def lineno(self) -> int:
        return _line_number(self.code, self.lasti)

    @property
    def text(self) -> str:
        return linecache.getline(self.filename, self.lineno).strip()

    @property
    def function(self) -> str:
        return self.code.co_name

    def __str__(self) -> str:
        return f"{self.filename.rsplit('/', 1)[-1]}:{self.lineno}"

    def __reduce__(self) -> Any:
        return SourceLine, (self.filename, self.lineno, self.text, self.function)


class SourceLine(NamedTuple):
    """A place in the user's code as text: what a pickled or saved `Site` becomes."""

    filename: str
    lineno: int
    text: str = ""
    function: str = ""

    @property
    def key(self) -> tuple[Any, int]:
        return self.filename, self.lineno

    def __str__(self) -> str:
        return f"{self.filename.rsplit('/', 1)[-1]}:{self.lineno}"


def _line_number(code: types.CodeType, lasti: int) -> int:
    """Return the line of an instruction. Codes of two files may be equal, so it is known by identity."""
    known = _LINES.get((id(code), lasti))
    if known is None:
        if len(_LINES) >= _MOST_SITES:
            _LINES.clear()
        known = _LINES[id(code), lasti] = (_find_line(code, lasti), code)
    return known[0]


_LINES: dict[tuple[int, int], tuple[int, types.CodeType]] = {}  # the code is held: no other gets its identity


def _find_line(code: types.CodeType, lasti: int) -> int:
    for start, end, line in code.co_lines():
        if start <= lasti < end and line is not None:
            return line
    return code.co_firstlineno


_OWN_PACKAGES = {"nki"}


def add_own_package(name: str) -> None:
    """Treat the modules of a package as parts of `nki`: diagnostics point to their caller."""
    _OWN_PACKAGES.add(name)
    _OURS.clear()
    _SITES.clear()


def is_ours(module_name: str | None) -> bool:
    """Whether a module belongs to `nki` itself; `nkilib` and `trnblas` are users like any other."""
    return _root(module_name) in _OWN_PACKAGES


def _root(module_name: str | None) -> str:
    return (module_name or "").partition(".")[0]


class _OursCache(dict[str | None, bool]):
    """Whether a module is not the user's, by its name: it is asked for every instruction and tile."""

    def __missing__(self, module_name: str | None) -> bool:
        self[module_name] = found = is_ours(module_name) or _root(module_name) in _BETWEEN
        return found


_BETWEEN = {
    "contextlib",
    "copy",
    "functools",
    "jax",
    "numpy",
    "threading",
    "torch",
}  # the user's code calls ours by them
_OURS = _OursCache()


def user_site(depth: int = 1) -> Site | None:
    """Return the innermost frame outside `nki`, counted from `depth` callers above this call.

    None on a thread that `nki` has started, where no user's code runs.
    """
    frame: types.FrameType | None = sys._getframe(depth)
    while frame is not None:
        key = (id(frame.f_code), frame.f_lasti)
        known = _SITES.get(key)  # most calls come from a place that was seen before
        if known is not None:
            return known
        if not _OURS[frame.f_globals.get("__name__")]:
            return _new_site(frame.f_code, key)
        frame = frame.f_back
    return None


_SITES: dict[tuple[int, int], Site] = {}  # a site holds its code, so that no other code gets its identity
_MOST_SITES = 1 << 16


def _new_site(code: types.CodeType, key: tuple[int, int]) -> Site:
    """Return a site that all instructions of a place in the code share."""
    if len(_SITES) >= _MOST_SITES:
        _SITES.clear()
    found = _SITES[key] = Site(code, key[1])
    return found


def raised_at(problem: BaseException) -> Site | None:
    """Return the user's line that raised an error: its own, or the innermost frame outside `nki`."""
    site: Site | None = getattr(problem, "site", None)
    trace = None if site is not None else problem.__traceback__
    while trace is not None:
        if not _OURS[trace.tb_frame.f_globals.get("__name__")]:
            site = Site(trace.tb_frame.f_code, trace.tb_lasti)
        trace = trace.tb_next
    return site


class NkiError(Exception):
    """Base of every error raised by nki. `kind` is a stable name; `site` is the user's line."""

    kind = "error"
    key = "error"  # the entry of KINDS: two kinds with one name differ in their built-in base
    rank: int | None = None  # in a world of several: the one that raised it

    def __init__(
        self,
        message: str,
        *,
        notes: Iterable[str] = (),
        help: str | None = None,
        site: Site | None = None,
    ):
        self.message = message
        self.notes = list(notes)
        self.help = help
        self.site = site
        super().__init__(message)

    def __str__(self) -> str:
        headline = self.message if self.rank is None else f"rank={self.rank}: {self.message}"
        return show(headline, self.site, self.notes, self.help)

    def __reduce__(self) -> Any:
        return (_rebuild, (self.key, self.message, self.notes, self.help))


class NkiFileError(NkiError):
    """A file cannot be used: it is damaged, or something else than was asked for."""


class NkiValidationError(NkiError):
    """A rule of the hardware was broken.

    It derives from AssertionError; `nki explain KIND` shows a wrong kernel and a right one.

    Members:

    - `kind`: a stable name, as in `nki explain`.
    - `site`: the line of the kernel.

    Example:

    ```python
    @nki.jit
    def wrong(x):
        nisa.dma_copy(nl.ndarray((2, 4), nl.float32), x)

    try:
        wrong(np.ones((2, 3), np.float32))
    except nki.NkiError as problem:
        print(problem.kind)
    ```

    ```output
    shape
    ```

    See also: `NkiInstruction`.
    """


class NkiWarning(UserWarning):
    """A diagnostic: the kernel runs here, but may fail on hardware or in the real compiler."""

    kind = "warning"


def show(headline: str, site: Site | None, notes: Iterable[str] = (), help: str | None = None) -> str:
    """Return the four-part text shared by errors and warnings."""
    lines = [headline]
    if site is not None:
        lines.append(f"  --> {site.filename}:{site.lineno}")
        if site.text:
            lines.append(f"   |     {site.text}")
    lines += [f"  = {note}" for note in notes]
    if help:
        lines.append(f"  help: {help}")
    return "\n".join(lines)


_SIZE = (NkiValidationError, AssertionError, ValueError)
_WRONG_TYPE = (NkiValidationError, AssertionError, TypeError)
_CHOICE = (NkiValidationError, AssertionError, ValueError)
_VALUE = (NkiError, ValueError)
_LOOP = (NkiError, AssertionError)

# kind -> base classes (spec/language.md 17, spec/tensor.md 9, spec/isa.md 1.2 and 4.1, spec/decisions.md 5)
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ["partition-limit", "free-limit", "capacity", "shape", "axis", "layout", "pattern", "rank"], _SIZE
    ),
    **dict.fromkeys(["alignment", "partition-dim", "partition-step", "partition-dynamic"], _SIZE),
    **dict.fromkeys(["indirect-dim", "indirect-twice", "indirect-view", "write-broadcast"], _SIZE),
    **dict.fromkeys(["psum-bank", "partition-stride", "fp32-min", "shuffle-source"], _SIZE),
    **dict.fromkeys(["buffer", "output-buffer"], _WRONG_TYPE),
    "dtype": (NkiValidationError, AssertionError, TypeError),
    "fp8-range": (NkiError, TypeError),
    **dict.fromkeys(["argument", "enum"], (NkiError, TypeError)),
    **dict.fromkeys(["tensor-value", "abstract-value", "framework-mix"], (NkiError, TypeError)),
    "register-value": (NkiError, TypeError),
    **dict.fromkeys(["operator", "framework"], (NkiError, TypeError)),
    "index": (NkiValidationError, IndexError, AssertionError),
    **dict.fromkeys(
        ["op", "engine", "perf-mode", "reduce-cmd", "memset-type", "psum-both", "lnc", "depends-on"], _CHOICE
    ),
    **dict.fromkeys(["dge-mode", "oob-skip", "priority"], _CHOICE),
    "launch-grid": _VALUE,
    "device": _VALUE,
    "launch-grid-type": (NkiError, TypeError),
    **dict.fromkeys(["schedule", "platform", "read-only-input", "scalar-argument", "constant-write"], _VALUE),
    "address": (NkiError, AssertionError, ValueError),
    "register-range": _VALUE,
    **dict.fromkeys(["lnc-outputs", "shared-mismatch", "lnc-divergence"], _VALUE),
    **dict.fromkeys(["replica-group", "channel", "collective-overlap", "collective-mismatch"], _VALUE),
    **dict.fromkeys(["rank-out-of-world", "rank-arguments", "rand-range", "device", "framework"], _VALUE),
    **dict.fromkeys(
        ["no-kernel", "deadlock", "uninitialized", "placeholder", "other-call"], (NkiError, RuntimeError)
    ),
    **dict.fromkeys(["no-backward", "gradient"], (NkiError, RuntimeError)),
    "rank-lost": (NkiError, ConnectionError),
    "rank-timeout": (NkiError, TimeoutError),
    **dict.fromkeys(
        ["loop-step", "frozen-register", "loop-body", "loop-local-tensor", "loop-in-no-reorder"], _LOOP
    ),
    "endless-loop": _LOOP,
    "memory": (NkiError, MemoryError),
    "generation": (NkiValidationError, AssertionError, NotImplementedError),
    **dict.fromkeys(["removed", "not-implemented-yet", "not-supported"], (NkiError, NotImplementedError)),
    "no-compiler": (NkiError, NotImplementedError, AttributeError),
    "block-dimension": (NkiError, NotImplementedError),
    "removed-name": (NkiError, AttributeError),
    "missing-package": (NkiError, ImportError),
    **dict.fromkeys(
        ["profile-file", "program-file", "baseline-file", "costs-file"], (NkiFileError, ValueError)
    ),
    **dict.fromkeys(["tune-space", "race", "no-effect"], _VALUE),
}


@cache
def error_class(kind: str) -> type[NkiError]:
    """Return the class of a kind. Diagnostics without an own base become ValueErrors in strict mode."""
    shown = {"launch-grid-type": "launch-grid", "removed-name": "removed"}.get(kind, kind)
    # a traceback of a class of `builtins` begins with NkiError[kind], without a module
    body = {"kind": shown, "key": kind, "__module__": "builtins"}
    return type(f"NkiError[{shown}]", KINDS.get(kind, _VALUE), body)


def error(
    kind: str,
    message: str,
    *,
    notes: Iterable[str] = (),
    help: str | None = None,
    site: Site | None = None,
) -> NkiError:
    """Build (not raise) the error of a kind, pointing at the user's line."""
    return error_class(kind)(message, notes=notes, help=help, site=site or user_site(2))


def _rebuild(key: str, message: str, notes: list[str], help: str | None) -> NkiError:
    """Return an unpickled error; the user's line stays in the process that raised it."""
    return error_class(key)(message, notes=notes, help=help)


@cache
def warning_class(kind: str) -> type[NkiWarning]:
    bases = (NkiWarning, DeprecationWarning) if kind == "deprecated" else (NkiWarning,)
    return type(f"NkiWarning[{kind}]", bases, {"kind": kind, "__module__": __name__})


def __getattr__(name: str) -> type:
    """Return `NkiWarning[kind]`, the class of a diagnostic, by its name."""
    if name.startswith("NkiWarning[") and name.endswith("]"):
        return warning_class(name[len("NkiWarning[") : -1])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def emit_warning(
    kind: str, message: str, site: Site | None, notes: Iterable[str] = (), help: str | None = None
) -> None:
    """Show a diagnostic as a Python warning attributed to the user's line."""
    text = show(message, site, notes, help)
    if site is None:
        warnings.warn(text, warning_class(kind), stacklevel=2)
    else:
        warn_at(kind, text, site.filename, site.lineno)


def warn_at(kind: str, text: str, filename: str, line: int) -> None:
    """Show a Python warning of a line: Python's filters decide how often, by default once."""
    registry = _registries.setdefault(filename, {})
    warnings.warn_explicit(text, warning_class(kind), filename, line, registry=registry)


_registries: dict[str, dict] = {}  # of the warnings shown, by file
_format_plainly = warnings.formatwarning


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format as Python does, without the source line for our messages, which contain it."""
    line = "" if issubclass(category, NkiWarning) else line
    return _format_plainly(message, category, filename, lineno, line)


warnings.formatwarning = _format_warning


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name closest to a misspelt one, if any is close; one with a word it begins wins."""
    import difflib

    names = list(allowed)
    begun = [one for one in names if len(name) > 1 and f"_{name}" in f"_{one}"]
    found = [min(begun, key=len)] if begun else difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return found[0] if found else None


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return "; did you mean X?" for a misspelt name, "" if nothing is close."""
    close = nearest(name, allowed)
    return f"; did you mean {close}?" if close else ""


def unknown_name(message: str, name: str, allowed: Sequence[str], label: str = "accepted:") -> NkiError:
    """Return the error for a name that is none of those allowed, with all of them and the nearest."""
    close = nearest(name, allowed)
    notes = [f"{label} {', '.join(allowed)}"]
    return error("argument", message, notes=notes, help=f"did you mean {close}?" if close else None)


def missing_name(
    module: str, short: str, name: str, removed: Mapping[str, str], known: Iterable[str]
) -> Exception:
    """Return the AttributeError for `short.name`; it suggests a replacement or the nearest name."""
    if name in removed:
        return error("removed-name", f"{short}.{name} has been removed from NKI", help=removed[name])
    close = None if name.startswith("_") else nearest(name, known)
    hint = f"; did you mean {short}.{close}?" if close else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
