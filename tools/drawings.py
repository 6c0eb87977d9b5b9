"""Draw the pictures of the documentation: `python tools/drawings.py` writes docs/pictures/*.svg.

Plain SVG with two accents, readable on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
STYLE = (
    ".m{fill:#4051b5;fill-opacity:.16;stroke:#5c6bc0;stroke-width:1.5}"  # memories and tiles
    ".e{fill:#00897b;fill-opacity:.18;stroke:#26a69a;stroke-width:1.5}"  # engines and work
    ".w{fill:#ef6c00;fill-opacity:.22;stroke:#ef6c00;stroke-width:1.5}"  # what the text is about
    ".n{fill:none;stroke:#8a909c;stroke-width:1;stroke-dasharray:4 3}"
    ".t{font:14px sans-serif;fill:#4b5563;text-anchor:middle}"
    ".s{font:12px sans-serif;fill:#4b5563;text-anchor:middle}"
    ".l{font:12px sans-serif;fill:#4b5563;text-anchor:start}"
    ".a{stroke:#6b7280;stroke-width:1.5;marker-end:url(#h);fill:none}"
    "@media(prefers-color-scheme:dark){.t,.s,.l{fill:#c3c9d4}}"
)
ARROW = (
    '<defs><marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#6b7280"/></marker></defs>'
)


class Picture:
    """A picture that grows shape by shape."""

    def __init__(self, width: int, height: int, label: str):
        self.head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{label}">\n<style>{STYLE}</style>\n{ARROW}'
        )
        self.shapes: list[str] = []

    def box(self, kind: str, x: float, y: float, width: float, height: float, *lines: str) -> None:
        """Draw a rectangle with lines of text in its middle."""
        self.shapes.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>'
        )
        top = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 18 * number, line, "s" if number or width < 100 else "t")

    def text(self, x: float, y: float, line: str, kind: str = "s") -> None:
        escaped = line.replace("&", "&amp;").replace("<", "&lt;")
        self.shapes.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escaped}</text>')

    def arrow(self, *points: tuple[float, float]) -> None:
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.shapes.append(f'<path class="a" d="M{path}"/>')

    def __str__(self) -> str:
        return "\n".join([self.head, *self.shapes, "</svg>\n"])


def load_compute_store() -> Picture:
    p = Picture(720, 150, "A tile is loaded from HBM, computed on in SBUF, and stored to HBM")
    p.box("m", 10, 30, 130, 90, "HBM", "x")
    p.box("m", 250, 30, 220, 90)
    p.text(360, 22, "SBUF: 128 partitions")
    p.box("w", 265, 50, 75, 50, "tile")
    p.box("w", 380, 50, 75, 50, "result")
    p.box("m", 580, 30, 130, 90, "HBM", "out")
    p.arrow((140, 75), (263, 75))
    p.text(195, 66, "dma_copy")
    p.arrow((340, 75), (378, 75))
    p.text(360, 138, "an engine computes")
    p.arrow((455, 75), (578, 75))
    p.text(522, 66, "dma_copy")
    return p


def memories() -> Picture:
    p = Picture(720, 230, "HBM, SBUF and PSUM with their sizes and who accesses them")
    p.box("m", 10, 40, 150, 170, "HBM", "gigabytes", "any shape")
    p.box("m", 270, 40, 190, 170)
    p.text(365, 30, "SBUF: some 200 KiB a partition", "s")
    p.box("m", 570, 40, 140, 170)
    p.text(640, 30, "PSUM: 16 KiB a partition", "s")
    for i in range(5):
        p.box("n", 278, 50 + 26 * i, 174, 20)
        for bank in range(8):
            p.box("n", 578 + 15.5 * bank, 50 + 26 * i, 15.5, 20)
    p.box("w", 300, 50, 70, 98, "tile")
    p.text(365, 198, "partitions 0 ... 127")
    p.text(640, 198, "8 banks of 2 KiB")
    p.arrow((160, 100), (268, 100))
    p.arrow((270, 140), (162, 140))
    p.text(215, 90, "DMA")
    p.arrow((460, 90), (568, 90))
    p.text(515, 80, "TensorE")
    p.arrow((570, 150), (462, 150))
    p.text(515, 170, "VectorE,")
    p.text(515, 186, "ScalarE")
    return p


def engines() -> Picture:
    p = Picture(720, 190, "Five engines and DMA work at the same time, each in its own order")
    rows = [
        ("DMA", [(0, 90, "load 0"), (95, 90, "load 1"), (190, 90, "load 2"), (430, 80, "store 0")]),
        ("TensorE", [(100, 120, "matmul 0"), (230, 120, "matmul 1"), (360, 120, "matmul 2")]),
        ("ScalarE", [(225, 90, "exp 0"), (355, 90, "exp 1"), (485, 90, "exp 2")]),
        ("VectorE", [(320, 80, "scale 0"), (450, 80, "scale 1"), (580, 60, "scale 2")]),
    ]
    for row, (name, work) in enumerate(rows):
        y = 20 + 38 * row
        p.text(6, y + 20, name, "l")
        for start, width, label in work:
            p.box("e", 70 + start, y, width, 30, label)
    p.arrow((70, 178), (715, 178))
    p.text(30, 182, "time")
    return p


def matmul() -> Picture:
    p = Picture(
        720, 260, "A matmul in the PE array: the stationary tile stays, the moving one passes, PSUM sums"
    )
    p.box("m", 20, 60, 130, 130, "stationary", "[K, M]")
    p.box("e", 280, 60, 130, 130)
    for i in range(1, 6):
        p.box("n", 280, 60 + 21.6 * i, 130, 0.1)
        p.box("n", 280 + 21.6 * i, 60, 0.1, 130)
    p.text(345, 50, "PE array, 128 x 128")
    p.box("m", 440, 60, 90, 130, "moving", "[K, N]")
    p.box("w", 590, 60, 120, 130, "PSUM", "[M, N]")
    p.arrow((150, 110), (278, 110))
    p.text(214, 100, "loaded once")
    p.arrow((440, 150), (412, 150))
    p.text(225, 212, "each column of PEs sums over K")
    p.arrow((345, 190), (345, 238), (650, 238), (650, 192))
    p.text(500, 254, "one row of the result for each column of the moving tile")
    return p


def accumulation() -> Picture:
    p = Picture(720, 200, "Products of the parts of K are added in one PSUM tile, then copied to SBUF once")
    for i in range(4):
        y = 14 + 44 * i
        p.box("m", 20, y, 120, 34, f"lhsT[k{i}, M]")
        p.box("m", 160, y, 120, 34, f"rhs[k{i}, N]")
        p.arrow((280, y + 17), (408, 60 + 16 * i))
        p.text(298, y + 10, "=" if i == 0 else "+=")
    p.box("w", 410, 45, 110, 90, "PSUM", "[M, N] float32")
    p.arrow((520, 90), (588, 90))
    p.text(554, 80, "copy")
    p.box("m", 590, 45, 110, 90, "SBUF", "in its dtype")
    return p


def tiling() -> Picture:
    p = Picture(720, 210, "300 rows as tiles of 128, 128 and 44 rows; with two cores each takes a part")
    for y, height, label in ((20, 70, "rows 0:128"), (90, 70, "rows 128:256"), (160, 26, "rows 256:300")):
        p.box("m" if height > 30 else "w", 60, y, 190, height, label)
    p.text(155, 204, "x[300, columns]: the last tile has 44 rows")
    for y, height, label in ((20, 82, "core 0: rows 0:150"), (104, 82, "core 1: rows 150:300")):
        p.box("e", 430, y, 200, height, label)
    p.text(530, 204, "kernel[2]: each core its own rows")
    return p


def overlap() -> Picture:
    p = Picture(720, 210, "With one tile loads and work take turns; with a tile per iteration they overlap")
    for top, starts, label in (
        (20, [(0, 100), (190, 290), (380, 480)], "one tile"),
        (120, [(0, 100), (95, 195), (190, 290)], "a new tile each time"),
    ):
        p.text(6, top - 4, label, "l")
        p.text(6, top + 22, "DMA", "l")
        p.text(6, top + 58, "VectorE", "l")
        for number, (load, work) in enumerate(starts):
            p.box("m", 70 + load, top + 4, 90, 28, f"load {number}")
            p.box("e", 70 + work, top + 40, 85, 28, f"work {number}")
    p.arrow((70, 202), (715, 202))
    return p


def attention() -> Picture:
    p = Picture(720, 120, "Attention in one kernel: scores, softmax and product with the values on the chip")
    parts = [
        ("m", "q, k", "SBUF"),
        ("w", "scores", "PSUM"),
        ("e", "softmax", "VectorE, ScalarE"),
        ("m", "weights", "SBUF, transposed"),
        ("w", "weights v", "PSUM"),
    ]
    for i, (kind, name, where) in enumerate(parts):
        p.box(kind, 10 + 144 * i, 30, 122, 60, name, where)
        if i:
            p.arrow((-12 + 144 * i, 60), (8 + 144 * i, 60))
    p.text(143, 22, "q k^T")
    p.text(575, 22, "summed over tiles of keys")
    p.text(360, 112, "nothing goes to HBM between q, k, v and the result")
    return p


def causal() -> Picture:
    p = Picture(720, 250, "Of causal attention, tiles above the diagonal are skipped, tiles on it are masked")
    kinds = {-1: "m", 0: "w", 1: "n"}
    for row in range(4):
        for column in range(4):
            kind = kinds[(column > row) - (column < row)]
            label = {"m": "whole", "w": "mask", "n": "skip"}[kind]
            p.box(kind, 130 + 75 * column, 30 + 50 * row, 70, 45, label)
        p.text(85, 58 + 50 * row, f"queries {row}")
    p.text(280, 20, "keys, 4 tiles of 128")
    p.text(560, 60, "whole: scores as they are")
    p.text(560, 90, "mask: affine_select sets")
    p.text(560, 108, "keys after the query to -inf")
    p.text(560, 138, "skip: no instruction at all")
    return p


def backward() -> Picture:
    p = Picture(720, 150, "The forward makes y of x; the backward the gradient of x of that of y")
    p.box("m", 20, 20, 110, 44, "x")
    p.box("e", 260, 20, 170, 44, "forward")
    p.box("m", 560, 20, 140, 44, "y")
    p.box("m", 560, 92, 140, 44, "gradient of y")
    p.box("w", 260, 92, 170, 44, "backward")
    p.box("m", 20, 92, 140, 44, "gradient of x")
    p.arrow((130, 42), (258, 42))
    p.arrow((430, 42), (558, 42))
    p.arrow((560, 114), (432, 114))
    p.arrow((260, 114), (162, 114))
    p.arrow((100, 64), (100, 78), (290, 78), (290, 90))
    return p


def steps() -> Picture:
    p = Picture(720, 90, "Check, test, profile, use")
    names = [("nki check", "compilers take it"), ("pytest", "it is right"), ("nki profile", "it is fast")]
    for i, lines in enumerate([*names, ("PyTorch, JAX", "it is used")]):
        p.box("e" if i < 3 else "w", 10 + 180 * i, 20, 150, 56, *lines)
        if i < 3:
            p.arrow((160 + 180 * i, 48), (188 + 180 * i, 48))
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "load-compute-store": load_compute_store,
    "memories": memories,
    "engines": engines,
    "matmul": matmul,
    "accumulation": accumulation,
    "tiling": tiling,
    "overlap": overlap,
    "attention": attention,
    "causal": causal,
    "backward": backward,
    "steps": steps,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(str(draw()), encoding="utf-8")
    print(f"wrote {len(PICTURES)} pictures to {FOLDER}")


if __name__ == "__main__":
    main()
