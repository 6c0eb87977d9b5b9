"""The operators of NKIBench at its sizes and in its layouts, each also at a small size.

NKIBench (arXiv 2511.15915) asks for `kernel` with the arguments by position. It times on trn1; `baseline_us`
is what it publishes for its first kernel of an operator. Results are compared in any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..sandbox import Limits
from ..task import Case, Samples, Task, normal, uniform

EPS = 1e-5
LARGE = Limits(seconds=600, memory=20 << 30, output=4 << 30)  # some results have a gigabyte


@dataclass(frozen=True)
class BenchTensor:
    """An argument: the shape that the operator is defined on, and the shape that the kernel gets."""

    shape: tuple[int, ...]
    samples: Samples


def tensor(shape: tuple[int, ...], laid_out: tuple[int, ...] = (), std: float = 1.0) -> BenchTensor:
    return BenchTensor(shape, normal(laid_out or shape, std=std))


@dataclass(frozen=True)
class BenchOperator:
    """What is computed, its arguments as a function of sizes, and the sizes."""

    reference: Callable[..., np.ndarray]
    arguments: Callable[..., dict[str, Any]]
    published: Mapping[str, int]
    small: Mapping[str, int]
    baseline_us: float
    summed: str = ""  # the sizes whose product is the length of the sums


def double(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


def adamw(theta: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return parameters after the first step of AdamW: rate 1e-3, decay 1e-2, betas 0.9 and 0.999."""
    theta, g, m, v = double(theta, g, m, v)
    first, second = (0.9 * m + 0.1 * g) / (1 - 0.9), (0.999 * v + 0.001 * g * g) / (1 - 0.999)
    return theta * (1 - 1e-3 * 1e-2) - 1e-3 * first / (np.sqrt(second) + 1e-8)


def matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return x @ w, of matrices or of batches."""
    return np.matmul(*double(x, w))


def transpose_matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return x.T @ w."""
    return matmul(x.T, w)


