"""The clock of the PE array: which windows are at the full rate, as the device traces show."""

import pytest

from nki.machine.generations import find
from nki.timing.timing_rules import Activity

TRN2 = find("trn2")
WINDOW = 4096 / 1.2  # ns: 4,096 cycles of 1.2 GHz


def rates(busy, machine=TRN2, rows=128):
    """The slowdown of each window; `busy` is the work in each, as a part of that at the full rate."""
    clock, found = Activity(machine), []
    for number, share in enumerate(busy):
        start = (number + 0.01) * TRN2.half_rate_window_ns
        slow = clock.slowdown(start)
        found.append(slow)
        clock.add(start, start + share * slow * TRN2.half_rate_window_ns, rows, slow)
    return found


def test_a_window_has_4096_cycles_of_the_slow_clock():
    assert TRN2.half_rate_window_ns == pytest.approx(WINDOW, rel=1e-3)


def test_a_kernel_starts_at_half_rate_and_is_faster_after_a_window_with_three_eighths_of_the_work():
    assert rates([0.38, 0.38, 0.36, 0.38, 0.0, 0.0]) == [2.0, 1.0, 1.0, 2.0, 1.0, 2.0]


def test_work_counts_by_the_rows_of_the_array_that_it_uses():
    assert rates([0.49, 0.49, 0.49], rows=64) == [2.0, 2.0, 2.0]


def test_a_matmul_across_a_border_counts_in_both_windows():
    clock = Activity(TRN2)
    begin = 0.7 * TRN2.half_rate_window_ns
    assert clock.slowdown(begin) == 2.0
    clock.add(begin, 1.8 * TRN2.half_rate_window_ns, 128, 2.0)  # 0.15 of the first window, 0.4 of the second
    assert clock.slowdown(1.9 * TRN2.half_rate_window_ns) == 2.0
    assert clock.slowdown(2.1 * TRN2.half_rate_window_ns) == 1.0


def test_quiet_windows_are_forgotten():
    clock = Activity(TRN2)
    clock.add(0.0, 0.9 * TRN2.half_rate_window_ns, 128, 2.0)
    assert clock.slowdown(1.1 * TRN2.half_rate_window_ns) == 1.0
    assert clock.slowdown(10.1 * TRN2.half_rate_window_ns) == 2.0


def test_trn1_has_one_clock():
    assert rates([0.0, 0.5, 0.0], machine=find("trn1")) == [1.0, 1.0, 1.0]
