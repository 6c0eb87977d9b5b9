"""The profile as one page that needs nothing else: timeline, source, memory, roofline, findings.

The parts in `page/` are put together here, with the figures as HTML and the timeline as packed columns.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files as package_files

from ..markup import escape, fill, frame, policy, script_data
from ..timing.timeline import Timeline
from .figures import Figures, Profiled, figures
from .packed import Files, pack
from .text import count, size
from .text import time as plain_time

# In the order of use: each only needs the ones before it to be there when the page starts.
SCRIPTS = (
    "elements columns data text python tracks memory view painter layout overlay ruler controls timeline "
    "details source search roofline tables page"
)
EMBEDDED_HEIGHT = 780
MOST_PLACES = 12
MOST_LINES = 20_000  # of a source that is not at hand


def page(profile: Profiled) -> str:
    """Return a complete page, without references to other files."""
    return compose(figures(profile), profile.timeline)


def embedded(profile: Profiled) -> str:
    """Return the page inside a frame, for notebooks."""
    style = f"width:100%;height:{EMBEDDED_HEIGHT}px;border:0"
    return frame(f"{profile.kernel}: modelled run", page(profile), style)


def compose(f: Figures, timeline: Timeline) -> str:
    """Return the page of a timeline and its figures."""
    files = Files()
    packed = pack(timeline, files)
    for line in f["lines"]:
        if line["file"]:
            files.paths(line["file"])
    data = {
        "total_ns": timeline.total_ns,
        "work_ns": timeline.work_ns,
        "semaphore_ns": timeline.machine.semaphore_ns,
        "cores": len(timeline.cores),
        "layout": packed.layout,
        **packed.table,
        "files": [source(path, files.named.get(path)) for path in files.paths],
        "lines": [
            {**line, "file": files.paths(line["file"]), "source": ""} for line in f["lines"] if line["file"]
        ],
        "roofline": f["roofline"],
        "roofs": roofs(timeline),
    }
    opened = "findings" if f["findings"] or f["diagnostics"] else "engines"
    return fill(
        asset("page.html"),
        policy=policy(script()),
        title=escape(f"{f['kernel']} on {f['target']}: {time(f['total_us'])}"),
        style=asset("page.css"),
        kernel=escape(f["kernel"]),
        subtitle=subtitle(f),
        tiles=tiles(f),
        tabs=tabs(f, opened),
        hide_findings="" if opened == "findings" else " hidden",
        hide_engines="" if opened == "engines" else " hidden",
        findings=findings(f),
        engines=engines(f),
        assumptions=assumptions(f),
        profile=script_data(data),
        columns=packed.blob,
        script=script(),
    )


@cache
def script() -> str:
    """Return the program of a page."""
    return '"use strict";\n' + "\n".join(asset(f"{name}.js") for name in SCRIPTS.split())


def time(us: float) -> str:
    return plain_time(us).replace(" us", " µs")


@cache
def asset(name: str) -> str:
    return (package_files(__package__) / "page" / name).read_text("utf-8")


def source(path: str, named: Mapping[int, str] | None) -> Figures:
    """Return a file of the user's as far as its text is at hand.

    `named` has the lines that a program read from a file brings along. Such a program may name any file: its
    lines are shown, and no file is read for it.
    """
    if named is None:
        lines = [line.rstrip("\n") for line in linecache.getlines(path)]
    else:
        last = min(max(named, default=0), MOST_LINES)
        lines = [named.get(number, "") for number in range(1, last + 1)]
    return {"name": path.rsplit("/", 1)[-1], "path": path, "lines": lines}


def roofs(timeline: Timeline) -> list[Figures]:
    """What the arrays of all cores can do, by dtype."""
    m = timeline.machine
    kinds = {"MX": m.mx_multiplier, "fp8": m.double_row_multiplier, "bf16": 1.0, "fp32": m.fp32_multiplier}
    return [
        {"name": name, "tflops": m.peak_flops(factor) * len(timeline.cores) / 1e12}
        for name, factor in kinds.items()
        if factor
    ]


# ---- the figures as HTML -------------------------------------------------------------------------


def subtitle(f: Figures) -> str:
    cores = f"{f['cores']} cores" if f["cores"] > 1 else "1 core"
    return escape(f"{f['target']}, {cores} · {f['instructions']:,} instructions · modelled, not measured")


def tiles(f: Figures) -> str:
    """Return the few numbers to see first."""
    busiest = max(f["engines"], key=lambda name: f["engines"][name]["active_percent"])
    possible = f"of {f['mfu_max_achievable_percent']:.0f} possible" if f["flops"] else ""
    shown = [
        ("total", time(f["total_us"]), "", ""),
        ("MFU", f"{f['mfu_percent']:.1f} %", possible, ""),
        ("MBU", f"{f['mbu_percent']:.1f} %", "", ""),
        (f"{engine_name(busiest)} active", f"{f['engines'][busiest]['active_percent']:.1f} %", "", ""),
        ("HBM read", size(f["hbm_read_bytes"]), "", ""),
        ("written", size(f["hbm_write_bytes"]), "", ""),
        ("spilled", size(f["spill_bytes"]), "", "bad" if f["spill_bytes"] else ""),
    ]
    return "\n".join(
        f'    <div class="{mood}"><dt>{name}</dt><dd>{value} <small>{note}</small></dd></div>'
        for name, value, note, mood in shown
    )


TABS = {
    "findings": "Findings",
    "instruction": "Instruction",
    "instructions": "By kind",
    "waits": "Waits",
    "range-summary": "Range",
    "engines": "Engines",
    "roofline": "Roofline",
    "assumptions": "Assumptions",
}


def tabs(f: Figures, opened: str) -> str:
    counts = {"findings": len(f["findings"]) + len(f["diagnostics"]), "assumptions": len(f["assumptions"])}
    shown = []
    for name, title in TABS.items():
        badge = f"<b>{counts[name]}</b>" if counts.get(name) else ""
        chosen = f'aria-selected="{str(name == opened).lower()}" tabindex="{0 if name == opened else -1}"'
        shown.append(
            f'      <button role="tab" data-panel="{name}" aria-controls="{name}" {chosen}>'
            f"{title}{badge}</button>"
        )
    return "\n".join(shown)


def findings(f: Figures) -> str:
    """Return the findings of the advisor, then the diagnostics."""
    notes = {line["line"]: line_notes(line) for line in f["lines"]}
    shown = [
        article(one["title"], one["detail"], one["lines"], one["gain_us"], notes) for one in f["findings"]
    ]
    for d in f["diagnostics"]:
        lines = [d["line"]] if d["line"] else []
        shown.append(article(f"{d['kind']}: {d['message']}", " ".join([*d["notes"], d["help"]]), lines))
    return "\n".join(shown) or '<p class="faint">Nothing to advise.</p>'


def article(
    title: str, detail: str, lines: list[str], gain_us: float = 0.0, notes: Mapping[str, str] | None = None
) -> str:
    gain = f'<span class="gain">saves {time(gain_us)}</span>' if gain_us > 0 else ""
    return f"<article>{gain}<h3>{escape(title)}</h3><p>{escape(detail)}</p>{places(lines, notes)}</article>"


def engine_name(name: str) -> str:
    return {"dma": "DMA", "gpsimd": "GpSimd"}.get(name, name.capitalize())


def engines(f: Figures) -> str:
    rows = [
        f"<tr><td>{engine_name(name)}</td><td>{engine['active_percent']:.1f} %</td>"
        f"<td class='bar {name}'><i style='width:{engine['active_percent']:.2f}%'></i></td>"
        f"<td>{time(engine['active_us'])}</td><td>{time(engine['instruction_us'])}</td>"
        f"<td>{count(engine['instructions'])}</td></tr>"
        for name, engine in f["engines"].items()
    ]
    dma = f["dma"]
    note = (
        f"{dma['transfers']:,} transfers of {dma['descriptors']:,} descriptors, "
        f"{size(dma['bytes_per_descriptor'])} each; packet time of all engines {time(dma['packet_us'])}."
    )
    names = ("engine", "active", "", "time", "instructions' time", "instructions")
    head = "".join(f"<th>{name}</th>" for name in names)
    table = f"<table class='engines'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"{table}<p>{escape(note)}</p>{bounds(f)}"


def bounds(f: Figures) -> str:
    """What the run would take if one thing alone decided."""
    memory, compute = f["bounds"]["memory"], f["bounds"]["compute"]
    rows = [
        ("DMA busy", memory["dma_active_us"]),
        ("all bytes at full DMA rate", memory["all_bytes_us"]),
        ("every byte once, at full rate", memory["necessary_bytes_us"]),
        ("Tensor busy", compute["tensor_active_us"]),
        ("its work at full rate", compute["adjusted_flops_us"]),
    ]
    return "<h4>Lower bounds of the time</h4><table><tbody>{}</tbody></table>".format(
        "".join(f"<tr><td>{name}</td><td>{time(us)}</td></tr>" for name, us in rows)
    )


def assumptions(f: Figures) -> str:
    """Return the constants that no source publishes, and the lines whose time rests on them."""
    if not f["assumptions"]:
        return '<p class="faint">Every constant behind these times is documented or measured.</p>'
    rows = [
        f"<tr><td><code>{escape(a['field'])}</code><br>{escape(str(a['value']))}</td>"
        f"<td>{escape(a['reason'])}{places(a['lines'])}</td></tr>"
        for a in f["assumptions"]
    ]
    return (
        "<p>These constants are not published: the times of the lines beside them rest on the value shown</p>"
        f'<table class="wrap"><tbody>{"".join(rows)}</tbody></table>'
    )


def places(lines: Iterable[str], notes: Mapping[str, str] | None = None) -> str:
    """Links to source lines, each with its note; those after the first few are collapsed."""
    shown = [
        f'<div><button class="link" data-place="{escape(line)}">{escape(line)}</button>'
        f'<span class="faint">{escape((notes or {}).get(line, ""))}</span></div>'
        for line in lines
    ]
    if not shown:
        return ""
    further = ""
    if len(shown) > MOST_PLACES:
        summary = f"<summary>{count(len(shown) - MOST_PLACES)} further lines</summary>"
        further = f'<details class="further">{summary}{"".join(shown[MOST_PLACES:])}</details>'
    return f'<div class="places">{"".join(shown[:MOST_PLACES])}{further}</div>'


def line_notes(line: Figures) -> str:
    """`512 times, psum, m=0…896 k=0…7`: how often a line runs, what it writes, through which loops."""
    loops = [
        f"{name}={low}" if low == high else f"{name}={low}…{high}"
        for name, (low, high) in line["loops"].items()
    ]
    often = f"{count(line['instructions'])} times" if line["instructions"] > 1 else ""
    return ", ".join(filter(None, [often, "/".join(line["tiles"]), " ".join(loops)]))
