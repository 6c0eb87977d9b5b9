"""The mistakes and questions in Pallas, whichever way it interprets."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from benchmarks.compare.answers import exchanged, numbers, rounded

SHAPE = (128, 256)


def read_beyond(x, out, scratch):
    block = pl.program_id(0)
    out[:, pl.ds(block * 128, 128)] = x[:, pl.ds(64 + block * 128, 128)]  # wrong: read_beyond


def write_beyond(x, out, scratch):
    block = pl.program_id(0)
    out[:, pl.ds(64 + block * 128, 128)] = x[:, pl.ds(block * 128, 128)]  # wrong: write_beyond


def uninitialised(x, out, scratch):
    scratch[:, 0:128] = x[:, 0:128]
    out[...] = scratch[...]  # wrong: uninitialised


def untouched(x, out, scratch):
    out[...] = scratch[...]  # wrong: untouched


def race(x, out, scratch):
    out[...] = x[...] + pl.program_id(0).astype(jnp.float32)  # wrong: race


def capacity(x, out, scratch):
    out[...] = x[...] + 1.0


def mixed_dtypes(x, out, scratch):
    out[...] = jnp.dot(x[:, 0:128], x[...].astype(jnp.bfloat16))  # wrong: mixed_dtypes


def shapes(x, out, scratch):
    out[...] = x[...] + x[:, 0:128]  # wrong: shapes


ALL = (read_beyond, write_beyond, uninitialised, untouched, race, capacity, mixed_dtypes, shapes)
KERNELS = {f.__name__: f for f in ALL}


def probes(interpret):
    """All of them, with a way to interpret."""

    def mistake(name):
        pltpu.reset_tpu_interpret_mode_state()  # what an error leaves behind
        way = interpret
        if name == "race" and way is not True:
            way = dataclasses.replace(way, num_cores_or_threads=2)
        shape = (4608, 8192) if name == "capacity" else SHAPE  # 144 MiB: a TPU core has 128 at most
        x = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
        whole = pl.BlockSpec(shape, lambda block: (0, 0))
        out = pl.pallas_call(
            KERNELS[name],
            grid=(2,),
            in_specs=[whole],
            out_specs=whole,  # wrong: capacity
            out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
            scratch_shapes=[pltpu.VMEM(SHAPE, jnp.float32)],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
            interpret=way,
        )(x)
        return numbers(out)

    def rounding():
        def kernel(x, out):
            out[...] = x[...].astype(jnp.bfloat16)

        x = jnp.asarray(rounded.inputs())
        shape = jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)
        return rounded.outcome(pl.pallas_call(kernel, out_shape=shape, interpret=interpret)(x))

    def values():
        seen = []

        def kernel(x, out):
            try:
                seen.append(float(x[0, 3]))
            except jax.errors.ConcretizationTypeError:
                jax.debug.callback(
                    lambda value: seen.append(f"{value} (by a callback; to Python a tracer)"), x[0, 3]
                )
            out[...] = x[...]

        x = jnp.arange(512, dtype=jnp.float32).reshape(128, 4)
        jax.block_until_ready(pl.pallas_call(kernel, out_shape=x, interpret=interpret)(x))
        jax.effects_barrier()
        return f"yes: x[0, 3] is {seen[0]}"

    def device_time():
        from benchmarks.compare import pallas_kernels

        spec = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
        lowered = jax.jit(pallas_kernels.matmul(False)).trace(spec, spec).lower(lowering_platforms=("tpu",))
        seconds = lowered.cost_analysis()["optimal_seconds"]
        return f"yes: {seconds} s" if seconds > 0 else f"no: its cost analysis says {seconds:g} seconds"

    def shapes_alone():
        from benchmarks.compare import pallas_kernels

        spec = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
        traced = jax.eval_shape(pallas_kernels.matmul(interpret), spec, spec)
        return f"yes: a result of {traced.shape}; its jaxpr can be read"

    def cores():
        mesh = jax.make_mesh((2,), ("core",))
        sharding = jax.NamedSharding(mesh, jax.P("core"))

        def kernel(x, out, sent, received):
            other = (1 - jax.lax.axis_index("core"),)
            copy = pltpu.make_async_remote_copy(x, out, sent, received, other, pltpu.DeviceIdType.MESH)
            copy.start()
            copy.wait()

        def half(x):
            anywhere = pl.BlockSpec(memory_space=pl.ANY)
            return pl.pallas_call(
                kernel,
                in_specs=[anywhere],
                out_specs=anywhere,
                out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
                scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
                interpret=interpret,
            )(x)

        x = np.arange(512, dtype=np.float32).reshape(128, 4)
        everywhere = jax.shard_map(
            half, mesh=mesh, in_specs=jax.P("core"), out_specs=jax.P("core"), check_vma=False
        )
        return f"yes: {exchanged(jax.jit(everywhere)(jax.device_put(x, sharding)), x)}"

    named = (rounding, values, device_time, shapes_alone, cores)
    return {name: (lambda n=name: mistake(n)) for name in KERNELS} | {f.__name__: f for f in named}
