"""A gated MLP whose middle, silu(gate) * up, is a kernel, compared with the same block in plain PyTorch.

python examples/mlp_torch.py
"""

import torch
from torch import nn

import nki
import nki.isa as nisa
import nki.language as nl
from nki.frameworks.torch import differentiable


def load(tensor, first, last):
    """Rows of an HBM matrix in SBUF."""
    tile = nl.ndarray((last - first, tensor.shape[1]), tensor.dtype)
    nisa.dma_copy(tile, tensor[first:last])
    return tile


def tiles(rows):
    """The first and last row of each tile."""
    found = []
    for first in range(0, rows, nl.tile_size.pmax):
        found.append((first, min(first + nl.tile_size.pmax, rows)))
    return found


@nki.jit
def gate_forward(gate, up):
    """silu(gate) * up"""
    out = nl.ndarray(gate.shape, gate.dtype, buffer=nl.shared_hbm)
    for tile in tiles(gate.shape[0]):
        first, last = tile
        result = nl.multiply(nl.silu(load(gate, first, last)), load(up, first, last))
        nisa.dma_copy(out[first:last], result)
    return out


@nki.jit
def gate_backward(dy, gate, up):
    """The gradients of gate and up; silu'(x) = s + silu(x) (1 - s) with s = sigmoid(x)."""
    d_gate = nl.ndarray(gate.shape, gate.dtype, buffer=nl.shared_hbm)
    d_up = nl.ndarray(up.shape, up.dtype, buffer=nl.shared_hbm)
    for tile in tiles(gate.shape[0]):
        first, last = tile
        x, dy_tile = load(gate, first, last), load(dy, first, last)
        sigmoid = nl.sigmoid(x)
        silu = nl.multiply(x, sigmoid)
        slope = nl.add(sigmoid, nl.subtract(silu, nl.multiply(silu, sigmoid)))
        through_up = nl.multiply(dy_tile, load(up, first, last))
        nisa.dma_copy(d_gate[first:last], nl.multiply(through_up, slope))
        nisa.dma_copy(d_up[first:last], nl.multiply(dy_tile, silu))
    return d_gate, d_up


gated = differentiable(gate_forward, gate_backward)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with the middle in PyTorch or as a kernel."""

    def __init__(self, width, hidden, middle):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.middle = middle

    def forward(self, x):
        return self.down(self.middle(self.gate(x), self.up(x)))


def main(rows=200, width=64, hidden=256):
    torch.manual_seed(0)
    plain = MLP(width, hidden, lambda gate, up: nn.functional.silu(gate) * up)
    ours = MLP(width, hidden, gated)
    ours.load_state_dict(plain.state_dict())
    x, target = torch.randn(rows, width), torch.randn(rows, width)

    torch.testing.assert_close(ours(x), plain(x), rtol=1e-4, atol=1e-5)
    print("forward: equal to nn.Module")

    for block in (plain, ours):
        (block(x) - target).square().mean().backward()
    for (name, expected), found in zip(plain.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-6, msg=name)
    print("backward: gradients of all parameters equal")

    optimizer = torch.optim.Adam(ours.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = (ours(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"training: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
