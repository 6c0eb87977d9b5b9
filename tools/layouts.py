"""Drawings of layouts: `q [bs, Sq, d], k [d, Skv] -> out [bs, Sq, d]` as boxes with their axes, as SVG."""

from __future__ import annotations

import re
from html import escape

WIDTH, HEIGHT, GAP, TOP = 96, 64, 46, 58
_TENSOR = re.compile(r"([\w, ]*?)\s*(SBUF )?\[([^\]]*)\]")
_COLOURS = {"SBUF": ("#00897b", "0.22"), "HBM": ("#4051b5", "0.18")}


def tensors(side: str) -> list[tuple[str, str, list[str]]]:
    """Return the name, memory and axes of each tensor of one side of a layout."""
    found = _TENSOR.findall(side)
    return [(name.strip(" ,"), memory.strip() or "HBM", axes.split(", ")) for name, memory, axes in found]


def drawing(layout: str) -> str:
    """Return a layout as an SVG figure that is readable on light and dark pages."""
    before, _, after = layout.partition(" -> ")
    parts, x = [], 30.0
    for name, memory, axes in tensors(before):
        parts.append(_box(x, name, memory, axes))
        x += _width(name) + GAP
    parts.append(
        f'<path d="M{x - 22:g} {TOP + HEIGHT / 2:g}h26m-7 -5l7 5l-7 5" fill="none" stroke="currentColor"/>'
    )
    x += 30
    for name, memory, axes in tensors(after):
        parts.append(_box(x, name, memory, axes))
        x += _width(name) + GAP
    return (
        f'<figure class="layout"><svg viewBox="0 0 {x:g} {TOP + HEIGHT + 30}" width="{x:g}" role="img" '
        f'aria-label="{escape(layout)}" style="max-width:100%;height:auto;font:12px sans-serif" '
        f'fill="currentColor">{"".join(parts)}</svg></figure>\n'
    )


def _width(name: str) -> float:
    return max(WIDTH, 6.6 * len(name))


def _box(x: float, name: str, memory: str, axes: list[str]) -> str:
    """Draw rows by columns: the last axis above, the one before it on the left, copies for the others."""
    *outer, rows, columns = ["", *axes] if len(axes) == 1 else axes
    outer = [axis for axis in outer if axis]
    width, (colour, opacity) = _width(name), _COLOURS[memory]
    shapes = [
        f'<rect x="{x + 5 * i:g}" y="{TOP - 5 * i:g}" width="{width:g}" height="{HEIGHT}" rx="2" '
        f'fill="{colour}" fill-opacity="{opacity}" stroke="{colour}"/>'
        for i in range(min(len(outer), 2), -1, -1)
    ]
    middle = x + width / 2
    shapes.append(_text(middle, TOP + HEIGHT / 2 + 4, name, "600"))
    shapes.append(_text(middle, TOP - 16 if outer else TOP - 6, columns))
    if rows:
        place = f"{x - 7:g} {TOP + HEIGHT / 2:g}"
        shapes.append(f'<g transform="translate({place}) rotate(-90)">{_text(0, 0, rows)}</g>')
    under = " x ".join(outer)
    shapes.append(
        _text(
            middle,
            TOP + HEIGHT + 18,
            (f"for each {under}" if under else "") + (" SBUF" if memory == "SBUF" else ""),
        )
    )
    return "".join(shapes)


def _text(x: float, y: float, label: str, weight: str = "400") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-weight="{weight}">{escape(label)}</text>'
