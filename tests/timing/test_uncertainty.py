"""The register of uncertainty, and the time of a kernel as an interval."""

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import MACHINES
from nki.machine.machine import ASSUMPTIONS
from nki.machine.ranges import RANGES, ends
from nki.timing.uncertainty import SPREAD

X = nki.TensorSpec((128, 512), "float32")


@nki.jit
def exponential(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.activation(tile, nl.exp, tile)
    nisa.dma_copy(out, tile)
    return out


def test_every_assumption_has_a_range_and_nothing_else_has_one():
    assert set(RANGES) == set(ASSUMPTIONS)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda m: m.name)
def test_every_number_in_use_lies_within_its_range(machine):
    for field in machine.assumed:
        low, high = ends(machine, field)
        value = getattr(machine, field)
        if isinstance(value, (int, float)):
            assert low <= value <= high, field
        else:
            assert value in (low, high), field


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_the_time_is_an_interval_and_the_first_mover_moves_it_most(target):
    profile = nki.profile(exponential, target=target, uncertainty=True)(X)
    found = profile.uncertainty
    assert found.total_us == profile.total_us
    assert found.low_us < found.total_us < found.high_us
    moves = [mover.moves_us for mover in found.movers]
    assert moves == sorted(moves, reverse=True)
    assert found.high_us - found.low_us >= moves[0]
    assert all(found.low_us <= mover.low_us <= found.high_us for mover in found.movers[:3])


def test_a_trigger_that_costs_more_is_a_known_figure():
    profile = nki.profile(exponential, target="trn2", uncertainty=True)(X)
    late = next(m for m in profile.uncertainty.movers if m.field == "compute_to_dma_ns")
    assert (late.low, late.value, late.high) == (30.0, 50.0, 880.0)
    assert late.high_us - profile.total_us == pytest.approx(0.83)
    assert profile.total_us - late.low_us == pytest.approx(0.02)


def test_the_report_shows_the_interval_in_one_unit_after_what_would_help():
    text = nki.profile(exponential, target="trn2", uncertainty=True)(X).summary(assumptions=True)
    assert "Between " in text and "compute_to_dma_ns" in text.partition("moved by")[2]
    assert text.index("What would help") < text.index("moved by") < text.index("assumed")


def test_without_being_asked_no_interval_is_worked_out():
    profile = nki.profile(exponential)(X)
    assert profile.uncertainty is None and "uncertainty" not in profile.to_dict()


def test_platform_and_cores_of_a_profile_can_be_asked_for():
    two = nki.profile(exponential, target="trn2", lnc=2)(X)
    assert (two.timeline.machine.name, len(two.timeline.cores)) == ("trn2", 2)
    assert nki.profile(exponential, target="inf2")(X).timeline.machine.name == "trn1"
    with pytest.raises(nki.NkiError, match="no platform"):
        nki.profile(exponential, target="trn9")(X)


@pytest.mark.parametrize("target", SPREAD)
def test_the_interval_is_widened_by_what_the_model_leaves_out(target):
    found = nki.profile(exponential, target=target, uncertainty=True)(X).uncertainty
    as_written, _ = SPREAD[target]
    assert found.low_us <= found.total_us / as_written and found.high_us >= found.total_us * as_written
    assert min(mover.low_us for mover in found.movers) / as_written >= found.low_us * 0.99
