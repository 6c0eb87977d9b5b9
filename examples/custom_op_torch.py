"""a * b * (a + b) in PyTorch, with the addition as a kernel: forward, compiled, and in training.

python examples/custom_op_torch.py
"""

import torch

import nki
import nki.isa as nisa
import nki.language as nl
from nki.frameworks.torch import differentiable


@nki.jit
def tensor_add(a, b):
    """Return a + b for matrices with any number of rows, 128 at a time."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    rows, columns = a.shape
    for first in range(0, rows, nl.tile_size.pmax):
        last = min(first + nl.tile_size.pmax, rows)
        left = nl.ndarray((last - first, columns), a.dtype)
        right = nl.ndarray((last - first, columns), b.dtype)
        nisa.dma_copy(left, a[first:last])
        nisa.dma_copy(right, b[first:last])
        nisa.tensor_tensor(left, left, right, op=nl.add)
        nisa.dma_copy(out[first:last], left)
    return out


class Add(torch.autograd.Function):
    """Define the gradient with PyTorch's own class."""

    @staticmethod
    def forward(ctx, a, b):
        return tensor_add(a, b)

    @staticmethod
    def backward(ctx, dy, *args):
        return dy, dy


add = differentiable(tensor_add, lambda dy, a, b: (dy, dy))  # the same with differentiable


def sum_product(a, b):
    return a * b * add(a, b)


def train(steps=60):
    """Find a and b for which a * b * (a + b) is 2 everywhere. Return the losses."""
    torch.manual_seed(0)
    a, b = (torch.rand(256, 1024).requires_grad_() for _ in range(2))
    optimizer = torch.optim.Adam([a, b], lr=0.03)
    losses = []
    for _ in range(steps):
        loss = (sum_product(a, b) - 2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    a, b = torch.rand(256, 1024), torch.rand(256, 1024)
    expected = a * b * (a + b)
    torch.testing.assert_close(sum_product(a, b), expected)
    print("forward: equal to torch")

    compiled = torch.compile(sum_product, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), expected)
    print("torch.compile(fullgraph=True): equal to torch")

    for way in (Add.apply, add):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        (x * y * way(x, y)).sum().backward()
        torch.testing.assert_close(x.grad, b * (a + b) + a * b)
    print("backward: equal to b * (a + b) + a * b")

    losses = train()
    print(f"training: loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
