"""Every environment variable and option in one place (spec/language.md 5.1)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .errors import error, unknown_name
from .machine.generations import find
from .machine.machine import Machine
from .tracebacks import hides_our_frames

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PLATFORM = "trn3"
RELEASES = ("0.3", "0.4", "0.5", "0.6")

_chosen: ContextVar[dict[str, Any]] = ContextVar("nki_options", default={})  # noqa: B039  never changed


VARIABLES = (  # all that make Options
    *("OPEN_NKI_STRICT", "NKI_PRECISE_FP", "OPEN_NKI_MAX_ITERATIONS", "NEURON_RT_DEBUG_OUTPUT_DIR"),
    *("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"),
    *("UNSAFE_FP8FNCAST", "OPEN_NKI_CACHE", "OPEN_NKI_CACHE_BYTES", "OPEN_NKI_API", "OPEN_NKI_THREADS"),
    *("OPEN_NKI_DEVICE", "OPEN_NKI_WITHOUT", "OPEN_NKI_EXECUTOR"),
)
_PLATFORM = ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_NC_VERSION")


def _raw_names(names: Iterable[str]) -> list[Any]:
    return [getattr(os.environ, "encodekey", str)(name) for name in names]


_RAW_VARIABLES, _RAW_PLATFORM = _raw_names(VARIABLES), _raw_names(_PLATFORM)
_DEVICE, _DEBUG = ("OPEN_NKI_DEVICE",), ("NEURON_FRAMEWORK_DEBUG",)
_RAW_DEVICE, _RAW_DEBUG = _raw_names(_DEVICE), _raw_names(_DEBUG)


def _settings(names: Sequence[str], raw_names: Sequence[Any]) -> tuple:
    """Return what the environment holds for each variable; `os.environ` raises for those that are not set."""
    raw = getattr(os.environ, "_data", None)
    return tuple(map(os.environ.get, names) if raw is None else map(raw.get, raw_names))


def _flag(name: str, default: bool = False) -> bool:
    value = os.environ.get(name, "").strip().lower()
    return value not in ("0", "false", "no") if value else default


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a call runs. Read from the environment at each call, because guides set it after import."""

    strict: bool = False  # OPEN_NKI_STRICT: diagnostics become errors
    precise_fp: bool = True  # NKI_PRECISE_FP: 0 keeps narrow floats as float32 values
    max_iterations: int = 10_000_000  # OPEN_NKI_MAX_ITERATIONS: limit of nl.while_loop
    debug_output_dir: str | None = None  # NEURON_RT_DEBUG_OUTPUT_DIR: device_print also writes files
    reserve_psum_bank: bool = False  # NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE: one PSUM bank fewer
    logical_nc_config: int | None = None  # NEURON_LOGICAL_NC_CONFIG / NEURON_RT_VIRTUAL_CORE_SIZE
    unsafe_fp8: bool = False  # UNSAFE_FP8FNCAST: no range check when e4m3fn becomes e4m3
    cache: bool = True  # OPEN_NKI_CACHE: 0 runs the kernel's Python at every call
    cache_bytes: int = 256 << 20  # OPEN_NKI_CACHE_BYTES: of all recorded programs
    api: str = RELEASES[-1]  # OPEN_NKI_API: behave as this release of NKI is documented
    threads: int = 0  # OPEN_NKI_THREADS: of plans; 0: as many as the process may use
    device: str = ""  # OPEN_NKI_DEVICE: where kernels run; else where their tensors are
    executor: str = "auto"  # OPEN_NKI_EXECUTOR: the backend: reference, fused or torch; auto chooses
    without: tuple[str, ...] = ()  # OPEN_NKI_WITHOUT: transformations that the timing model leaves out

    def since(self, release: str) -> bool:
        """Whether the changes of this release apply."""
        return RELEASES.index(self.api) >= RELEASES.index(release)


def _number(name: str, default: int | None = None) -> Any:
    value = os.environ.get(name, "").strip()
    if value and not value.isdigit():
        raise error("argument", f"{name} must be a number, it is {value!r}")
    return int(value) if value else default


