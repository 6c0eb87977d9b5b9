"""Tiles that are in use together do not overlap where they are drawn."""

import random

from nki.report.placement import first_fit


def test_a_gap_is_used_again():
    assert first_fit([(0, 1, 100, None), (0, 9, 50, None), (2, 3, 80, None), (2, 3, 40, None)]) == [
        0,
        100,
        0,
        150,
    ]


def test_a_chosen_address_stays_and_is_free_of_others():
    assert first_fit([(0, 5, 100, None), (3, 4, 64, 32)]) == [96, 32]


def test_random_tiles_never_overlap():
    rng = random.Random(0)
    lives = []
    for _ in range(300):
        first = rng.randrange(200)
        lives.append((first, first + rng.randrange(40), rng.choice([4, 64, 512, 2048]), None))
    places = first_fit(lives)
    for i, (first, last, size, _) in enumerate(lives):
        for j in range(i):
            other_first, other_last, other_size, _ = lives[j]
            together = first <= other_last and other_first <= last
            apart = places[i] + size <= places[j] or places[j] + other_size <= places[i]
            assert apart or not together
