"""Run with several devices: kernels with collectives under jax.shard_map. Prints a line for each check.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python shard_map_program.py
"""

# ruff: noqa: E402
from __future__ import annotations

import os
import warnings

os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn2"
warnings.simplefilter("ignore")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.ranks import run_ranks, split
from nki.ranks.rendezvous import thread_rendezvous
from nkilib.experimental.attention.ring_attention_fwd import ring_attention_spmd_fwd
from nkilib.experimental.collectives.fgcc import allgather_compute_matmul

RANKS = len(jax.devices())
ALL = (tuple(range(RANKS)),)
EACH = P("ranks")
MESH = Mesh(np.array(jax.devices()), ("ranks",))


@nki.jit
def summed(x, group):
    src, dst = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=n) for n in ("src", "dst"))
    nisa.dma_copy(src, x)
    ncc.all_reduce([src], [dst], group, nl.add)
    return dst


@nki.jit
def doubled(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def uneven(x, group):
    """As many sums as the first number of x says."""
    src, dst = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=n) for n in ("src", "dst"))
    nisa.dma_copy(src, x)
    nisa.dma_copy(dst, x)
    count = nisa.register_alloc()
    nisa.register_load(count, x[0:1, 0:1])
    nl.fori_loop(0, count, lambda i: ncc.all_reduce([src], [dst], group, nl.add))
    return dst


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def spread(function, specs=EACH, mesh=MESH, **more):
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs, **more)


def same_bits(ours, kernel, inputs, axis=0):
    local = np.concatenate(run_ranks(kernel, RANKS, inputs), axis)
    return np.asarray(ours).tobytes() == local.tobytes()


X = random(RANKS * 4, 8)


def part_of(rank):
    return split(X, RANKS)[rank]


# ---- checks --------------------------------------------------------------------------------------


def eager_and_compiled():
    function = spread(lambda x: summed(x, ALL))
    wanted = [same_bits(f(X), summed, lambda r: (part_of(r), ALL)) for f in (function, jax.jit(function))]
    return all(wanted)


