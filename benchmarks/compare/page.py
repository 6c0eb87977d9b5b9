"""docs/comparison.md, from what was measured."""

from __future__ import annotations

import platform

from benchmarks.compare.problems import COLUMNS, DEPTH, ROWS, problems

SYSTEMS = {
    "nki": "Open NKI",
    "triton_viz": "triton-viz, NKI",
    "triton": "Triton's interpreter",
    "triton_viz_triton": "Triton with triton-viz",
    "pallas": "Pallas, `interpret=True`",
    "pallas_tpu": "Pallas, `InterpretParams`",
}
MISTAKES = {
    "read_beyond": "reads past the end of a tensor",
    "write_beyond": "writes past its end",
    "untouched": "reads a tile that nothing wrote",
    "uninitialised": "reads a tile half of which nothing wrote",
    "race": "two cores write one place",
    "capacity": "a tile larger than the memory on the chip",
    "mixed_dtypes": "a product of float32 and bfloat16",
    "shapes": "a sum of tiles of different widths",
    "partitions": "a tile of 256 partitions (NKI alone)",
}
ABILITIES = {
    "rounding": "rounds float32 to bfloat16 to nearest, ties to even",
    "values": "Python can read values in a kernel",
    "device_time": "gives the time on the device, without one",
    "shapes_alone": "traces a kernel from shapes alone",
    "cores": "two cores that wait for each other",
    "picture": "stores a visualisation of what a kernel did",
}
QUESTIONS = {**MISTAKES, **ABILITIES}

HEAD = """# Comparison with other interpreters

<!-- Written by `make compare` (`python -m benchmarks.compare`). Do not edit. -->

Kernel languages for other machines have interpreters too, and triton-viz has one for NKI. This page compares the results of the
same three kernels and the same mistakes in each. Every cell
is the output of a program below `benchmarks/compare`; a dash means that there is no such program.
`make compare` writes the page again, in separate environments.

| system | versions |
|---|---|
{versions}

Python {python} on {machine}. {viz}

## Time

CPU seconds on one thread, over NumPy doing the same in the same process: the first call, which traces or
compiles, and the fastest of three after it. The kernels use the same tiles ({rows} rows, {columns} columns, depth
{depth}), float32 and a running softmax in attention; each result was compared with float64.

{times}

All of them end in NumPy or in compiled code; the ratios show the overhead of each interpreter. Open NKI's second call runs
the recorded program, Pallas's runs the code that XLA compiled. Under triton-viz's sanitizer for
Triton the results differed from the kernel's: its times are those of a check, not of a run.

## What each finds

Each row is a small kernel with one mistake. **Stops** is an error, **warns** a warning (in Open NKI `OPEN_NKI_STRICT=1`
turns it into an error); *at the line* means that the report names the line with the mistake. **Returns** means that the mistake was not
noticed.

{mistakes}

The messages:

{said}

## What each can do

{abilities}
"""


def written(found: dict) -> str:
    systems = {s: title for s, title in SYSTEMS.items() if s in found}
    return HEAD.format(
        versions="\n".join(f"| {t} | {found[s]['version']} |" for s, t in systems.items()),
        python=next(iter(found.values()))["python"],
        machine=f"{platform.system()}, {platform.machine()}",
        viz=_VIZ if "triton_viz" in systems else _NO_VIZ,
        rows=ROWS,
        columns=COLUMNS,
        depth=DEPTH,
        times=_times(found, systems),
        mistakes=_table(found, systems, MISTAKES, _mistake),
        said=_said(found, systems),
        abilities=_table(found, systems, ABILITIES, _ability),
    )


_VIZ = (
    "triton-viz needs AWS's `nki` package for the names of its NKI mode, and no public index of Python packages "
    "has that; here Open NKI takes its place: triton-viz replaces the instructions with its own "
    "functions. It would also call AWS's compiler before it runs a kernel (`pre_trace`), which could not be "
    "tested. It has its own environment, with the Triton version that it was tested with."
)
_NO_VIZ = "triton-viz was not asked: no interpreter with it was given."


def _times(found: dict, systems: dict[str, str]) -> str:
    rows = []
    for system, title in systems.items():
        measured = found[system]["times"]
        rows.append([title, *(_ratio(measured.get(name)) for name in problems())])
    return _lines(["times NumPy: first call, then again", *(p.title for p in problems().values())], rows)


def _ratio(measured: dict | None) -> str:
    if measured is None:
        return "-"
    return f"{measured['first']:.1f}, {measured['again']:.1f}" + (
        "" if measured["right"] else " (result differs)"
    )


def _table(found: dict, systems: dict[str, str], questions: dict[str, str], shown) -> str:
    rows = [[text, *(shown(found[s]["probes"][name]) for s in systems)] for name, text in questions.items()]
    return _lines(["", *systems.values()], rows)


def _mistake(probe: dict) -> str:
    words = {
        "error": "**stops**",
        "warning": "**warns**",
        "crash": "crashes",
        "endless": "hangs",
        "none": "-",
    }
    shown = words.get(probe["outcome"], "returns")
    return shown + (", at the line" if probe.get("line") else "")


def _ability(probe: dict) -> str:
    if probe["outcome"] == "none":
        return "-"
    return _cell(probe["text"] if probe["outcome"] == "answer" else f"no: {probe['text']}")


def _said(found: dict, systems: dict[str, str]) -> str:
    parts = []
    for name, text in MISTAKES.items():
        parts.append(f"**{text[0].upper()}{text[1:]}**\n")
        for system, title in systems.items():
            probe = found[system]["probes"][name]
            if probe["outcome"] != "none":
                parts.append(f"- {title}: {_code(probe)}")
        parts.append("")
    return "\n".join(parts)


def _code(probe: dict) -> str:
    return f"`{probe['text'].replace('`', chr(39))}`" if probe["outcome"] != "answer" else probe["text"]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _lines(heading: list[str], rows: list[list[str]]) -> str:
    made = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in made)
