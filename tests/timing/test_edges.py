"""The arrays of waits hold what the operations wait for."""

import random

import numpy as np
import pytest

from nki.ir.dependences import RAW, WAR, WAW
from nki.timing.edges import Edges, Users, priorities
from nki.timing.operation import ORDER, SPACE, TRANSFERS
from nki.timing.operation_table import OperationTable
from nki.timing.timing_rules import BEGUN, DONE, FREE, KIND_NUMBERS, REASONS, SEEN, releases

KINDS = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma", "spill", "reload")


class RandomOperation:
    """What a table is given of an operation."""

    position = -1

    def __init__(self, index, kind):
        self.index, self.kind, self.is_dma = index, kind, kind in TRANSFERS
        self.waits = {}  # index -> why


def random_operations(seed, count=60):
    rng = random.Random(seed)
    operations = [RandomOperation(i, rng.choice(KINDS)) for i in range(count)]
    for op in operations[1:]:
        for other in rng.sample(range(op.index), min(op.index, rng.randrange(5))):
            op.waits[other] = rng.choice((RAW, WAR, WAW, SPACE, ORDER))
    return operations


def edges_of(operations):
    rows = [(other, op.index, REASONS.index(why)) for op in operations for other, why in op.waits.items()]
    columns = np.array(rows, np.int32).reshape(-1, 3).T
    return Edges(columns[0], columns[1], columns[2].astype(np.int8))


def numbers(operations):
    return bytearray(KIND_NUMBERS[op.kind] for op in operations)


def moment(operations, user, other):
    """The moment of `other` that `user` waits for."""
    one, two = operations[other], operations[user]
    return releases(one.is_dma, one.kind == two.kind and not one.is_dma, two.waits[other])


@pytest.mark.parametrize("seed", range(20))
def test_users_are_listed_in_order_under_the_moment_they_wait_for(seed):
    operations = random_operations(seed)
    users = Users(edges_of(operations), numbers(operations))
    for found, moments in (
        (users.of_begin, (BEGUN,)),
        (users.of_engine, (FREE,)),
        (users.of_result, (DONE, SEEN)),
    ):
        for other in range(len(operations)):
            expected = [
                op.index
                for op in operations
                if other in op.waits and moment(operations, op.index, other) in moments
            ]
            assert list(found.of(other)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_transfer_has_the_priority_of_the_first_that_waits_for_it(seed):
    operations = random_operations(seed)
    expected = list(range(len(operations)))
    for op in reversed(operations):
        waiting = [expected[user.index] for user in operations if op.index in user.waits]
        if op.is_dma and waiting:
            expected[op.index] = min(waiting)
    assert list(priorities(edges_of(operations), numbers(operations))) == expected


@pytest.mark.parametrize("seed", range(20))
def test_changed_edges_are_those_of_changed_operations(seed):
    operations, rng = random_operations(seed), random.Random(seed)
    edges = edges_of(operations)
    instead = {i: rng.randrange(i) for i in rng.sample(range(1, 60), 5)}
    chosen = [i for i in rng.sample(range(1, 60), 10) if i not in instead]
    dropped = {i: set(rng.sample(range(i), rng.randrange(i + 1))) for i in chosen}
    changed = edges.changed(dropped, instead)
    for user, others in dropped.items():
        operations[user].waits = {o: why for o, why in operations[user].waits.items() if o not in others}
    for user, other in instead.items():
        operations[user].waits = {other: RAW}
    for found, expected in zip(changed, edges_of(operations), strict=True):
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_a_table_returns_the_operations_and_waits_it_was_given(seed):
    operations, tile = random_operations(seed), object()
    table = OperationTable()
    for op in operations:
        op.tile = tile
        assert table.begin_move(op.kind, tile) == op.index
    table.finish([], edges_of(operations))
    for found, op in zip(table.operations([], 0), operations, strict=True):
        assert (found.index, found.kind, found.waits, found.tile) == (op.index, op.kind, op.waits, tile)
        assert list(found.waits) == list(op.waits)
    waiting = operations[-1]
    freed = next(i for i in range(waiting.index) if i not in waiting.waits)
    found = table.operations([], 0, [(waiting.index, freed)])
    assert found[waiting.index].waits == {**waiting.waits, freed: SPACE}
    assert found[waiting.index - 1].waits == operations[-2].waits


@pytest.mark.parametrize("seed", range(5))
def test_edges_return_the_reason_of_each_wait_and_that_there_is_none(seed):
    operations = random_operations(seed)
    pairs = [(user.index, other) for user in operations for other in range(user.index)]
    users, producers = np.array(pairs).T
    free = [pair for pair in pairs if pair[1] not in operations[pair[0]].waits][:5]
    found = edges_of(operations).with_space(free).reasons(users, producers).tolist()
    for (user, other), why in zip(pairs, found, strict=True):
        expected = SPACE if (user, other) in free else operations[user].waits.get(other)
        assert (REASONS[why] if why >= 0 else None) == expected
