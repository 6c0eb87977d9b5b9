"""build_all2all_dispatch_metadata against sets of ranks counted in Python."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, on_both, refusals

from nkilib.experimental.moe_block.build_all2all_dispatch_metadata import build_all2all_dispatch_metadata


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(build_all2all_dispatch_metadata)


def routed(tokens=5, k=3, experts=8, seed=0):
    return np.random.default_rng(seed).integers(0, experts, (tokens, k)).astype(np.int32)


def counted(expert_index, num_experts, num_elements_per_token, replica_group_size):
    table = np.zeros((4, replica_group_size))
    for rank in range(replica_group_size):
        own = range(rank * num_experts // replica_group_size, (rank + 1) * num_experts // replica_group_size)
        sent = sum(any(int(expert) in own for expert in token) for token in expert_index)
        table[0, rank] = sent * num_elements_per_token
        table[1, rank] = table[0, :rank].sum()
    return table


BASIC = {"expert_index": routed(), "num_experts": 8, "num_elements_per_token": 10, "replica_group_size": 4}
CASES = [
    Option("basic"),
    Option("one-rank", {"replica_group_size": 1}),
    Option("a-rank-each", {"replica_group_size": 8}),
    Option("one-choice", {"expert_index": routed(k=1)}),
    Option("one-token", {"expert_index": routed(tokens=1)}),
    Option("150-tokens", {"expert_index": routed(tokens=150)}),
    Option("300-tokens", {"expert_index": routed(tokens=300, k=8)}),
    Option("same-expert", {"expert_index": np.full((4, 3), 5, np.int32)}),
    Option("outside", {"expert_index": np.array([[-1, 2], [8, 9]], np.int32)}),
    Option("elements", {"num_elements_per_token": 7168}),
    Option(
        "many-experts", {"expert_index": routed(20, 8, 256), "num_experts": 256, "replica_group_size": 64}
    ),
    Option("unsigned", {"expert_index": routed().astype(np.uint32)}),
]
WRONG = refusals(expert_index=None, expert_index__rank=routed()[0], expert_index__dtype=random((5, 3)))
WRONG += refusals(num_experts=6, num_experts__few=2, replica_group_size=0, num_elements_per_token=0)
WRONG += refusals(num_elements_per_token__many=2**24)


@each(on_both(CASES) + WRONG + [Option("trn3", on="trn3")])
def test_build_all2all_dispatch_metadata(option):
    check(option, build_all2all_dispatch_metadata, BASIC, counted, 0.0)
