"""gather and scatter_add against numpy's indexing in float64, and their gradients against autograd."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.experimental.misc import gather, gather_bwd, gather_ref, scatter_add, scatter_add_bwd

BF16 = 2**-7


def chosen(count, rows, seed=0, dtype=np.int32):
    return np.random.default_rng(seed).integers(0, rows, count).astype(dtype)


def added(input, dim, index, src):
    """Add row by row, in float64."""
    total = input.astype(np.float64)
    for i, row in enumerate(index):
        total[row] += src[i].astype(np.float64)
    return total


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [gather, gather_bwd, scatter_add, scatter_add_bwd])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


ROWS = {"input": random((9, 5)), "dim": 0, "index": chosen(6, 9)}
GATHERS = [
    Option("basic"),
    Option("one-column", {"input": random((9, 1))}),
    Option("130-indices", {"index": chosen(130, 9)}),
    Option("384-indices", {"input": random((400, 3)), "index": chosen(384, 400)}),
    Option("wide", {"input": random((3, 5000)), "index": chosen(2, 3)}),
    Option("unsigned", {"index": chosen(6, 9, dtype=np.uint32)}),
    Option("bfloat16", {"input": random((9, 7), "bfloat16")}),
    Option("fp8", {"input": random((9, 7), "float8_e4m3fn")}),
    Option("int32", {"input": chosen((9, 4), 99)}),
]
GATHERS = on_both(GATHERS) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")]
GATHERS += [Option("odd", {"index": chosen(7, 9)}), Option("one", {"index": chosen(1, 9)})]
GATHERS += [Option("odd-lnc2", {"index": chosen(7, 9)}, "index", lnc=2)]
GATHERS += refusals(input=None, index=None, dim=1, input__rank=random(5), index__rank=chosen((2, 2), 9))
GATHERS += refusals(index__dtype=random(3))


@each(GATHERS)
def test_gather(option):
    check(option, gather, ROWS, lambda input, dim, index: input.astype(np.float64)[index], 0.0)


ADDED = ROWS | {"src": random((6, 5), seed=1)}
ADDS = [
    Option("basic"),
    Option("all-equal", {"index": np.full(6, 4, np.int32)}),
    Option("distinct", {"index": np.arange(6, dtype=np.int32)[::-1].copy()}),
    Option("one-row", {"index": chosen(1, 9), "src": random((1, 5))}),
    Option("one-column", {"input": random((9, 1)), "src": random((6, 1))}),
    Option("300-rows", {"input": random((20, 3)), "index": chosen(300, 20), "src": random((300, 3))}),
    Option("wide", {"input": random((4, 5000)), "src": random((6, 5000)), "index": chosen(6, 4)}),
    Option("unsigned", {"index": chosen(6, 9, dtype=np.uint32)}),
    Option(
        "bfloat16", {"input": random((9, 5), "bfloat16"), "src": random((6, 5), "bfloat16")}, tolerance=BF16
    ),
    Option(
        "float16", {"input": random((9, 5), "float16"), "src": random((6, 5), "float16")}, tolerance=2**-10
    ),
]
ADDS = on_both(ADDS) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")]
ADDS += refusals(input=None, index=None, src=None, dim=1, src__shape=random((5, 5)), input__rank=random(5))
ADDS += refusals(
    src__dtype=random((6, 5), "bfloat16"), input__dtype=chosen((9, 5), 3), index__dtype=random(6)
)


@each(ADDS)
def test_scatter_add(option):
    check(option, scatter_add, ADDED, added, 1e-6)


@pytest.mark.parametrize("lnc", [1, 2])
def test_scatter_add_writes_its_argument(lnc):
    given = {name: np.copy(value) for name, value in ADDED.items()} | {"dim": 0}
    result = run(scatter_add, **given, lnc=lnc)
    np.testing.assert_array_equal(given["input"], result)


def test_an_index_outside_is_an_error():
    with pytest.raises(IndexError):
        run(gather, ROWS["input"], 0, np.array([9], np.int32))
    with pytest.raises(IndexError):
        run(scatter_add, ROWS["input"].copy(), 0, np.array([9], np.int32), random((1, 5)))


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("rows", "columns", "count"), [(9, 5, 6), (3, 1, 200), (50, 131, 130)])
def test_gradients_of_gather_are_those_of_torch(rows, columns, count, lnc):
    table = torch.tensor(random((rows, columns)), dtype=torch.float64, requires_grad=True)
    index, dy = chosen(count, rows), random((count, columns), seed=2)
    table[torch.tensor(index).long()].backward(torch.tensor(dy, dtype=torch.float64))
    near(run(gather_bwd, dy, random((rows, columns)), 0, index, lnc=lnc), table.grad.numpy(), 1e-6)
    assert (
        run(gather, random((rows, columns)), 0, index) == gather_ref(random((rows, columns)), 0, index)
    ).all()


def test_both_are_differentiable_in_torch():
    index = torch.tensor([2, 0, 2], dtype=torch.int32)
    results = []
    for take, add, dtype in (
        (autograd.gather, autograd.scatter_add, torch.float32),
        (lambda x, d, i: x[i], lambda x, d, i, s: x.index_add(d, i, s), torch.float64),
    ):
        x = torch.tensor(random((4, 3)), dtype=dtype, requires_grad=True)
        y = torch.tensor(random((3, 3), seed=1), dtype=dtype, requires_grad=True)
        (take(x, 0, index) * y + take(add(x, 0, index, y), 0, index) ** 2).sum().backward()
        results.append((x.grad.numpy(), y.grad.numpy()))
    for got, expected in zip(*results, strict=True):
        near(got, expected, 1e-6)
