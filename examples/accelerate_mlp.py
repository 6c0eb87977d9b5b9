"""The MLP of a transformer in plain PyTorch and as one library kernel, compared at three sizes.

python examples/accelerate_mlp.py
"""

import torch
from torch import nn

import nki
import nki.language as nl
from nkilib.core.mlp.mlp import fused_mlp_isa_kernel
from nkilib.core.utils.common_types import ActFnType, NormType

LNC = 2  # physical cores of a logical one
SHAPES = ((1, 512, 512, 768), (1, 256, 256, 512), (1, 4, 8192, 132))  # B, S, H, I: prefill twice, decode


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class KernelMLP(MLP):
    """The MLP as a kernel, with the same weights. The kernel takes each matrix as [inputs, outputs]."""

    def forward(self, x):
        return fused_mlp_isa_kernel[LNC](
            hidden=x,
            gate_w=self.gate.weight.T.contiguous(),
            up_w=self.up.weight.T.contiguous(),
            down_w=self.down.weight.T.contiguous(),
            attn_output=None,
            norm_type=NormType.NO_NORM,
            dtype=nl.bfloat16,
            act_fn=ActFnType.SiLU,
        )


def modelled_us(batch, sequence, hidden_size, intermediate_size):
    """Return the kernel's modelled time on a device."""
    shapes = {
        "hidden": (batch, sequence, hidden_size),
        "gate_w": (hidden_size, intermediate_size),
        "up_w": (hidden_size, intermediate_size),
        "down_w": (intermediate_size, hidden_size),
    }
    specs = {name: nki.TensorSpec(shape, "bfloat16") for name, shape in shapes.items()}
    return nki.profile(fused_mlp_isa_kernel[LNC])(**specs).total_us


@torch.no_grad()
def compare(batch, sequence, hidden_size, intermediate_size):
    """Return the largest difference between the two; assert that it is within rtol = atol = 1e-2."""
    torch.manual_seed(0)
    plain = MLP(hidden_size, intermediate_size).to(torch.bfloat16)
    ours = KernelMLP(hidden_size, intermediate_size).to(torch.bfloat16)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(batch, sequence, hidden_size, dtype=torch.bfloat16)
    expected, found = plain(x), ours(x)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    return (found - expected).abs().max().item()


def main():
    for shape in SHAPES:
        print(
            f"B, S, H, I = {shape}: equal to nn.Module within {compare(*shape):.4f}, "
            f"modelled {modelled_us(*shape):.1f} us"
        )


if __name__ == "__main__":
    main()
