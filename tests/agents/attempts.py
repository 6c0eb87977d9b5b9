"""What an agent writes in a session, from a first attempt to a fast kernel, and the task that it works on."""

TASK = """
import numpy as np
from nki_grading import Case, Task, normal


def softmax(x):
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


TASK = Task(
    name="softmax", entry="softmax", reference=softmax, cases=[Case("two tiles", {"x": normal((256, 512))})]
)
"""

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
"""

# 256 partitions: nki check refuses it
FIRST = (
    HEAD
    + """    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.dma_copy(out, tile)
    return out
"""
)

LOOP = """    for i in range(x.shape[0] // 128):
        rows = slice(i * 128, (i + 1) * 128)
        tile, powers = nl.ndarray((128, x.shape[1]), x.dtype), nl.ndarray((128, x.shape[1]), nl.float32)
        least, total = nl.ndarray((128, 1), nl.float32), nl.ndarray((128, 1), nl.float32)
        nisa.dma_copy(tile, x[rows])
        nisa.tensor_reduce(least, nl.maximum, tile, axis=1, negate=True)
"""
END = """        nisa.reciprocal(total, total)
        nisa.tensor_scalar(tile, powers, op0=nl.multiply, operand0=total)
        nisa.dma_copy(out[rows], tile)
    return out
"""
STEPS = """        nisa.tensor_scalar(powers, tile, op0=nl.add, operand0=least)
        nisa.activation(powers, nl.exp, powers)
"""
SUM = """        nisa.tensor_reduce(total, nl.add, powers, axis=1)
"""

WRONG = HEAD + LOOP + STEPS + SUM.replace("nl.add", "nl.maximum") + END  # divides by the largest power
RIGHT = HEAD + LOOP + STEPS + SUM + END
# one instruction in place of three
FAST = (
    HEAD
    + LOOP
    + """        once = nisa.reduce_cmd.reset_reduce
        nisa.activation(powers, nl.exp, tile, bias=least, reduce_op=nl.add, reduce_res=total, reduce_cmd=once)
"""
    + END
)

TRY = """

import numpy as np

x = np.random.default_rng(1).standard_normal((256, 512)).astype(np.float32)
powers = np.exp(x - x.max(1, keepdims=True))
error = abs(softmax(x) - powers / powers.sum(1, keepdims=True)).max()
print(f"largest error {error:.1e}")
assert error < 1e-6
"""