def _choice(name: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(name, "").strip().lower() or allowed[0]
    if value not in allowed:
        raise error("argument", f"{name} must be {', '.join(allowed)}; it is {value!r}")
    return value


def from_environment() -> Options:
    """Return the options as `nki.options` or else the environment sets them now."""
    found, chosen = _read(_settings(VARIABLES, _RAW_VARIABLES)), _chosen.get()
    if chosen:
        chosen = {name: value for name, value in chosen.items() if name != "target"}
    return replace(found, **chosen) if chosen else found


@lru_cache(maxsize=64)
def _read(settings: tuple) -> Options:
    """Return the options of the environment, which holds these settings."""
    return Options(
        strict=_flag("OPEN_NKI_STRICT"),
        precise_fp=_flag("NKI_PRECISE_FP", default=True),
        max_iterations=_number("OPEN_NKI_MAX_ITERATIONS", Options.max_iterations),
        debug_output_dir=os.environ.get("NEURON_RT_DEBUG_OUTPUT_DIR") or None,
        reserve_psum_bank=_flag("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE"),
        logical_nc_config=_number("NEURON_LOGICAL_NC_CONFIG", _number("NEURON_RT_VIRTUAL_CORE_SIZE")),
        unsafe_fp8=_flag("UNSAFE_FP8FNCAST"),
        cache=_flag("OPEN_NKI_CACHE", default=True),
        cache_bytes=_number("OPEN_NKI_CACHE_BYTES", Options.cache_bytes),
        api=_release(),
        threads=_number("OPEN_NKI_THREADS", 0),
        device=checked_device(os.environ.get("OPEN_NKI_DEVICE", "").strip(), "OPEN_NKI_DEVICE"),
        without=tuple(os.environ.get("OPEN_NKI_WITHOUT", "").replace(",", " ").split()),
        executor=_choice("OPEN_NKI_EXECUTOR", ("auto", "reference", "fused", "torch", "plan")),
    )


def _release() -> str:
    value = os.environ.get("OPEN_NKI_API", "").strip() or RELEASES[-1]
    release = ".".join(value.split(".")[:2])
    if release not in RELEASES:
        known = ", ".join(RELEASES)
        raise error("argument", f"OPEN_NKI_API is {value!r}", help=f"it names a release of NKI: {known}")
    return release


def checked_device(name: str, what: str) -> str:
    """Return the name of a device that can run kernels; raise an error for any other name."""
    if name and not re.fullmatch(r"cpu|torch-cpu|cuda(:\d+)?", name):
        raise error(
            "device",
            f"{what} is {name!r}",
            notes=["cpu: numpy; cuda, cuda:1: a GPU, by PyTorch; torch-cpu: as on a GPU, without one"],
            help="leave it out to run where the tensors are",
        )
    return name


def chosen_device() -> str:
    """Return the option `device` alone, without reading the others."""
    found = _chosen.get().get("device")
    if found is None and _settings(_DEVICE, _RAW_DEVICE) != (None,):
        found = os.environ["OPEN_NKI_DEVICE"].strip()
    return found or ""


def framework_debug() -> bool:
    """NEURON_FRAMEWORK_DEBUG: whether torch and jax keep the programs they stage. Not an option."""
    return _settings(_DEBUG, _RAW_DEBUG) != (None,) and _flag("NEURON_FRAMEWORK_DEBUG")


def cache_folder() -> Path:
    """Return OPEN_NKI_CACHE_DIR, or a folder in the user's cache, for files that later processes reuse."""
    from pathlib import Path

    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("OPEN_NKI_CACHE_DIR") or Path(home) / "open-nki")


def choose_machine(kernel_target: str | None = None) -> Machine:
    """Return the platform of a call: nki.options, override, the kernel's own target, NKI_NC_VERSION, trn3."""
    return _machine(_chosen.get().get("target"), kernel_target, _settings(_PLATFORM, _RAW_PLATFORM))


@lru_cache(maxsize=64)
def _machine(chosen: str | None, kernel_target: str | None, settings: tuple) -> Machine:
    """Return the platform of a call while the environment holds these settings."""
    override, version = map(os.environ.get, _PLATFORM)
    return find(chosen or override or kernel_target or version or DEFAULT_PLATFORM)


# ---- in the code ---------------------------------------------------------------------------------


@hides_our_frames
def options(**settings: Any) -> AbstractContextManager[None]:
    """Set options for the calls in this block; they take precedence over the environment.

    `with nki.options(target="trn2", strict=True):`. `target` names a platform; the others are the fields of
    `Options`; docs/environment.md lists them.
    """
    known = ["target", *(field.name for field in fields(Options))]
    for name in settings:
        if name not in known:
            raise unknown_name(f"nki.options: unknown option {name!r}", name, known)
    if "device" in settings:
        settings["device"] = checked_device(settings["device"] or "", "nki.options: device")
    if settings.get("target") is None:
        settings.pop("target", None)
    else:
        settings["target"] = find(settings["target"]).name
    return _using(settings)


@contextmanager
def _using(settings: dict[str, Any]) -> Iterator[None]:
    token = _chosen.set({**_chosen.get(), **settings})
    try:
        yield
    finally:
        _chosen.reset(token)
