"""What the advisor names is gained when the change is made."""

import warnings
from functools import cache

import pytest

import nki
from advised_kernels import PAIRS
from nki.timing.measures import path_shares


@cache
def profiles(name):
    pair = PAIRS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the overflow is one of the mistakes
        before = nki.profile(pair.before, target="trn2")(*pair.arguments)
        return before, nki.profile(pair.after, target="trn2")(*(pair.others or pair.arguments))


@pytest.mark.parametrize("name", PAIRS)
def test_the_gain_of_a_finding_is_made_by_its_change(name):
    before, after = profiles(name)
    (named, *_) = [one.gain_us for one in before.findings if one.kind == PAIRS[name].kind]
    assert named == pytest.approx(before.total_us - after.total_us, rel=0.2)


def test_the_first_finding_is_the_change_that_gains_most():
    largest = [name for name in PAIRS if name != "attention, loads"]  # its transposes gain more
    first = [name for name in largest if profiles(name)[0].findings[0].kind == PAIRS[name].kind]
    assert len(first) >= len(largest) - 2, set(largest) - {*first}


@pytest.mark.parametrize("name", PAIRS)
def test_the_first_finding_is_about_what_has_most_of_the_critical_path(name):
    profile = profiles(name)[0]
    engine, share = next(iter(path_shares(profile.timeline).items()))
    if share > 0.5:
        assert profile.findings[0].resource == engine
    assert {one.kind for one in profile.findings} & {"memory-bound", "compute-bound"} <= {
        "memory-bound" if engine == "dma" else "compute-bound"
    }


def test_the_shares_of_a_critical_path_add_up():
    shares = path_shares(profiles("attention, all")[0].timeline)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["dma"] > 0.9


def test_a_fixed_kernel_is_not_advised_to_do_it_again():
    for name in ("attention, all", "matmul, loads", "computed again"):
        assert not {one.kind for one in profiles(name)[1].findings} & {"repeated-work", "reloaded-data"}
