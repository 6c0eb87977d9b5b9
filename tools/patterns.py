"""Drawings of patterns for the reference: grids of cells as SVG, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import prod

import numpy as np

from nki.isa.affine import affine_values

CELL, LEFT, TOP = 40, 92, 44
_CHOSEN = 'fill="#3f51b5" fill-opacity="0.35"'
_PLAIN = 'fill="currentColor" fill-opacity="0.04"'

Pattern = Sequence[Sequence[int]]


def grid(title: str, labels: np.ndarray, chosen: np.ndarray, rows: str = "partition") -> str:
    """Return a grid of labelled cells, some of them chosen, as an SVG figure."""
    count, width = labels.shape
    wide, high = max(LEFT + width * CELL + 8, 8 * len(title)), TOP + count * CELL + 8
    parts = [f'<text x="4" y="16" font-weight="600">{escape(title)}</text>']
    parts += [_text(LEFT + (j + 0.5) * CELL, TOP - 8, j, 0.8) for j in range(width)]
    for i in range(count):
        parts.append(_text(LEFT / 2, TOP + (i + 0.6) * CELL, f"{rows} {i}", 0.8))
        for j in range(width):
            style = _CHOSEN if chosen[i, j] else _PLAIN
            parts.append(
                f'<rect x="{LEFT + j * CELL}" y="{TOP + i * CELL}" width="{CELL}" height="{CELL}" {style} '
                'stroke="currentColor" stroke-opacity="0.4"/>'
            )
            faint = 1 if chosen[i, j] else 0.8
            parts.append(_text(LEFT + (j + 0.5) * CELL, TOP + (i + 0.6) * CELL, labels[i, j], faint))
    drawing = "".join(parts)
    return (
        f'<figure class="pattern"><svg viewBox="0 0 {wide} {high}" width="{wide}" role="img" '
        f'aria-label="{escape(title)}" style="max-width:100%;height:auto;font:13px sans-serif" '
        f'fill="currentColor">{drawing}</svg></figure>\n'
    )


def _text(x: float, y: float, label: object, opacity: float) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill-opacity="{opacity}">{escape(str(label))}</text>'
    )


def iota(pattern: Pattern, offset: int, channel_multiplier: int, partitions: int = 2) -> str:
    """Draw the values that nisa.iota writes."""
    values = affine_values(pattern, partitions, channel_multiplier, offset)
    called = f"iota(tile, {[*map(list, pattern)]}, offset={offset}, channel_multiplier={channel_multiplier})"
    return grid(called, values, np.ones_like(values, bool))


def affine_select(pattern: Pattern, channel_multiplier: int, compare: str, offset: int = 0) -> str:
    """Draw the value of each element, and which ones nisa.affine_select keeps."""
    values = affine_values(pattern, 4, channel_multiplier, offset)
    chosen = {"greater_equal": values >= 0, "equal": values == 0, "greater": values > 0}[compare]
    shown = f"{[*map(list, pattern)]}, channel_multiplier {channel_multiplier}, offset {offset}, nl.{compare}"
    return grid(shown, values, chosen)


def access_pattern(shape: tuple[int, int], pattern: Pattern, offset: int = 0) -> str:
    """Draw the elements of a tile that `t.ap` reads, numbered in their order."""
    order = np.full(prod(shape), "", object)
    for number, place in enumerate(places(pattern, offset)):
        order[place] = f"{order[place]}, {number}" if order[place] else str(number)
    labels = order.reshape(shape)
    given = f", offset={offset}" if offset else ""
    return grid(f"t.ap({[*map(list, pattern)]}{given}) of a tile {list(shape)}", labels, labels != "")


def places(pattern: Pattern, offset: int = 0) -> np.ndarray:
    """Return the elements that an access pattern reads, in their order."""
    steps = np.meshgrid(*(np.arange(count) * step for step, count in pattern), indexing="ij")
    return (offset + sum(steps)).reshape(-1)


def _iotas() -> list[str]:
    return [iota([[1, 6]], 0, 6), iota([[10, 2], [1, 3]], 5, 100), iota([[0, 2], [-1, 3]], 2, 0)]


def _selections() -> list[str]:
    triangle = affine_select([[-1, 6]], 1, "greater_equal", 2)
    return [affine_select([[-1, 4]], 1, "greater_equal"), affine_select([[-1, 4]], 1, "equal"), triangle]


def _access_patterns() -> list[str]:
    return [
        access_pattern((2, 6), [[6, 2], [2, 3]]),
        access_pattern((2, 6), [[6, 2], [1, 2]], 3),
        access_pattern((2, 6), [[6, 2], [1, 3], [3, 2]]),
        access_pattern((2, 6), [[6, 2], [0, 2], [1, 3]]),
    ]


DRAWINGS: dict[str, Callable[[], list[str]]] = {
    "nisa.iota": _iotas,
    "nisa.affine_select": _selections,
    "nl.NkiTensor": _access_patterns,
}
CAPTIONS = {
    "nisa.iota": "The value of each element, for three patterns.",
    "nisa.affine_select": "The value of each element, and in colour those that are kept: the lower triangle "
    "of a causal mask, the diagonal, and a triangle two columns further to the right.",
    "nl.NkiTensor": "The elements of a tile in the order in which a pattern reads them: every second column, "
    "two columns from column 3 on, columns in another order, and columns that are read twice.",
}


def drawings(name: str) -> str:
    """Return the drawings of a name with a caption, or nothing."""
    return "\n".join([CAPTIONS[name], "", *DRAWINGS[name]()]) if name in DRAWINGS else ""
