"""What others measured on devices, beside the model: benchmarks/accuracy/facts.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.accuracy import micro_kernels as micro  # noqa: E402
from benchmarks.accuracy.facts import FACTS, is_within  # noqa: E402

MISSED = {"B02", "B21", "B35"}  # beside those of which the model has no figure
WITHOUT = {"B01", "B09", "B17", "B30", "B43", "B47", "B49"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fact", [f for f in FACTS if f.id not in MISSED | WITHOUT], ids=lambda fact: fact.id)
def test_a_measured_fact_is_reproduced_within_ten_percent(fact):
    assert is_within(fact), fact.ratios()


def test_every_other_fact_has_a_reason():
    assert len({fact.id for fact in FACTS}) == len(FACTS) == 40
    assert all(fact.left_out for fact in FACTS if fact.id in MISSED | WITHOUT)
    assert {fact.id for fact in FACTS if not fact.figures} == WITHOUT


def test_slots_that_are_slices_of_one_tensor_are_reported():
    shared, separate = (micro.profiled(micro.ring(apart), target="trn1") for apart in (False, True))
    (finding,) = (f for f in shared.findings if f.kind == "shared-tensor")
    assert "Allocate one tensor per slot" in finding.detail and "micro_kernels.py" in finding.lines[0]
    assert shared.total_us - finding.gain_us == pytest.approx(separate.total_us, rel=0.01)
    assert not [f for f in separate.findings if f.kind == "shared-tensor"]
