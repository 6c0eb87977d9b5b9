"""The reference of decode's experts for tensors of PyTorch."""

import torch

from nkilib.core.moe.moe_tkg.moe_tkg_torch import moe_tkg_torch_ref
from nkilib.core.utils.common_types import ExpertAffinityScaleMode


def test_tensors_give_what_a_loop_over_experts_gives():
    torch.manual_seed(0)
    x, gate_up, down = torch.randn(3, 8), torch.randn(4, 8, 2, 6), torch.randn(4, 6, 8)
    affinities = torch.softmax(torch.randn(3, 4), -1)
    chosen = torch.topk(affinities, 2).indices.to(torch.int32)
    expected = torch.zeros(3, 8)
    for token in range(3):
        for expert in chosen[token].tolist():
            gate, up = x[token] @ gate_up[expert, :, 0], x[token] @ gate_up[expert, :, 1]
            part = (torch.nn.functional.silu(gate) * up) @ down[expert]
            expected[token] += affinities[token, expert] * part
    options = {"expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE, "is_all_expert": False}
    got = moe_tkg_torch_ref(x, gate_up, down, affinities, chosen, **options)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected)
    rounded = moe_tkg_torch_ref(x.bfloat16(), gate_up, down, affinities, chosen, **options)
    assert rounded.dtype == torch.bfloat16