def lora(x: np.ndarray, w: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return x @ w + x @ a @ b, where a @ b has low rank."""
    x, w, a, b = double(x, w, a, b)
    return x @ w + (x @ a) @ b


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def bmm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return x @ w for each matrix of a batch, rounded once."""
    return np.stack([matmul(a, b).astype(np.float32) for a, b in zip(x, w, strict=True)])


def bmm_softmax(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return softmax(x @ w) over the last dimension, rounded once."""
    return np.stack([softmax(matmul(a, b)).astype(np.float32) for a, b in zip(x, w, strict=True)])


def gqa_full(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return attention of (batch, length, heads, d) as (batch, heads, length, d), with shared keys."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (array.transpose(0, 2, 1, 3) for array in double(q, k, v))
    heads = [
        softmax(q[:, h] @ k[:, h // group].transpose(0, 2, 1) / np.sqrt(q.shape[-1])) @ v[:, h // group]
        for h in range(q.shape[1])
    ]
    return np.stack(heads, 1)


def rms(x: np.ndarray, eps: float = 0.0) -> np.ndarray:
    """Return x divided by its root mean square over the last dimension."""
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)


def rmsnorm_matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the product of normalised rows with w."""
    x, w = double(x, w)
    return rms(x) @ w


def add_rmsnorm_matmul(x: np.ndarray, w: np.ndarray, eps: float, z: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return the product of the normalised, scaled rows of x + z with w."""
    x, w, z, g = double(x, w, z, g)
    return (rms(x + z, eps) * g) @ w


def matmul_add_rmsnorm(x: np.ndarray, w: np.ndarray, eps: float, z: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return the normalised, scaled rows of x @ w + z."""
    x, w, z, g = double(x, w, z, g)
    return rms(x @ w + z, eps) * g


def rope_single_freq_apply(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Return the two halves of each column rotated by its angles."""
    x, cos, sin = double(x, cos, sin)
    upper, lower = np.split(x, 2)
    return np.concatenate([upper * cos - lower * sin, upper * sin + lower * cos])


def silu(x: np.ndarray) -> np.ndarray:
    """Return x times its logistic function."""
    (x,) = double(x)
    return x / (1 + np.exp(-x))


def swiglu(x: np.ndarray, up: np.ndarray, down: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """Return (silu(x @ gate) * (x @ up)) @ down."""
    return (silu(matmul(x, gate)) * matmul(x, up)) @ down.astype(np.float64)


def mamba(delta: np.ndarray, u: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the selective scan: state = exp(delta a) state + delta b u, summed with c over the states."""
    delta, u, a, b, c = double(delta, u, a, b, c)
    state, out = np.zeros_like(a), np.empty_like(u)
    for i in range(u.shape[1]):
        state = np.exp(delta[:, i, None] * a) * state + (delta[:, i] * u[:, i])[:, None] * b[:, i]
        out[:, i] = state @ c[:, i]
    return out


# ---- arguments: the shape of the operator, and the layout of the kernel --------------------------


def _tiled(M: int, N: int, K: int) -> dict[str, Any]:
    return {"x": tensor((M, K), (M // 128, 128, K // 128, 128)), "w": _rows(K, N)}


def _rows(K: int, N: int) -> BenchTensor:
    return tensor((K, N), (K // 128, 128, N))


def _blocks(M: int, K: int) -> BenchTensor:
    return tensor((M, K), (M // 512, 4, 128, K // 128, 128))


def _lora(M: int, N: int, K: int, R: int) -> dict[str, Any]:
    return {"x": _blocks(M, K), "w": _rows(K, N), "a": _rows(K, R), "b": tensor((R, N))}


def _swiglu(M: int, N: int, K: int) -> dict[str, Any]:
    return {"x": _blocks(M, K), "up": _rows(K, N), "down": _rows(N, K), "gate": _rows(K, N)}


def _transposed(M: int, N: int, K: int) -> dict[str, Any]:
    return {"x": tensor((K, M), (128, K // 128, M)), "w": tensor((K, N), (128, K // 128, N))}


def _rmsnorm_matmul(M: int, N: int, K: int) -> dict[str, Any]:
    return {"x": _rows(M, K), "w": _rows(K, N)}


def _add_norm(M: int, N: int, K: int) -> dict[str, Any]:
    return {"x": tensor((M, K)), "w": tensor((K, N)), "eps": EPS, "z": tensor((M, K)), "g": tensor((K,))}


def _norm_last(M: int, N: int, K: int) -> dict[str, Any]:
    return {**_add_norm(M, N, K), "z": tensor((M, N)), "g": tensor((N,))}


def _bmm(B: int, M: int, N: int, K: int) -> dict[str, Any]:
    return {"x": tensor((B, M, K)), "w": tensor((B, K, N))}


def _gqa(B: int, N: int, Q: int, H: int, D: int) -> dict[str, Any]:
    return {
        "q": tensor((B, N, Q, D), (B * N // 128, 128, Q, D)),
        "k": tensor((B, N, H, D), (B, N // 512, 4, 128, H, D)),
        "v": tensor((B, N, H, D), (B, N // 128, 128, H * D)),
    }


def _mamba(M: int, C: int, S: int) -> dict[str, Any]:
    shapes = {"delta": (C, M), "u": (C, M), "a": (C, S), "b": (S, M), "c": (S, M)}
    return {name: tensor(shape, std=0.05) for name, shape in shapes.items()}


def _adamw(M: int, N: int) -> dict[str, Any]:
    moments = {"m": tensor((M, N)), "v": BenchTensor((M, N), uniform((M, N)))}
    return {"theta": tensor((M, N)), "g": tensor((M, N)), **moments}


def _rope(H: int, N: int, D: int) -> dict[str, Any]:
    angles = tensor((D // 2, H * N))
    return {"x": tensor((D, H * N)), "cos": angles, "sin": angles}


def _silu(M: int, N: int) -> dict[str, Any]:
    return {"x": tensor((M, N), (128, M // 128, N))}


TILE = dict(M=128, N=512, K=256)
BLOCK = dict(M=512, N=512, K=256)
OPERATORS = [
    BenchOperator(adamw, _adamw, dict(M=10944, N=2048), dict(M=256, N=512), 1999.8),
    BenchOperator(add_rmsnorm_matmul, _add_norm, dict(M=4096, N=2048, K=1024), TILE, 1221.9, "K"),
    BenchOperator(bmm, _bmm, dict(B=16, M=4096, N=4096, K=64), dict(B=2, M=128, N=512, K=64), 4610.9, "K"),
    BenchOperator(bmm_softmax, _bmm, dict(B=16, M=4096, N=4096, K=64), dict(B=2, **TILE), 11999.6, "KN"),
    BenchOperator(
        gqa_full, _gqa, dict(B=1, N=4096, Q=16, H=8, D=128), dict(B=1, N=512, Q=2, H=1, D=128), 19110.5, "N"
    ),
    BenchOperator(lora, _lora, dict(M=4096, N=12288, K=5120, R=128), dict(R=128, **BLOCK), 30166.4, "KR"),
    BenchOperator(mamba, _mamba, dict(M=7168, C=256, S=16), dict(M=256, C=128, S=4), 2888.7, "SM"),
    BenchOperator(matmul, _tiled, dict(M=4096, N=12288, K=5120), TILE, 35199.7, "K"),
    BenchOperator(matmul_add_rmsnorm, _norm_last, dict(M=4096, N=2048, K=2048), TILE, 2666.6, "K"),
    BenchOperator(rmsnorm_matmul, _rmsnorm_matmul, dict(M=4096, N=2048, K=1024), TILE, 1055.8, "K"),
    BenchOperator(rope_single_freq_apply, _rope, dict(H=64, N=4096, D=128), dict(H=2, N=512, D=128), 4333.0),
    BenchOperator(silu, _silu, dict(M=4096, N=7168), dict(M=256, N=512), 1333.2),
    BenchOperator(swiglu, _swiglu, dict(M=4096, N=3072, K=1024), BLOCK, 4221.8, "KN"),
    BenchOperator(transpose_matmul, _transposed, dict(M=4096, N=10944, K=2048), TILE, 9610.3, "K"),
]


def computed(operator: BenchOperator, shapes: Mapping[str, tuple[int, ...]], **values: Any) -> np.ndarray:
    """Return the reference of arguments in the kernel's layout."""
    return operator.reference(
        *(value.reshape(shapes[name]) if name in shapes else value for name, value in values.items())
    )


def task(operator: BenchOperator, small: bool) -> Task:
    sizes = operator.small if small else operator.published
    arguments = operator.arguments(**sizes)
    tensors = {name: value for name, value in arguments.items() if isinstance(value, BenchTensor)}
    shapes = {name: value.shape for name, value in tensors.items()}
    passed = {name: value.samples if name in tensors else value for name, value in arguments.items()}
    name = ", ".join(f"{size}={value}" for size, value in sizes.items())
    takes = ", ".join(f"{n} {t.shape} as {t.samples.shape}" for n, t in tensors.items())
    operation = operator.reference.__name__
    return Task(
        f"nkibench-{operation.replace('_', '-')}{'-small' * small}",
        "kernel",
        partial(computed, operator, shapes),
        [Case(name, passed, baseline_us=None if small else operator.baseline_us)],
        f"Write kernel({', '.join(arguments)}): {operator.reference.__doc__}\nThe kernel gets {takes}.",
        terms=int(np.prod([sizes[size] for size in operator.summed])),
        any_shape=True,
        target="trn1",
        visible_seeds=(),
        limits=Limits() if small else LARGE,
    )


TASKS = [task(operator, small) for operator in OPERATORS for small in (False, True)]