def two_axes_and_groups_inside():
    mesh = Mesh(np.array(jax.devices()).reshape(2, RANKS // 2), ("a", "b"))
    groups = tuple(tuple(range(first, RANKS, 2)) for first in (0, 1))
    ours = jax.jit(spread(lambda x: summed(x, groups), P(("a", "b")), mesh))(X)
    return same_bits(ours, summed, lambda r: (part_of(r), groups))


def two_cores_each():
    ours = jax.jit(spread(lambda x: summed[2](x, ALL)))(X)
    return same_bits(ours, summed[2], lambda r: (part_of(r), ALL))


def kernels_that_do_not_depend_on_each_other():
    many = jax.jit(spread(lambda x: sum(summed(x + i, ALL) * (i + 1) for i in range(6))))
    one = jax.jit(spread(lambda x: summed(x, ALL)))
    whole = np.round(4 * X)  # exact however sums and products are fused
    wanted = sum(np.asarray(one(whole + np.float32(i))) * np.float32(i + 1) for i in range(6))
    runs = [many(whole) for _ in range(10)]  # under way together
    return all(np.array_equal(run, wanted) for run in runs)


def loops_and_results_that_meet_jax_collectives():
    def steps(x):
        x, _ = jax.lax.scan(lambda x, _: (summed(x, ALL) / RANKS, None), x, None, length=3)
        return x + jax.lax.psum(x, "ranks")

    mean = X.reshape(RANKS, 4, 8).mean(0)
    return np.allclose(jax.jit(spread(steps))(X), np.tile(mean * (RANKS + 1), (RANKS, 1)), atol=1e-5)


def gradients():
    @jax.custom_vjp
    def total(x):
        return summed(x, ALL)

    total.defvjp(lambda x: (total(x), None), lambda _, dy: (summed(dy, ALL),))
    grad = jax.jit(spread(jax.grad(lambda x: (total(x) * total(x)).sum())))(X)
    wanted = 2 * RANKS * np.tile(X.reshape(RANKS, 4, 8).sum(0), (RANKS, 1))
    return np.allclose(grad, wanted, atol=1e-4)


def ring_attention_of_the_library():
    q, k, v = (random(1, 1, RANKS * 128, 32, seed=i) for i in range(3))
    names = {"num_workers": RANKS, "tp_q": True, "tp_k": True}
    ours = jax.jit(spread(lambda q, k, v: ring_attention_spmd_fwd(q, k, v, **names), P(None, None, "ranks")))
    parts = [split(x, RANKS, axis=2) for x in (q, k, v)]
    local = lambda r: dict(zip("qkv", (p[r] for p in parts), strict=True)) | names  # noqa: E731
    return same_bits(ours(q, k, v), ring_attention_spmd_fwd, local, axis=2)


def matmuls_of_the_library():
    lhs = random(128 * RANKS, 128).astype(jnp.bfloat16)
    rhs = random(128, 128 * RANKS, seed=1).astype(jnp.bfloat16)
    function = jax.shard_map(
        lambda a, b: allgather_compute_matmul(a, b, RANKS, 1)[None],
        mesh=MESH,
        in_specs=(P("ranks"), P(None, "ranks")),
        out_specs=P("ranks"),
    )
    inputs = lambda r: (split(lhs, RANKS)[r], split(rhs, RANKS, axis=1)[r], RANKS, 1)  # noqa: E731
    return same_bits(jax.jit(function)(lhs, rhs), allgather_compute_matmul, inputs)


def kernels_without_collectives_are_each_devices_own():
    return np.array_equal(jax.jit(spread(doubled))(X), 2 * X)


def equal_results_may_be_said_to_be_equal():
    function = jax.shard_map(
        lambda x: summed(x, ALL), mesh=MESH, in_specs=P("ranks"), out_specs=P(), check_vma=False
    )
    return np.array_equal(jax.jit(function)(X), run_ranks(summed, RANKS, lambda r: (part_of(r), ALL))[0])


def ranks_that_do_not_meet_are_reported():
    counts = np.repeat(np.arange(RANKS, dtype=np.int32)[:, None], 4, 1)
    try:
        jax.block_until_ready(jax.jit(spread(lambda x: uneven(x, ALL)))(counts))
    except Exception as problem:
        return "deadlock" in str(problem) and "nothing: it has finished" in str(problem)
    return False


def groups_beyond_the_mesh_are_refused():
    try:
        spread(lambda x: summed(x, (tuple(range(RANKS + 1)),)))(X)
    except nki.NkiError as problem:
        return problem.kind == "rank-out-of-world"
    return False


def devices_that_stay_away_are_named():
    thread_rendezvous.timeout = 1.0

    def some(x):
        first = jax.lax.axis_index("ranks") == 0
        return jax.lax.cond(first, lambda x: x, lambda x: summed(x, ALL), x)

    try:
        jax.block_until_ready(jax.jit(spread(some))(X))
    except Exception as problem:
        return "ranks [0] have not come after 1 s" in str(problem)
    finally:
        thread_rendezvous.timeout = 300.0
    return False


CHECKS = [
    eager_and_compiled,
    two_axes_and_groups_inside,
    two_cores_each,
    kernels_that_do_not_depend_on_each_other,
    loops_and_results_that_meet_jax_collectives,
    gradients,
    ring_attention_of_the_library,
    matmuls_of_the_library,
    kernels_without_collectives_are_each_devices_own,
    equal_results_may_be_said_to_be_equal,
    ranks_that_do_not_meet_are_reported,
    groups_beyond_the_mesh_are_refused,
    devices_that_stay_away_are_named,
]

if __name__ == "__main__":
    print(f"{RANKS} devices")
    for check in CHECKS:
        try:
            print(f"{check.__name__}: {check()}", flush=True)
        except Exception as problem:
            print(f"{check.__name__}: {type(problem).__name__} {problem}", flush=True)
