"""nki kernels, nki info and nki doctor: the kernels of the library, what is installed, the platforms."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from open_nki import doctor, installation

from .. import plugins
from ..errors import suggestion
from ..machine.generations import MACHINES
from ..machine.machine import Machine
from ..options import choose_machine
from ..version import NKI, PACKAGE, __version__
from .command import Command, add_json
from .script import UsageError
from .terminal import complain, show

if TYPE_CHECKING:
    from rich.console import RenderableType

SEARCHED = ("name", "import", "meaning", "also")
NOT_FOUND = 1  # exit code of a search without a hit


def command_kernels(options: argparse.Namespace) -> int:
    """nki kernels"""
    if options.source:
        shown = kernel_source(options.source)
        print(json.dumps(shown, indent=2) if options.json else shown["source"], end="\n" * options.json)
        return 0
    facts = kernel_facts(options.word)
    if options.json:
        print(json.dumps(facts, indent=2))
    elif facts:
        show(kernel_table(facts))
        if options.word:
            lines = [fact["line"] for fact in facts if fact["status"] == "built"]
            print("\n".join(lines + newer_options(facts)))
    else:
        complain(f"nki kernels: no kernel has {options.word!r} in its name, module, meaning or synonyms")
    return 0 if facts else NOT_FOUND


def kernel_facts(word: str | None = None) -> list[dict[str, Any]]:
    """Return the kernels of the libraries; with a word, those that have it in a fact that is searched."""
    facts = [
        {"name": k.name, "import": k.module, "line": f"from {k.module} import {k.name}", "meaning": k.meaning}
        | {"page": k.page, "status": k.status, "release": k.release, "backward": k.backward, "also": k.also}
        | {"options": k.options}
        for library in plugins.entry_points("nki.libraries").values()
        for k in plugins.load(library)()
    ]
    word = (word or "").lower()
    return [
        f
        for f in facts
        if any(word in f[part].lower() for part in SEARCHED) or word in map(str.lower, f["options"])
    ]


def newer_options(facts: list[dict[str, Any]]) -> list[str]:
    """Return a line for each kernel and release that added options to it."""
    lines = []
    for fact in facts:
        for release in sorted(set(fact["options"].values())):
            names = [name for name, since in fact["options"].items() if since == release]
            lines.append(f"{fact['name']}, since {release}: {', '.join(names)}")
    return lines


def kernel_source(name: str) -> dict[str, Any]:
    """Return the module of one kernel of a library: its facts and its source."""
    facts = {f["name"]: f for f in kernel_facts() if f["status"] == "built"}
    if name not in facts:
        hint = suggestion(name, facts)
        raise UsageError(f"there is no kernel {name}{hint}\n  help: nki kernels lists them")
    kernel = getattr(importlib.import_module(facts[name]["import"]), name)
    return {**facts[name], "source": inspect.getsource(importlib.import_module(kernel.__module__))}


def kernel_table(facts: list[dict[str, Any]]) -> RenderableType:
    """List the kernels below their modules; a repeated meaning is left out."""
    from ..report.text import ruled

    table = ruled("import from, kernel", "meaning", "since", "backward")
    module = meaning = ""
    for fact in facts:
        if fact["import"] != module:
            table.add_row(wrapped(fact["import"], "._", 33))
            module, meaning = fact["import"], ""
        since = fact["release"] if fact["status"] == "built" else fact["status"]
        described = "" if fact["meaning"] == meaning else fact["meaning"]
        name = "  " + wrapped(fact["name"], "_", 29).replace("\n", "\n  ")
        table.add_row(name, described, since, wrapped(fact["backward"], "_", 16))
        meaning = fact["meaning"]
    return table


def wrapped(name: str, separators: str, width: int) -> str:
    """Break a long name into lines, after separators."""
    lines = [""]
    for part in re.split(f"(?<=[{re.escape(separators)}])", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def command_info(options: argparse.Namespace) -> int:
    """nki info"""
    packages = {name: _state(name, needed) for name, needed in EXTRAS.items()}
    found = installation.packages()
    wrong = doctor.problems(found)
    python = sys.version.split()[0]
    if options.json:
        machines = {m.name: {name.strip(): shown(m) for name, shown in LIMITS} for m in MACHINES.values()}
        about = {"open_nki": PACKAGE, "nki": NKI, "python": python, "platform": choose_machine().name}
        numbers = {m.name: {f.name: _plain(getattr(m, f.name)) for f in fields(m)} for m in MACHINES.values()}
        whole = {**about, "packages": packages, "platforms": machines, "numbers": numbers}
        print(json.dumps({**whole, "installation": doctor.facts(found, wrong)}, indent=2))
        return 1 if wrong else 0
    print(f"Open NKI {__version__}, Python {python}")
    print(f"platform of kernels that name none: {choose_machine().name}")
    for name, state in (packages | doctor.providers(found)).items():
        print(f"{name}: {state}")
    show(platform_table())
    if wrong:
        complain(doctor.explanation(wrong))
    return 1 if wrong else 0


def _plain(value: object) -> object:
    """Return a field of a Machine for JSON."""
    return sorted(value) if isinstance(value, frozenset) else value


def size(count: int) -> str:
    from ..report.text import size as shown

    return shown(count)


EXTRAS = {
    "perfetto": "perfetto protobuf",
    "torch": "torch",
    "jax": "jax",
    "mcp": "mcp",
}  # what pip installs for each


def _state(name: str, needed: str) -> str:
    if not importlib.util.find_spec(name):
        return f"not installed (pip install {needed})"
    if name != "jax":
        return "installed"
    from ..frameworks.jax import LOWERING

    return f"installed, kernels inside jit run by {LOWERING}"


LIMITS: list[tuple[str, Callable[[Machine], str]]] = [
    ("also called", lambda m: ", ".join(m.aliases)),
    ("cores of a launch", lambda m: " or ".join(map(str, m.lnc_degrees))),
    ("partitions", lambda m: str(m.partitions)),
    ("SBUF per partition", lambda m: size(m.sbuf_bytes)),
    ("  usable by a kernel", lambda m: f"{m.sbuf_usable_bytes:,} B"),
    ("PSUM per partition", lambda m: f"{size(m.psum_bytes)} in {m.psum_banks} banks"),
    (
        "matmul K, M, N",
        lambda m: f"{m.matmul_contraction_max}, {m.matmul_stationary_max}, {m.matmul_moving_max}",
    ),
    ("HBM of a core", lambda m: size(m.hbm_bytes_per_core)),
    ("HBM bandwidth", lambda m: f"{m.hbm_gbs:g} GB/s"),
    ("DMA engines", lambda m: str(m.dma_engines)),
    ("DMA bandwidth", lambda m: f"{m.dma_peak_gbs:g} GB/s"),
    ("TensorE", lambda m: f"{m.tensor_ghz:g} GHz"),
    ("VectorE", lambda m: f"{m.vector_ghz:g} GHz"),
    ("ScalarE, GpSimdE", lambda m: f"{m.scalar_ghz:g} GHz"),
    ("peak bf16", lambda m: f"{m.peak_flops() / 1e12:.1f} TFLOP/s"),
    ("peak fp32", lambda m: f"{m.peak_flops(m.fp32_multiplier) / 1e12:.1f} TFLOP/s"),
    ("fixed cost of a run", lambda m: f"{m.kernel_overhead_ns / 1e3:g} us"),
    ("assumed constants", lambda m: str(len(m.assumed))),
]


def platform_table() -> RenderableType:
    from ..report.text import ruled

    table = ruled("one core of", *MACHINES)
    for name, shown in LIMITS:
        table.add_row(name, *(shown(m) for m in MACHINES.values()))
    return table


# ---- the command line ----------------------------------------------------------------------------


def add_kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "word", nargs="?", help="only those with this word in name, module, meaning, synonyms or as an option"
    )
    parser.add_argument("--source", metavar="KERNEL", help="print the module of one kernel")
    add_json(parser, "list")


KERNELS = Command(
    "kernels",
    "list the kernels of nkilib",
    """\
List the kernels of the library nkilib: where each is imported from, what it computes,
and whether it is built. help(kernel) in Python shows its arguments.
Exit code 1: no kernel has the word.""",
    command_kernels,
    add_kernels,
)
INFO = Command(
    "info", "version, platforms, their limits", "What is installed, and where.", command_info, add_json
)
DOCTOR = Command("doctor", "which distribution provides what", doctor.TEXT, doctor.run, doctor.add_arguments)
