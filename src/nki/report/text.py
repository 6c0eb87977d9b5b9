"""The profile as text: tables of at most 100 columns, without colour unless a terminal shows them.

Everything here reads `profile.to_dict()` alone, so a saved profile prints like a fresh one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..timing.advice.formatting import amount as size
from .figures import Figures

WIDTH = 100
MOST_LINES = 10  # of the table of source lines
BAR = 20  # columns of 100 %


class HasFigures(Protocol):
    """A profile, fresh or saved."""

    def to_dict(self) -> Figures: ...


def summary(profile: HasFigures, assumptions: bool = False) -> str:
    """Return the whole report of one profile; `assumptions` lists them all."""
    return plain(document(profile.to_dict(), assumptions))


def comparison(a: HasFigures, b: HasFigures) -> str:
    """Return two profiles side by side."""
    return plain(side_by_side(a.to_dict(), b.to_dict()))


def plain(shown: RenderableType) -> str:
    """Return a renderable as text without colour, WIDTH columns wide."""
    out = io.StringIO()
    console = Console(  # in a notebook rich would show it instead of writing it
        file=out,
        width=WIDTH,
        color_system=None,
        markup=False,
        emoji=False,
        highlight=False,
        force_jupyter=False,
        force_terminal=False,
    )
    console.print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


# ---- one profile ---------------------------------------------------------------------------------


def document(f: Figures, assumptions: bool = False) -> RenderableType:
    """Return the report of a figures object, for a rich console; `assumptions` lists them all."""
    parts = [
        headline(f),
        diagnostics(f),
        findings(f),
        engine_table(f),
        facts(f),
        line_table(f),
        uncertainty(f),
        assumption_table(f) if assumptions else assumption_count(f),
    ]
    return Group(*(part for part in parts if part is not None))


def headline(f: Figures) -> Text:
    cores = f"{f['cores']} cores" if f["cores"] > 1 else "1 core"
    text = Text.assemble(
        (f["kernel"], "bold"), f" on {f['target']}, {cores}: ", (time(f["total_us"]), "bold")
    )
    return text.append(f" modelled, {f['instructions']:,} instructions")


def engine_table(f: Figures) -> Table:
    table = ruled("engine", "active", "", "", "instructions", "their time", right=(1, 2, 4, 5))
    for name, e in f["engines"].items():
        share = e["active_percent"]
        active, together = times(e["active_us"], e["instruction_us"])
        table.add_row(
            name,
            active,
            f"{share:.1f} %",
            Text(bar(share), style="green" if share >= 80 else "cyan"),
            f"{e['instructions']:,}",
            together,
        )
    return table


def facts(f: Figures) -> Table:
    """DMA, memory, roofline and bounds, a line each."""
    dma, roof, limits = f["dma"], f["roofline"], f["limits"]
    queues = ", ".join(f"{count:,} {mode}" for mode, count in dma["queues"].items()) or "none"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    if f.get("transformations"):
        changes = (f"{one['count']:,} {one['changes']} ({one['name']})" for one in f["transformations"])
        grid.add_row("  compiler", "; ".join(changes))
    grid.add_row(
        "  DMA",
        f"{dma['transfers']:,} transfers ({queues}), {size(dma['bytes'])}, "
        f"{size(dma['bytes_per_descriptor'])} per descriptor, packet time {time(dma['packet_us'])}",
    )
    read, written = size(f["hbm_read_bytes"]), size(f["hbm_write_bytes"])
    grid.add_row(
        "  HBM",
        f"read {read}, written {written}, MBU {f['mbu_percent']:.1f} %"
        + "".join(f"; {t['name']} read {t['read_bytes'] / t['bytes']:g} times" for t in _read_again(f)),
    )
    grid.add_row(
        "  SBUF",
        f"peak {size(f['sbuf_peak_bytes'])} of {size(limits['sbuf_usable_bytes'])}"
        + (f", spills move {size(f['spill_bytes'])}" if f["spill_bytes"] else ", nothing spilled"),
    )
    grid.add_row("  PSUM", f"peak {size(f['psum_peak_bytes'])} of {size(limits['psum_bytes'])}")
    grid.add_row(
        "  roofline",
        f"{roof['flops_per_byte']:.1f} FLOP/byte (ridge at {roof['ridge_flops_per_byte']:.1f}); "
        f"{roof['achieved_tflops']:.2f} of {roof['peak_tflops']:.2f} TFLOP/s",
    )
    if roof.get("ceilings_us"):
        grid.add_row("", _ceilings(roof))
    grid.add_row(
        "",
        f"MFU {f['mfu_percent']:.2f} %, HFU {f['hfu_percent']:.2f} %, "
        f"at most {f['mfu_max_achievable_percent']:.2f} % with this HBM traffic",
    )
    for name, text in bounds(f):
        grid.add_row(name, text)
    return grid


def _ceilings(roof: Figures) -> str:
    """Return the least time that each resource needs for this work: the longest is the bound."""
    roofs = roof["ceilings_us"]
    least = ", ".join(f"{name} {us}" for name, us in zip(roofs, times(*roofs.values()), strict=True))
    return f"{roof['bound']} is the bound; at least {least}"


def _read_again(f: Figures) -> list[Figures]:
    """Return tensors whose bytes are read more than once."""
    return [t for t in f["tensors"] if t["read_bytes"] > 1.01 * t["bytes"]][:3]


def bounds(f: Figures) -> Iterable[tuple[str, str]]:
    """Yield the ladders: each step could not be faster than the next."""
    memory, compute = (times(*f["bounds"][kind].values()) for kind in ("memory", "compute"))
    busiest = time(f["bounds"]["pipeline"]["busiest_engine_us"])
    yield "  bounds", "memory: {} DMA active >= {} all its bytes >= {} necessary bytes".format(*memory)
    yield "", "compute: {} TensorE active >= {} its work >= {} without transposes".format(*compute)
    yield "", f"pipeline: {busiest} busiest engine"


def line_table(f: Figures) -> Table | None:
    if not f["lines"]:
        return None
    table = ruled("line", "critical", "share", "run time", "instr.", "engine", "source", right=(1, 2, 3, 4))
    for column in table.columns[:-1]:
        column.no_wrap = True  # the source is shortened instead
    for row in f["lines"][:MOST_LINES]:
        engine = max(row["engines"], key=row["engines"].get)
        critical, together = times(row["critical_us"], row["instruction_us"])
        table.add_row(
            row["line"],
            critical,
            f"{row['critical_percent']:.1f} %",
            together,
            f"{row['instructions']:,}",
            "spill" if row["spill_bytes"] > row["dma_bytes"] and engine == "dma" else engine,
            Text(row["source"], no_wrap=True, overflow="ellipsis"),
        )
    left = len(f["lines"]) - MOST_LINES
    if left > 0:
        table.add_row(f"{left} more", "", "", "", "", "", "")
    return table


def findings(f: Figures) -> RenderableType | None:
    if not f["findings"]:
        return None
    parts: list[RenderableType] = [_title("What would help")]
    for number, finding in enumerate(f["findings"], 1):
        gain = f" (about {time(finding['gain_us'])})" if finding["gain_us"] > 0 else ""
        parts.append(Padding(Text.assemble(f"{number}. ", (finding["title"], "bold"), gain), (0, 0, 0, 2)))
        where = f" [{_some(finding['lines'])}]" if finding["lines"] else ""
        parts.append(Padding(Text(finding["detail"] + where), (0, 0, 0, 5)))
    return Group(*parts)


def diagnostics(f: Figures) -> RenderableType | None:
    if not f["diagnostics"]:
        return None
    parts: list[RenderableType] = [_title("What hardware may reject")]
    for d in f["diagnostics"]:
        where = f"{d['line']}: " if d["line"] else ""
        help = f"; {d['help']}" if d["help"] else ""
        text = Text.assemble(where, (f"[{d['kind']}] ", "yellow"), d["message"], help)
        parts.append(Padding(text, (0, 0, 0, 2)))
    return Group(*parts)


def assumption_count(f: Figures) -> Text | None:
    count = len(f["assumptions"])
    return Text(f"  {count} assumptions: nki profile --assumptions") if count else None


def assumption_table(f: Figures) -> RenderableType | None:
    """No source publishes these constants: the lines that rest on them are less certain."""
    if not f["assumptions"]:
        return None
    table = ruled("assumed", "value", "because", "lines")
    for a in f["assumptions"]:
        table.add_row(a["field"], _value(a["value"]), a["reason"], _some(a["lines"]) or "the whole kernel")
    return table


MOST_MOVERS = 5  # of the table of what moves the time


def uncertainty(f: Figures) -> RenderableType | None:
    """Return the time as an interval, and the assumptions that move it most."""
    if "uncertainty" not in f:
        return None
    u = f["uncertainty"]
    unit = unit_of(u["high_us"])
    low, total, high = (in_unit(us, unit) for us in (u["low_us"], f["total_us"], u["high_us"]))
    text = f"Between {low} and {high} {unit}, {total} as modelled"
    if not u["movers"]:
        return _title(f"{text}: no assumption moves it")
    table = ruled("moved by", "from", "to", f"{unit} then", f"{unit} then", right=(1, 2, 3, 4))
    for m in u["movers"][:MOST_MOVERS]:
        times = (in_unit(m[end], unit) for end in ("low_us", "high_us"))
        table.add_row(m["field"], _value(m["low"]), _value(m["high"]), *times)
    return Group(_title(text), table)


# ---- two profiles --------------------------------------------------------------------------------


def side_by_side(a: Figures, b: Figures) -> RenderableType:
    """A row per figure, with what changed from a to b."""
    names = [f"{f['kernel']} {f['target']}" + (f" x{f['cores']}" if f["cores"] > 1 else "") for f in (a, b)]
    if names[0] == names[1]:
        names = [f"{name} ({letter})" for name, letter in zip(names, "ab", strict=True)]
    table = ruled("", *names, "change", right=(1, 2, 3))
    for row in compared(a, b):
        table.add_row(*row)
    return Group(table, Text(f"  {which_is_faster(a, b)}", style="bold"))


def compared(a: Figures, b: Figures) -> Iterable[tuple[str, str, str, str]]:
    """(name, figure of a, figure of b, change) of what one of them has, as texts"""
    for name, x, y, shown in _compared(a, b):
        if x or y:
            both = times(x, y) if shown is time else [shown(x), shown(y)]
            yield name, both[0], both[1], _change(name, x, y)


Shown = Callable[[float], str]


def _compared(a: Figures, b: Figures) -> Iterable[tuple[str, float, float, Shown]]:
    """(name, figure of a, figure of b, how to show it)"""

    def row(name: str, shown: Shown, *path: str) -> tuple[str, float, float, Shown]:
        return name, _at(a, path), _at(b, path), shown

    yield row("total", time, "total_us")
    yield row("instructions", count, "instructions")
    for engine in (name for name in a["engines"] if name in b["engines"]):
        yield row(f"{engine} active", time, "engines", engine, "active_us")
        yield row(f"{engine} active %", percent, "engines", engine, "active_percent")
    yield row("DMA transfers", count, "dma", "transfers")
    yield row("DMA packet time", time, "dma", "packet_us")
    yield row("bytes per descriptor", size, "dma", "bytes_per_descriptor")
    yield row("HBM read", size, "hbm_read_bytes")
    yield row("HBM written", size, "hbm_write_bytes")
    yield row("spills", size, "spill_bytes")
    yield row("SBUF peak", size, "sbuf_peak_bytes")
    yield row("PSUM peak", size, "psum_peak_bytes")
    yield row("FLOP per byte", count, "roofline", "flops_per_byte")
    yield row("MFU %", percent, "mfu_percent")
    yield row("HFU %", percent, "hfu_percent")
    yield row("MFU achievable %", percent, "mfu_max_achievable_percent")
    yield row("MBU %", percent, "mbu_percent")


def _at(f: Figures, path: tuple[str, ...]) -> Any:
    for key in path:
        f = f[key]
    return f


def _change(name: str, x: float, y: float) -> str:
    """Points between percentages, a factor between the rest."""
    if name.endswith("%"):
        return f"{y - x:+.1f} points"
    if x == y:
        return "same"
    return f"x{y / x:.3g}" if x else "new"


def which_is_faster(a: Figures, b: Figures) -> str:
    """Return a sentence: which of the two is faster."""
    first, second = a["total_us"], b["total_us"]
    if abs(first - second) <= 0.0005 * max(first, second):
        return "Both take the same time."
    winner, ratio = ("second", first / second) if second < first else ("first", second / first)
    return f"The {winner} is {ratio:.2f} times as fast."


# ---- pieces --------------------------------------------------------------------------------------


def ruled(*names: str, right: Iterable[int] = ()) -> Table:
    """An empty table with these columns."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="right" if i in right else "left")
    return table


