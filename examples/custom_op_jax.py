"""a * b * (a + b) in JAX, with the addition as a kernel: eager, jitted, and in training.

python examples/custom_op_jax.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nki.frameworks.jax import differentiable, hlo


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


@jax.custom_vjp
def long_add(a, b):
    """Define the gradient with JAX's own decorator."""
    return tensor_add(a, b)


long_add.defvjp(lambda a, b: (long_add(a, b), (a, b)), lambda saved, dy: (dy, dy))

add = differentiable(tensor_add, lambda dy, a, b: (dy, dy))  # the same with differentiable


def sum_product(a, b):
    return a * b * add(a, b)


@jax.jit
def step(a, b, rate):
    """Do one step of gradient descent towards a * b * (a + b) == 2."""

    def loss(a, b):
        return ((sum_product(a, b) - 2) ** 2).mean()

    value, (da, db) = jax.value_and_grad(loss, argnums=(0, 1))(a, b)
    return value, a - rate * da, b - rate * db


def train(steps=50):
    a, b = jax.random.uniform(jax.random.key(0), (2, 256, 1024))
    losses = []
    for _ in range(steps):
        loss, a, b = step(a, b, 5e3)
        losses.append(float(loss))
    return losses


def main():
    a, b = jax.random.uniform(jax.random.key(1), (2, 256, 1024))
    expected = a * b * (a + b)
    np.testing.assert_allclose(sum_product(a, b), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(sum_product)(a, b), expected, rtol=1e-6)
    print("forward, eager and jitted: equal to JAX")

    for way in (long_add, add):
        gradients = jax.jit(jax.grad(lambda a, b, way=way: (a * b * way(a, b)).sum(), argnums=(0, 1)))
        np.testing.assert_allclose(gradients(a, b)[0], b * (a + b) + a * b, rtol=1e-5)
    print("gradients: equal to b * (a + b) + a * b")

    losses = train()
    print(f"training: loss {losses[0]:.4f} -> {losses[-1]:.4f}")

    calls = [line for line in hlo(sum_product, a, b).splitlines() if "custom-call" in line]
    print(f"the kernel in the compiled HLO:\n{calls[0].strip()[:100]}...")
    assert len(calls) == 1 and jnp.isfinite(losses[-1])


if __name__ == "__main__":
    main()
