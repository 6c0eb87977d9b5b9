"""Every option of the kernels that sort, count, permute and reduce routed tokens; and of random numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import random, run
from options.common import Option, check, each, on_both, refusals

from nkilib.core.subkernels.find_nonzero_indices import find_nonzero_indices
from nkilib.experimental.dynamic_shapes.dynamic_elementwise_add import dynamic_elementwise_add
from nkilib.experimental.rng.rng import generate_random, get_rng_state_gpsimd, set_rng_state_gpsimd
from nkilib.experimental.subkernels.argsort_unstable import argsort_unstable
from nkilib.experimental.subkernels.build_all_to_all_v_metadata import build_all_to_all_v_metadata
from nkilib.experimental.subkernels.permute_routed_tokens import permute_routed_tokens
from nkilib.experimental.subkernels.topk_reduce import topk_reduce

# ---- argsort_unstable ----------------------------------------------------------------------------------

ROW = {"data": np.random.default_rng(0).permutation(50).astype(np.int32)[None] - 20}


def order(data, descending=False, output_in_sbuf=False):
    ascending = np.argsort(data[0], kind="stable")
    return (ascending[::-1] if descending else ascending)[None]


def distinct(size: int, dtype: str) -> np.ndarray:
    return (np.random.default_rng(size).permutation(size) - size // 3).astype(dtype)[None]


SORTS = [
    Option("basic"),
    Option("descending", {"descending": True}),
    *(
        Option(f"{dtype}-{n}", {"data": distinct(n, dtype)})
        for dtype in ("int32", "float32")
        for n in (1, 7, 8, 129, 513)
    ),
    Option("negative-zero", {"data": np.array([[3.0, -0.0, -1.0, 2.0]], np.float32)}),
    Option("infinities", {"data": np.array([[np.inf, -np.inf, 0.0, 3.4e38, -3.4e38]], np.float32)}),
    Option("denormals", {"data": np.array([[1e-40, -1e-40, 0.0, 1e-38, 2e-40]], np.float32)}),
    Option("int32-ends", {"data": np.array([[2**31 - 1, -(2**31), 0, 2**24 + 1, 2**24]], np.int32)}),
    Option("nan", {"data": np.array([[1.0, np.nan, -1.0, np.inf]], np.float32)}),
]


@each(on_both(SORTS))
def test_argsort(option):
    check(option, argsort_unstable, ROW, order, 0.0)


SORTS_REFUSED = refusals(
    data=None,
    data__rows=np.zeros((2, 8), np.int32),
    data__rank=np.zeros(8, np.int32),
    data__dtype=np.zeros((1, 8), np.float16),
    data__long=np.zeros((1, 8193), np.int32),
)


@each(SORTS_REFUSED)
def test_argsort_refusals(option):
    check(option, argsort_unstable, ROW, order, 0.0)


# ---- build_all_to_all_v_metadata ------------------------------------------------------------------------


def experts(t=6, k=2, e=12) -> np.ndarray:
    return np.random.default_rng(t).integers(0, e, (t, k)).astype(np.int32)


COUNTS = {"expert_index": experts(), "replica_group_size": 3, "E": 12}


def counted(expert_index, replica_group_size, E, **flags):
    sent = [0] * replica_group_size
    for e in expert_index.ravel():
        sent[int(e) // (E // replica_group_size)] += 1
    return np.array([sent, [sum(sent[:r]) for r in range(replica_group_size)], [0] * replica_group_size])


COUNT_CASES = [
    Option("basic"),
    *(Option(f"ranks-{r}", {"replica_group_size": r}) for r in (1, 2, 4, 12)),
    *(Option(f"tokens-{t}", {"expert_index": experts(t)}) for t in (1, 128, 129)),
    Option("k-8", {"expert_index": experts(k=8)}),
    Option("uint32", {"expert_index": experts().astype(np.uint32)}),
    Option("one-rank-empty", {"expert_index": np.full((4, 2), 11, np.int32)}),
]


@each(on_both(COUNT_CASES))
def test_metadata(option):
    check(option, build_all_to_all_v_metadata, COUNTS, counted, 0.0)


COUNT_REFUSED = refusals(
    expert_index=None,
    expert_index__rank=np.zeros(4, np.int32),
    expert_index__dtype=np.zeros((4, 2), np.float32),
    replica_group_size=0,
    replica_group_size__large=512,
    E=13,
    E__zero=0,
    recv_counts_known=True,
    has_rdispls=True,
)


@each(COUNT_REFUSED)
def test_metadata_refusals(option):
    check(option, build_all_to_all_v_metadata, COUNTS, counted, 0.0)


# ---- permute_routed_tokens ------------------------------------------------------------------------------


def routed(t=5, k=1, columns=6, e=8, dtype="bfloat16") -> dict:
    index = np.random.default_rng(t).permutation(max(e, t * k))[: t * k].reshape(t, k) % e
    return {
        "hidden_input": random((t, columns), dtype),
        "expert_index": index.astype(np.int32),
        "expert_affinities_masked": np.abs(random((t, e), "bfloat16", seed=1)),
    }


def by_expert(hidden_input, expert_index, expert_affinities_masked):
    """Rows by their bits. Every expert of these cases has one row, so that the order is plain."""
    words = hidden_input.view(np.uint8)
    rows = []
    for e in sorted(expert_index.ravel()):
        [(t, _)] = np.argwhere(expert_index == e)
        affinity = expert_affinities_masked[t, e].astype(ml_dtypes.bfloat16)
        rows.append(
            np.r_[words[t], np.array([affinity]).view(np.uint8), np.array([t], np.int32).view(np.uint8)]
        )
    return np.stack(rows)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    "given",
    [
        routed(),
        routed(t=8),
        routed(t=4, k=2),
        routed(t=1, k=8),
        routed(columns=1),
        routed(columns=700),
        routed(t=100, e=128),
        routed(dtype=ml_dtypes.float8_e4m3),
        routed() | {"expert_affinities_masked": np.abs(random((5, 8), seed=1))},
    ],
    ids=["basic", "all", "k-2", "k-8", "one-column", "wide", "100-tokens", "fp8", "float32-affinities"],
)
def test_permutation(given, lnc):
    got = run(permute_routed_tokens, **given, lnc=lnc)
    np.testing.assert_array_equal(got.view(np.uint8), by_expert(**given))


PERMUTE_REFUSED = refusals(
    hidden_input=None,
    hidden_input__rows=random((4, 6), "bfloat16"),
    hidden_input__dtype=random((5, 6)),
    expert_index=None,
    expert_index__rank=np.zeros(5, np.int32),
    expert_index__dtype=np.zeros((5, 1), np.float32),
    expert_affinities_masked=None,
    expert_affinities_masked__rows=random((4, 8), "bfloat16"),
    expert_affinities_masked__many=random((5, 513), "bfloat16"),
)


@each(PERMUTE_REFUSED)
def test_permutation_refusals(option):
    check(option, permute_routed_tokens, routed(), by_expert, 0.0)


# ---- topk_reduce ----------------------------------------------------------------------------------------


def packed(rows=8, h=6, tokens=4, base=1, dtype="bfloat16") -> np.ndarray:
    numbers = np.random.default_rng(rows).integers(-1, tokens, rows).astype(np.int32)
    numbers = np.where(numbers < 0, -1, numbers + base).astype(np.int32)
    words = np.zeros((rows, h + 2), dtype)
    words[:, :h] = random((rows, h), dtype)
    words[:, h:] = numbers[:, None].view(np.dtype(dtype))
    return words


REDUCE = {"input": packed(), "T": 4, "K": 4}


def summed(input, T, K, token_base_index=1):
    h = input.shape[1] - 2
    numbers = np.ascontiguousarray(input[:, h:]).view(np.int32)[:, 0]
    return np.stack([input[numbers == token_base_index + t, :h].astype(np.float64).sum(0) for t in range(T)])


REDUCTIONS = [
    Option("basic"),
    Option("base-0", {"input": packed(base=0), "token_base_index": 0}),
    Option("base-1000", {"input": packed(base=1000), "token_base_index": 1000}),
    Option("float16", {"input": packed(dtype="float16")}, tolerance=2**-11),
    Option("one-token", {"input": packed(tokens=1), "T": 1, "K": 8}),
    Option("300-rows", {"input": packed(rows=300, tokens=100), "T": 100, "K": 8}),
    Option("wide", {"input": packed(h=600)}),
    Option("all-padding", {"input": packed(rows=4, tokens=0), "T": 3}),
]


@each(on_both(REDUCTIONS))
def test_topk_reduce(option):
    check(option, topk_reduce, REDUCE, summed, 2**-8)


REDUCE_REFUSED = refusals(
    input=None,
    input__rank=random(8, "bfloat16"),
    input__narrow=random((4, 2), "bfloat16"),
    input__dtype=random((8, 8)),
    T=0,
    K=0,
)


@each(REDUCE_REFUSED)
def test_topk_reduce_refusals(option):
    check(option, topk_reduce, REDUCE, summed, 2**-8)


# ---- find_nonzero_indices -------------------------------------------------------------------------------


def sparse(t=256, c=4, dtype="float32") -> np.ndarray:
    values = np.random.default_rng(t + c).integers(-2, 3, (t, c))
    return (values * (np.abs(values) > 1)).astype(dtype)


FIND = {"input_tensor": sparse()}


def nonzero(input_tensor, col_start_id=None, n_cols=None, chunk_size=None, index_dtype="int32"):
    first = 0 if col_start_id is None else int(col_start_id[0])
    count = input_tensor.shape[1] if col_start_id is None else n_cols
    indices, counts = np.full((count, len(input_tensor)), -1), np.zeros(count)
    for c in range(count):
        found = [t for t, value in enumerate(input_tensor[:, first + c]) if value != 0]
        indices[c, : len(found)], counts[c] = found, len(found)
    return [indices, counts]


FINDS = [
    Option("basic"),
    *(
        Option(dtype, {"input_tensor": sparse(dtype=dtype)})
        for dtype in ("bfloat16", "float16", "int32", "int8")
    ),
    Option("128-columns", {"input_tensor": sparse(128, 128)}),
    Option("two-columns", {"input_tensor": sparse(384, 2)}),
    Option("chunk-128", {"chunk_size": 128}),
    Option("some-columns", {"col_start_id": np.array([1], np.int32), "n_cols": 2}),
    Option("last-columns", {"col_start_id": np.array([2], np.int32), "n_cols": 2}),
    Option("uint32-indices", {"index_dtype": "uint32", "input_tensor": np.ones((128, 2), np.float32)}),
    Option("all-zero", {"input_tensor": np.zeros((128, 2), np.float32)}),
    Option("negative-zero", {"input_tensor": np.full((128, 2), -0.0, np.float32)}),
    Option("nan", {"input_tensor": np.full((128, 2), np.nan, np.float32)}),
]


@each(on_both(FINDS))
def test_find_nonzero(option):
    check(option, find_nonzero_indices, FIND, nonzero, 0.0)


def test_columns_without_a_first_one_are_warned_about():
    with pytest.warns(UserWarning, match="n_cols has no effect.*col_start_id"):
        run(find_nonzero_indices, sparse(), n_cols=2)


FIND_REFUSED = refusals(
    input_tensor=None,
    input_tensor__rank=np.zeros(128, np.float32),
    input_tensor__rows=np.zeros((100, 2), np.float32),
    input_tensor__columns=np.zeros((128, 129), np.float32),
    chunk_size=100,
    chunk_size__zero=0,
    chunk_size__large=512,
    n_cols__none=None,
) + [
    Option("refuses-start", {"col_start_id": np.array([0, 1], np.int32), "n_cols": 2}, "col_start_id"),
    Option("refuses-count", {"col_start_id": np.array([0], np.int32), "n_cols": 5}, "n_cols"),
    Option("refuses-no-count", {"col_start_id": np.array([0], np.int32)}, "n_cols"),
]
FIND_REFUSED = [case for case in FIND_REFUSED if case.changes != {"n_cols": None}]


@each(FIND_REFUSED)
def test_find_nonzero_refusals(option):
    check(option, find_nonzero_indices, FIND, nonzero, 0.0)


# ---- dynamic_elementwise_add ----------------------------------------------------------------------------

ADD = {
    "input_a": random((256, 512), "bfloat16"),
    "input_b": random((256, 512), "bfloat16", seed=1),
    "num_m_tiles": np.array([[2]], np.int32),
}


@pytest.mark.filterwarnings("ignore:(?s).*never written")
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("tiles", [0, 1, 2])
def test_dynamic_add(tiles, lnc):
    got = run(dynamic_elementwise_add, **(ADD | {"num_m_tiles": np.array([[tiles]], np.int32)}), lnc=lnc)
    wanted = ADD["input_a"].astype(np.float64) + ADD["input_b"].astype(np.float64)
    rows = 128 * tiles
    np.testing.assert_array_equal(
        got[:rows].astype(np.float64), wanted[:rows].astype("bfloat16").astype(np.float64)
    )


ADD_REFUSED = refusals(
    input_a=None,
    input_a__dtype=random((256, 512)),
    input_a__rank=random(512, "bfloat16"),
    input_b=None,
    input_b__shape=random((128, 512), "bfloat16"),
    num_m_tiles=None,
    num_m_tiles__shape=np.array([2], np.int32),
    num_m_tiles__dtype=np.array([[2]], np.float32),
)


@each(ADD_REFUSED)
def test_dynamic_add_refusals(option):
    check(option, dynamic_elementwise_add, ADD, lambda **a: None, 0.0)


# ---- random numbers --------------------------------------------------------------------------------------

STATE = np.array([[1, 2, 3, 4, 5, 6]], np.uint32)


def xorwow(state: np.ndarray, count: int) -> list[int]:
    """Marsaglia's generator in Python's integers."""
    x, y, z, w, v, d = map(int, state.ravel())
    words = []
    for _ in range(count):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) ^ t ^ (t << 1)) % 2**32
        d = (d + 362437) % 2**32
        words.append((v + d) % 2**32)
    return words


@pytest.mark.parametrize("size", [1, 5, 127, 128, 129, 300])
def test_words_follow_the_lanes(size):
    run(set_rng_state_gpsimd, STATE)
    got = run(generate_random, np.zeros((1, size), np.int32), size).view(np.uint32)[0]
    columns = size // 128
    words = xorwow(STATE, columns + size % 128)
    wanted = [word for _ in range(128) for word in words[:columns]] + words[columns:]
    assert got.tolist() == wanted


RANDOM_REFUSED = refusals(
    output=None,
    output__shape=np.zeros((1, 9), np.int32),
    output__dtype=np.zeros((1, 10), np.float32),
    n_elements=11,
)


@each([case if case.refused != "n_elements" else case._replace(refused="output") for case in RANDOM_REFUSED])
def test_random_refusals(option):
    basic = {"output": np.zeros((1, 10), np.int32), "n_elements": 10}
    check(option, generate_random, basic, lambda **a: None, 0.0)


@pytest.mark.parametrize("kernel", [get_rng_state_gpsimd, set_rng_state_gpsimd], ids=["get", "set"])
@each(refusals(tensor_state=None, tensor_state__shape=STATE[0], tensor_state__dtype=STATE.astype(np.float32)))
def test_state_refusals(option, kernel):
    check(option, kernel, {}, lambda **a: None, 0.0)
