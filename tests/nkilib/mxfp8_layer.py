"""A mixture of experts for the tests of MXFP8, and its emulation by the OCP specification in float64."""

from __future__ import annotations

import ml_dtypes
import mx_emulation
import numpy as np
from kernel_support import random

BF16 = np.dtype(ml_dtypes.bfloat16)


def rounded(x):
    return np.asarray(x, np.float32).astype(BF16)


class Layer:
    """Tokens with random routing: each goes to `top` of the experts; blocks of an expert end with padding."""

    def __init__(
        self, tokens=200, experts=3, h=256, i=128, block=128, top=2, pad=-1, limits=None, fp8="float8_e4m3fn"
    ):
        rng = np.random.default_rng(0)
        self.h, self.i, self.block, self.limits, self.fp8 = h, i, block, limits, fp8
        chosen = np.array([rng.permutation(experts)[:top] for _ in range(tokens)])
        self.hidden = random((tokens, h), BF16, 1)
        self.affinities = rng.random((tokens * experts, 1)).astype(np.float32)
        self.gate_up = random((experts, 2, i, h), BF16, 2, 2 * h**-0.5)
        self.down = random((experts, h, i), BF16, 3, 2 * i**-0.5)
        self.grad = random((tokens, h), BF16, 4)
        ids, owners = [], []
        for e in range(experts):
            mine = np.flatnonzero((chosen == e).any(1))
            for start in range(0, len(mine), block):
                part = mine[start : start + block]
                ids.append(np.concatenate([part, np.full(block - len(part), pad)]))
                owners.append(e)
        self.ids, self.owners = np.concatenate(ids).astype(np.int32), np.array(owners, np.int32)[:, None]

    def blocks(self):
        """(number, expert, tokens with 0 for padding, whether they are real, affinities) of each block."""
        weights = np.float64(self.affinities).reshape(len(self.hidden), -1)
        for n, ids in enumerate(self.ids.reshape(-1, self.block)):
            e, real = int(self.owners[n, 0]), (ids >= 0) & (ids < len(self.hidden))
            t = np.where(real, ids, 0)
            yield n, e, t, real, np.where(real, weights[t, e], 0.0)

    def product(self, a, b):
        return mx_emulation.product(a, b, self.fp8)

    def clamped(self, x, kind):
        for name, choose in (("upper", np.minimum), ("lower", np.maximum)):
            limit = getattr(self.limits, f"{kind}_clamp_{name}_limit", None)
            x = x if limit is None else choose(x, limit)
        return x

    def forward(self):
        """(out, gate and up [N, 2, I, B], middle [N, I, B])."""
        n_blocks = len(self.owners)
        out = np.zeros(self.hidden.shape)
        sides = np.zeros((n_blocks, 2, self.i, self.block), BF16)
        middle = np.zeros((n_blocks, self.i, self.block), BF16)
        for n, e, t, real, w in self.blocks():
            for side, kind in enumerate(("non_linear", "linear")):
                sums = self.product(self.gate_up[e, side], self.hidden[t])
                sides[n, side] = rounded(self.clamped(sums, kind))
            g, u = np.float64(sides[n])
            middle[n] = rounded(g / (1 + np.exp(-g)) * u * w)
            np.add.at(out, t[real], self.product(middle[n].T, self.down[e])[real])
        return out, sides, middle

    def inside(self, x, kind):
        """1 where a number of the checkpoint is strictly inside its limits, rounded as it was."""
        seen = np.ones(x.shape)
        for name, compare in (("upper", np.less), ("lower", np.greater)):
            limit = getattr(self.limits, f"{kind}_clamp_{name}_limit", None)
            seen *= 1.0 if limit is None else compare(x, float(rounded(limit)))
        return seen

    def backward(self, sides):
        """(dX, dAff, dWgu [E, H, 2, I], dWd [E, I, H]) of a checkpoint [N, 2, I, B]."""
        experts = len(self.down)
        dx, daff = np.zeros(self.hidden.shape), np.zeros((len(self.hidden), experts))
        dgate_up, ddown = np.zeros((experts, self.h, 2, self.i)), np.zeros((experts, self.i, self.h))
        for n, e, t, real, w in self.blocks():
            g, u = np.float64(sides[n])
            sigmoid = 1 / (1 + np.exp(-g))
            dm = self.product(self.down[e].T, self.grad[t])
            np.add.at(daff, (t[real], e), (dm * g * sigmoid * u).sum(0)[real])
            dm = dm * w
            dg = dm * u * sigmoid * (1 + g * (1 - sigmoid)) * self.inside(g, "non_linear")
            du = dm * g * sigmoid * self.inside(u, "linear")
            both = rounded(np.concatenate([dg, du]))  # [2 I, B]
            wide = self.gate_up[e].reshape(2 * self.i, self.h)
            np.add.at(dx, t[real], self.product(both.T, wide.T)[real])
            dgate_up[e] += self.product(self.hidden[t].T, both).reshape(self.h, 2, self.i)
            ddown[e] += self.product(rounded(g * sigmoid * u * w), self.grad[t].T)
        return dx, daff.reshape(-1, 1), dgate_up, ddown
