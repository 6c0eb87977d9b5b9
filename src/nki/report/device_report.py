"""What a device and the model did, as tables in the terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..markup import escape, fill, policy
from .html import asset, engine_name
from .text import ruled

Figures = dict[str, Any]
Row = tuple[str, ...]

# of each table: its key in the figures, its heading, its first columns, (figure, column) of the others
TABLES = (
    (
        "opcodes",
        "Instructions",
        ("engine", "opcode"),
        (("count", "count"), ("us", "us"), ("median_ns", "ns"), ("first_us", "first")),
    ),
    (
        "engines",
        "Engines",
        ("engine",),
        (
            ("active_us", "active"),
            ("idle_us", "idle"),
            ("longest_gap_us", "gap"),
            ("first_us", "first"),
        ),
    ),
    (
        "dma",
        "DMA packets",
        ("queue",),
        (("count", "count"), ("us", "us"), ("median_ns", "ns"), ("bytes", "bytes")),
    ),
)


def summary(figures: Figures, kernel: str) -> str:
    """Return one sentence about both times."""
    device, model = figures["total_us"]["device"], figures["total_us"]["model"]
    return (
        f"{kernel}: {device:.1f} us on the device, {model:.1f} us in the model ({model / device:.2f} of it)"
    )


def terminal(figures: Figures, kernel: str) -> RenderableType:
    """Return a table for opcodes, one for engines and one for DMA: the device's figure, then the model's.

    Times are in us, and medians in ns.
    """
    shown: list[RenderableType] = []
    for key, title, names, columns in TABLES:
        heads = [f"{column}\n{who}" for _, column in columns for who in ("device", "model")]
        table = ruled(*names, *heads, right=range(len(names), len(names) + len(heads)))
        for row in _rows(figures, key, names, columns):
            table.add_row(*map(Text, row))  # a name is no markup
        shown += [Text(title, style="bold"), table]
    return Group(*shown, Text(summary(figures, kernel), style="bold"))


def page(figures: Figures, kernel: str) -> str:
    """Return the same as a page that needs nothing else."""
    script = asset("compare.js")
    tables = {key: _table(figures, key, title, names, columns) for key, title, names, columns in TABLES}
    longest = max(*figures["total_us"].values(), 1e-9)
    bars = "".join(_bars(one, longest) for one in figures["engines"])
    return fill(
        asset("compare.html"),
        policy=policy(script),
        script=script,
        title=escape(f"{kernel}: device and model"),
        style=asset("page.css"),
        faster=escape(summary(figures, kernel)),
        table=tables["engines"] + tables["dma"],
        engines=bars,
        findings="",
        frames=f'<div class="both one"><section>{tables["opcodes"]}</section></div>',
    )


def _rows(figures: Figures, key: str, names: Row, columns: tuple[tuple[str, str], ...]) -> Iterator[Row]:
    for one in figures[key]:
        cells = [_cell(one[who], figure) for figure, _ in columns for who in ("device", "model")]
        yield (*(one[name] for name in names), *cells)


def _cell(figures: Figures | None, name: str) -> str:
    if figures is None:
        return "-"
    return f"{figures[name]:,.1f}" if name.endswith("us") else f"{figures[name]:,.0f}"


def _table(figures: Figures, key: str, title: str, names: Row, columns: tuple[tuple[str, str], ...]) -> str:
    heads = [*names, *(f"{column} {who}" for _, column in columns for who in ("device", "model"))]
    head = _cells("th", heads, len(names))
    rows = "".join(f"<tr>{_cells('td', row, len(names))}</tr>" for row in _rows(figures, key, names, columns))
    return (
        f'<h2>{escape(title)}</h2><div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(tag: str, texts: Sequence[str], names: int) -> str:
    """Return the cells of a row; the first ones are names."""
    classes = [' class="name"' if i < names else "" for i in range(len(texts))]
    return "".join(f"<{tag}{what}>{escape(text)}</{tag}>" for what, text in zip(classes, texts, strict=True))


def _bars(one: Figures, longest: float) -> str:
    lengths = ((who, (one[who] or {"active_us": 0.0})["active_us"]) for who in ("device", "model"))
    bars = "".join(
        f'<div><i style="width:calc((100% - 130px) * {us / longest:.4f})"></i>'
        f"<small>{who} {us:,.1f} us</small></div>"
        for who, us in lengths
    )
    name = one["engine"]
    return f'<div class="pair {escape(name)}"><span>{escape(engine_name(name))}</span><div>{bars}</div></div>'
