"""Ready tasks: their references against PyTorch, and the kernels that pass them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nki
from nki.cli.script import loaded
from nki_grading import grade, load_task
from nki_grading.task import ready

sandboxed = pytest.mark.skipif(sys.platform == "win32", reason="Windows passes no pipes to children")


def attention(q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def adamw_step(theta, g, m, v):
    """The first step of the optimizer, from moments that are given."""
    parameter = torch.nn.Parameter(theta.clone())
    parameter.grad = g
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=1e-2)
    optimizer.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.step()
    return parameter.detach()


def rotated(x, cos, sin):
    """Products of complex numbers."""
    half = len(x) // 2
    product = torch.complex(x[:half], x[half:]) * torch.complex(cos, sin)
    return torch.cat([product.real, product.imag])


def scan(delta, u, a, b, c):
    """The scan as a sum over all earlier steps."""
    log = torch.cumsum(delta, 1)[:, None] * a[:, :, None]
    terms = (delta * u)[:, None] * b * torch.exp(-log)
    return (torch.exp(log) * torch.cumsum(terms, 2) * c).sum(1)


EXPECTED = {
    "adamw": adamw_step,
    "add-rmsnorm-matmul": lambda x, w, eps, z, g: F.rms_norm(x + z, (x.shape[1],), g, eps) @ w,
    "bmm": torch.bmm,
    "bmm-softmax": lambda x, w: torch.bmm(x, w).softmax(-1),
    "gqa-full": attention,
    "lora": lambda x, w, a, b: x @ (w + a @ b),
    "mamba": scan,
    "matmul": torch.matmul,
    "matmul-add-rmsnorm": lambda x, w, eps, z, g: F.rms_norm(x @ w + z, (w.shape[1],), g, eps),
    "rmsnorm-matmul": lambda x, w: F.rms_norm(x, (x.shape[1],), eps=0.0) @ w,
    "rope-single-freq-apply": rotated,
    "silu": F.silu,
    "swiglu": lambda x, up, down, gate: (F.silu(x @ gate) * (x @ up)) @ down,
    "transpose-matmul": lambda x, w: torch.einsum("km,kn->mn", x, w),
}


def test_there_is_a_task_for_each_operator_of_nkibench_and_each_step_of_cs149():
    names = {f"nkibench-{name}{size}" for name in EXPECTED for size in ("", "-small")}
    names |= {f"cs149-{name}" for name in ("conv2d", "conv2d-small", "conv2d-extra", "transpose")}
    names |= {f"cs149-vector-add-{way}" for way in ("naive", "tiled", "stream")}
    assert names <= set(ready())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_reference_of_nkibench_agrees_with_pytorch(name):
    task = load_task(f"nkibench-{name}-small")
    values = task.cases[0].sample(0)
    shapes = task.reference.args[1]
    arguments = [
        torch.from_numpy(value.reshape(shapes[key]).astype(np.float64)) if key in shapes else value
        for key, value in values.items()
    ]
    np.testing.assert_allclose(task.reference(**values), EXPECTED[name](*arguments), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pool", [1, 2])
def test_the_reference_of_the_convolution_agrees_with_pytorch(pool):
    task = load_task("cs149-conv2d-small")
    rng = np.random.default_rng(0)
    x, w, bias = rng.random((2, 3, 8, 6)), rng.random((4, 3, 3, 3)), rng.random(4)
    expected = F.max_pool2d(F.conv2d(*map(torch.from_numpy, (x, w, bias))), pool)
    np.testing.assert_allclose(task.reference(x, w, bias, pool), expected, rtol=1e-12)


SILU = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

@nki.jit
def kernel(rows):  # arguments are passed by position: names are free
    partitions, blocks, columns = rows.shape
    out = nl.ndarray((partitions, blocks, columns), dtype=rows.dtype, buffer=nl.shared_hbm)
    for block in nl.affine_range(blocks):
        x = nl.load(rows[:, block, :])
        nl.store(out[:, block, :], nl.multiply(x, nl.sigmoid(x)))
    return out
"""

TRANSPOSE = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def matrix_transpose(a_tensor):
    rows, columns = a_tensor.shape
    out = nl.ndarray((columns, rows), a_tensor.dtype, buffer=nl.shared_hbm)
    for row in range(0, rows, 128):
        block = nl.ndarray((128, columns), a_tensor.dtype)
        nisa.dma_copy(block, a_tensor[row : row + 128])
        for column in range(0, columns, 128):
            psum = nl.ndarray((128, 128), a_tensor.dtype, buffer=nl.psum)
            nisa.nc_transpose(psum, block[:, column : column + 128])
            tile = nl.ndarray((128, 128), a_tensor.dtype)
            nisa.tensor_copy(tile, psum)
            nisa.dma_copy(out[column : column + 128, row : row + 128], tile)
    return out
"""


def graded(tmp_path, task, source):
    (tmp_path / "submission.py").write_text(source)
    return grade(task, tmp_path / "submission.py")


@sandboxed
def test_an_old_kernel_passes_nkibench_in_its_own_layout(tmp_path):
    right = graded(tmp_path, "nkibench-silu-small", SILU)
    assert right.passed and right.target == "trn1", right.summary()
    wrong = graded(tmp_path, "nkibench-silu-small", SILU.replace("nl.sigmoid(x)", "nl.tanh(x)"))
    assert not wrong.passed and "wrong on hidden inputs" in wrong.cases[0].problem, wrong.summary()


@sandboxed
def test_the_transpose_of_cs149_is_graded(tmp_path):
    task = load_task("cs149-transpose")
    right = graded(tmp_path, replace(task, cases=task.cases[:1]), TRANSPOSE)
    assert right.passed and right.earned == 10, right.summary()


STEPS = Path(__file__).with_name("matmul_steps.py")


@sandboxed
@pytest.mark.parametrize(("step", "earned"), [("basic", [1, 0, 0]), ("optimized", [1, 1, 5])])
def test_the_first_and_the_last_step_of_the_matmul_guide_are_graded(tmp_path, step, earned):
    submission = tmp_path / "submission.py"
    submission.write_text(f"{STEPS.read_text()}\n\nmatmul = {step}\n")
    verdict = grade("matmul-guide", submission)
    assert [case.earned for case in verdict.cases] == earned, verdict.summary()


def test_each_step_of_the_matmul_guide_earns_more():
    task = load_task("matmul-guide")
    fast = task.cases[-1]
    with loaded(STEPS) as steps, nki.options(target=task.target):
        kernels = [steps.tiled, steps.hoisted, steps.blocked, steps.optimized]
        times = [k.trace(*(s.spec for s in fast.arguments.values())).profile().total_us for k in kernels]
    assert [fast.share(us) for us in times] == [0.4, 0.6, 0.8, 1.0], times
