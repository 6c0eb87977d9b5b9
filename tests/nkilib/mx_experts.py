"""A mixture of experts with MX weights, and what it computes, in float64 on emulated numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from kernel_support import cosine, random
from mx_weights import by_blocks, in_words, places_of_columns, places_of_rows

from nkilib.core.mlp.mlp import act_ref
from nkilib.core.utils.common_types import ActFnType

BF16 = ml_dtypes.bfloat16


class Experts:
    """Weights of E experts as words, and as float64."""

    def __init__(self, tokens, h, inner, experts, k, form="float4_e2m1fn"):
        rng = np.random.default_rng(3)
        self.x = random((tokens, h), "bfloat16", 1)
        self.affinities = rng.uniform(0.1, 1, (tokens, experts)).astype(np.float32)
        chosen = [rng.permutation(experts)[:k] for _ in range(tokens)]
        self.index = np.array(chosen, np.int32)
        self.rows, self.columns = places_of_rows(h, "quarter"), places_of_columns(inner)
        forms = [
            [
                in_words(random(s, "float32", 3 * e + i, s[0] ** -0.5), places, form)
                for i, (s, places) in enumerate(
                    (((h, inner), self.rows), ((h, inner), self.rows), ((inner, h), self.columns))
                )
            ]
            for e in range(experts)
        ]
        self.seen = [[f[2] for f in expert] for expert in forms]
        pairs = [[np.stack([expert[0][i], expert[1][i]], axis=1) for expert in forms] for i in (0, 1)]
        self.weights = {
            "expert_gate_up_weights": np.stack(pairs[0]),
            "expert_down_weights": np.stack([expert[2][0] for expert in forms]),
            "expert_gate_up_weights_scale": np.stack(pairs[1]),
            "expert_down_weights_scale": np.stack([expert[2][1] for expert in forms]),
        }

    def arguments(self, all_expert, **options):
        routing = {"expert_affinities": self.affinities, "expert_index": self.index}
        return {"hidden_input": self.x, **self.weights, **routing, "is_all_expert": all_expert, **options}

    def expert(self, e, x=None, bias=None, limits=None, act=ActFnType.SiLU):
        """f_e of all tokens, or of x [tokens, H]."""
        x = by_blocks(np.asarray(self.x if x is None else x, np.float64), self.rows)
        g, u = x @ self.seen[e][0], x @ self.seen[e][1]
        if bias is not None:
            g, u = g + bias[0][e, 0], u + bias[0][e, 1]
        if limits is not None:
            g, u = np.clip(g, *limits), np.clip(u, *limits)
        m = (act_ref(g, act) * u).astype(BF16).astype(np.float64)
        y = by_blocks(m, self.columns) @ self.seen[e][2]
        return y if bias is None else y + bias[1][e]

    def expected(self, weights, **options):
        """weights [T, E]"""
        return sum(weights[:, e : e + 1] * self.expert(e, **options) for e in range(len(self.seen)))

    def chosen(self, scaled):
        """[T, E]: affinities, or 1, where a token goes."""
        weights = np.zeros(self.affinities.shape)
        for t, row in enumerate(self.index):
            weights[t, row] = self.affinities[t, row] if scaled else 1
        return weights


def agree(actual, wanted):
    """Within what spec/library/moe.md asks of MX; the kernel rarely rounds to the other side."""
    assert actual.shape == wanted.shape
    np.testing.assert_allclose(actual.astype(np.float64), wanted, rtol=6e-2, atol=6e-2 * np.abs(wanted).max())
    assert cosine(actual.astype(np.float64), wanted) > 0.9995
