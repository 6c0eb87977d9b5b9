"""Pallas with `interpret=True`."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

import jax
import jaxlib

from benchmarks.compare import pallas_kernels, pallas_probes

VERSION = f"JAX {jax.__version__}, jaxlib {jaxlib.__version__}"
INTERPRET = True


def prepared(name, problem):
    call, inputs = getattr(pallas_kernels, name)(INTERPRET), [jax.numpy.asarray(x) for x in problem.inputs]
    return lambda: jax.block_until_ready(call(*inputs))


PROBES = pallas_probes.probes(INTERPRET)
FILES = (pallas_probes.__file__,)