def _title(text: str) -> Text:
    return Text(f"\n  {text}", style="bold")


def _some(lines: list[str], most: int = 4) -> str:
    """`kernels.py:22, 28, norm.py:7 and 3 more`"""
    shown, before = [], ""
    for line in lines[:most]:
        file, _, number = line.rpartition(":")
        shown.append(number if file == before else line)
        before = file
    return ", ".join(shown) + (f" and {len(lines) - most} more" if len(lines) > most else "")


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def bar(share: float) -> str:
    """`██████····`"""
    full = round(min(100.0, max(0.0, share)) / 100 * BAR)
    return "█" * full + "·" * (BAR - full)


def count(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"


def percent(share: float) -> str:
    return f"{share:.1f}"


def time(us: float) -> str:
    """`35.7 us`, `39.90 ms`"""
    return times(us)[0]


UNITS = {"ms": 1e3, "us": 1.0, "ns": 1e-3}


def unit_of(us: float) -> str:
    """Return the unit in which a time is shown."""
    return "ms" if us >= 10_000 else "us" if us >= 0.05 or us == 0 else "ns"


def in_unit(us: float, unit: str) -> str:
    """`39.90`: a time in a unit, without it."""
    return f"{us / UNITS[unit]:,.{2 if unit == 'ms' else 1}f}"


def times(*many: float) -> list[str]:
    """Times for one line, all in the unit of the largest."""
    unit = unit_of(max(many, default=0.0))
    return [f"{in_unit(us, unit)} {unit}" for us in many]
