"""Where each part of a padded axis comes from. Compile-time only."""

from __future__ import annotations

import nki.language as nl


class AxisPiece(nl.NKIObject):
    """Outputs start .. start + length: the inputs from source on, or the one at source again and again."""

    def __init__(self, start: int, source: int, length: int, repeat: bool = False):
        self.start = start
        self.source = source
        self.length = length
        self.repeat = repeat


class PaddedAxis(nl.NKIObject):
    """One axis: inputs first .. last begin at output `start`; pieces and fills make up the output."""

    def __init__(self, size: int, left: int, right: int, mode: str):
        self.size = size
        self.first = max(0, -left)
        self.last = size - max(0, -right)
        self.start = max(0, left)
        self.output = size + left + right
        self.padded = left != 0 or right != 0
        self.pieces = [AxisPiece(self.start, self.first, self.last - self.first)]
        self.fills = []  # [start, end] of what is constant
        if mode == "constant":
            self.fills = fills_of(self)
        else:
            self.pieces.extend(pads_of(size, left, right, mode))


def unpadded(size: int) -> PaddedAxis:
    return PaddedAxis(size, 0, 0, "constant")


def fills_of(axis: PaddedAxis) -> list:
    end = axis.start + axis.last - axis.first
    fills = []
    if axis.start > 0:
        fills.append([0, axis.start])
    if end < axis.output:
        fills.append([end, axis.output])
    return fills


def pads_of(size: int, left: int, right: int, mode: str) -> list:
    """Return the pieces before and after the input."""
    end, pieces = left + size, []
    if mode == "replicate":
        pieces = [AxisPiece(0, 0, left, True), AxisPiece(end, size - 1, right, True)]
    elif mode == "circular":
        pieces = [AxisPiece(0, size - left, left), AxisPiece(end, 0, right)]
    else:  # no view runs backwards, so a mirror image is made of single elements
        for i in range(left):
            pieces.append(AxisPiece(i, left - i, 1))
        for i in range(right):
            pieces.append(AxisPiece(end + i, size - 2 - i, 1))
    return not_empty(pieces)


def not_empty(pieces: list) -> list:
    found = []
    for piece in pieces:
        if piece.length > 0:
            found.append(piece)
    return found


def pieces_from(axis: PaddedAxis, start: int, end: int) -> list:
    """Return what the inputs start .. end become; sources count from `start`."""
    found = []
    for piece in axis.pieces:
        if piece.repeat:
            if start <= piece.source < end:
                found.append(AxisPiece(piece.start, piece.source - start, piece.length, True))
        else:
            low, high = max(piece.source, start), min(piece.source + piece.length, end)
            if low < high:
                found.append(AxisPiece(piece.start + low - piece.source, low - start, high - low))
    return found


def pieces_into(axis: PaddedAxis, start: int, end: int) -> list:
    """Return what the outputs start .. end are made of; they count from `start`."""
    found = []
    for piece in axis.pieces:
        low, high = max(piece.start, start), min(piece.start + piece.length, end)
        if low < high:
            source = piece.source if piece.repeat else piece.source + low - piece.start
            found.append(AxisPiece(low - start, source, high - low, piece.repeat))
    return found


def one_by_one(pieces: list) -> list:
    """Return the pieces without repetition: one piece for each repeat."""
    single = []
    for piece in pieces:
        if piece.repeat:
            for i in range(piece.length):
                single.append(AxisPiece(piece.start + i, piece.source, 1))
        else:
            single.append(piece)
    return single


def merged_axes(shape: tuple, padding: tuple, mode: str) -> list:
    """Merge the leading dimensions into one axis, followed by those from the first padded one on."""
    spatial, lead = len(padding) // 2, 1
    for dim in range(len(shape) - spatial):
        lead = lead * shape[dim]
    axes = [unpadded(lead)]
    for dim in range(len(shape) - spatial, len(shape)):
        after = 2 * (len(shape) - 1 - dim)
        axis = PaddedAxis(shape[dim], padding[after], padding[after + 1], mode)
        if len(axes) == 1 and not axis.padded and dim < len(shape) - 1:
            axes = [unpadded(axes[0].size * axis.size)]
        else:
            axes.append(axis)
    return axes
