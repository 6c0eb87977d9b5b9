"""The backends agree: the same random programs run on all of them, and everything a caller sees is compared.

Results are equal bit for bit, except sums whose order may change.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from backend_agreement import assert_agrees
from nki.backends.fused import chains
from nki.backends.fused.cache import plans
from random_programs import rich_programs
from tile_programs import program_of

torch = pytest.importorskip("torch")

BACKENDS = {
    "fused": ("fused", {}),
    "chains": ("fused", {"OPEN_NKI_THREADS": "3"}),  # of the smallest programs, too
    "torch": ("torch", {}),
    "cuda": ("torch", {"OPEN_NKI_DEVICE": "cuda"}),
}
on_every_backend = pytest.mark.parametrize(
    "name", ["fused", "chains", "torch", *(["cuda"] if torch.cuda.is_available() else [])]
)


def agrees(name, program, arrays):
    backend, environment = BACKENDS[name]
    with pytest.MonkeyPatch.context() as patch:
        if name == "chains":
            patch.setattr(chains, "MIN_ELEMENTS", 0)
        plans.clear()
        return assert_agrees(program, arrays, backend, **environment)


def random_program(seed):
    """Every seventh runs on two cores, every fifth on trn3; half of them have no rare operations."""
    rare = (0.0, 0.0, 0.15, 0.4)[seed % 4]
    return program_of(seed, rare, 2 if seed % 7 == 0 else 1, "trn3" if seed % 5 == 0 else "trn2")


def count_of_runs(name, seeds):
    return sum(agrees(name, *random_program(seed)) == "ran" for seed in seeds)


@pytest.mark.parametrize("first", range(0, 60, 20))
@on_every_backend
def test_backends_agree_on_tile_programs(name, first):
    ran = count_of_runs(name, range(first, first + 20))
    assert ran >= (16 if name in ("fused", "chains") else 7)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20_000, 1000))
@on_every_backend
def test_backends_agree_on_many_tile_programs(name, first):
    on_processor = name in ("fused", "chains")
    count = 1000 if on_processor else 250
    assert count_of_runs(name, range(first, first + count)) >= count * (0.8 if on_processor else 0.35)


@on_every_backend
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=rich_programs())
def test_backends_agree_on_programs_with_every_kind_of_instruction(name, case):
    agrees(name, *case)
