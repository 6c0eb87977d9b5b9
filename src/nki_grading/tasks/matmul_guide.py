"""The five steps of AWS's guide to matrix products: limits are modelled times of our kernels of each step."""

from __future__ import annotations

import numpy as np

from ..task import Case, Task, normal

TEXT = """\
Write matmul(aT, b): the product aT.T @ b of bfloat16 matrices. aT is (contraction, rows), b is (contraction,
columns); the contraction is a multiple of 128, the columns of 512. Step 1 is one product, step 2 a loop over
tiles. The last case gives points for speed: 40 % for step 2, 60 % if the tiles of one operand are loaded once
for a row block (step 3), 80 % if rows and columns are blocked (step 4), and all if every load and store is
large and nothing is loaded more often than needed (step 5).
"""
LIMITS_US = ((80.0, 1.0), (100.0, 0.8), (250.0, 0.6), (370.0, 0.4))  # steps 5, 4, 3 and 2, with 10 % to spare


def reference(aT: np.ndarray, b: np.ndarray) -> np.ndarray:
    return aT.astype(np.float64).T @ b.astype(np.float64)


def case(
    name: str,
    rows: int,
    depth: int,
    columns: int,
    points: float = 1.0,
    limits_us: tuple[tuple[float, float], ...] = (),
) -> Case:
    tensors = {"aT": normal((depth, rows), "bfloat16"), "b": normal((depth, columns), "bfloat16")}
    return Case(f"{name}: {rows} x {depth} x {columns}", tensors, points, limits_us)


CASES = (
    case("one tile", 64, 128, 512),
    case("tiles", 256, 256, 1024),
    case("fast", 1024, 1024, 2048, 5.0, LIMITS_US),
)
TASKS = (Task("matmul-guide", "matmul", reference, CASES, TEXT, visible_seeds=(), hidden_seeds=1),)
