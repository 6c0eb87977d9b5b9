"""Chains: the nodes of a stage in lists that need nothing of each other, so that threads share them.

Nodes are in one chain if one reads what the other writes. Values that one chain alone uses lie in a region of
its thread: no chain waits for the memory of another, and a thread stays in its cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ...ir.liveness import allocate
from ..lowered import lanes_of, register_use
from .products import Gemm, Pack
from .steps import MAX_PACKED
from .storages import Storages
from .tracking import Node, node_inputs
from .values import Elements, SSAValue

MAX_CHAINS = 32  # of a stage; short chains are joined
MIN_ELEMENTS = 1 << 18  # that nodes write, below which threads do not pay


class Chains(NamedTuple):
    """Chains of nodes, each in program order; or of products."""

    chains: list[list[Any]]
    last: dict[str, Node]  # the last user of each set of accumulator registers


def split(nodes: Iterable[Node], storages: Storages) -> Iterator[Node | Chains]:
    """Split nodes into chains, as far as they touch values alone; the others keep their place."""
    apart: list[Node] = []
    for node in nodes:
        if _touches_values_alone(node, storages):
            apart.append(node)
        else:
            yield from _divided(apart)
            yield node
            apart = []
    yield from _divided(apart)


def _touches_values_alone(node: Node, storages: Storages) -> bool:
    """Return whether a node touches values, write-once results and registers, and nothing else."""
    return (
        node.kind not in ("memory", "fence")
        and (node.instruction is None or not node.instruction.access.accumulates)
        and all(source.__class__ is Elements for _, source in node.reads)
        and all(out.__class__ is SSAValue or out.storage in storages.write_once for _, out, _ in node.outputs)
    )


def _divided(nodes: list[Node]) -> Sequence[Node | Chains]:
    sizes = [sum(out.size for _, out, _ in node.outputs) for node in nodes]  # values, or views of results
    if sum(sizes) < MIN_ELEMENTS:
        return nodes
    registers = RegisterUses(nodes)
    found = _connected(nodes, registers)
    if len(found) < 2 or registers.mixed:
        return nodes
    weighed = [([nodes[i] for i in chain], sum(sizes[i] for i in chain)) for chain in found]
    return [Chains(_joined(weighed), registers.last)]


def group_products(gemms: list[Gemm]) -> Iterator[Gemm | Chains]:
    """Put small products, which one thread computes, into chains; they need nothing of each other."""
    small = [gemm for gemm in gemms if gemm.is_one_block and gemm.packed_bytes <= MAX_PACKED]
    if len(small) < 2:
        yield from gemms
        return
    weighed = [([gemm], gemm.left.rows * gemm.left.columns * gemm.right.columns) for gemm in small]
    yield Chains(_joined(weighed), {})
    yield from (gemm for gemm in gemms if not any(gemm is one for one in small))


def _joined(weighed: Sequence[tuple[list[Any], int]]) -> list[list[Any]]:
    """Join neighbours, so that about MAX_CHAINS chains of equal weight are left."""
    share = sum(weight for _, weight in weighed) // MAX_CHAINS
    chains: list[list[Any]] = []
    room = 0
    for chain, weight in weighed:
        if room <= 0:
            chains.append([])
            room = share
        chains[-1] += chain
        room -= weight
    return chains


class RegisterUses:
    """Which nodes touch accumulator registers, and which of them continue what another one left there."""

    def __init__(self, nodes: Sequence[Node]):
        self.last: dict[str, Node] = {}  # the last user of each set
        self.continued: dict[int, int] = {}  # by number: the node whose registers one continues
        self.mixed = False  # some keep a part of the registers of others
        before: dict[str, int] = {}
        lanes: dict[str, int] = {}
        for number, node in enumerate(nodes):
            instruction = node.instruction
            if instruction is None or not instruction.state:
                continue
            for state in instruction.touches():
                which, begins = register_use(instruction, state)
                if begins is None or lanes.setdefault(which, lanes_of(instruction)) != lanes_of(instruction):
                    self.mixed = True
                if not begins and which in before:
                    self.continued[number] = before[which]
                before[which], self.last[which] = number, node


def _connected(nodes: Sequence[Node], registers: RegisterUses) -> list[list[int]]:
    """Return the numbers of nodes that are connected by values or registers that some of them write."""
    parent = list(range(len(nodes)))
    writer: dict[Any, int] = {}

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for number, node in enumerate(nodes):
        before = [writer.get(elements.base) for elements in node_inputs(node)]
        for other in (*before, registers.continued.get(number)):
            if other is not None:
                parent[root(other)] = root(number)
        for _, value, _ in node.outputs:
            writer[value] = number
    found: dict[int, list[int]] = {}
    for number in range(len(nodes)):
        found.setdefault(root(number), []).append(number)
    return list(found.values())


# ---- addresses -----------------------------------------------------------------------------------


def allocate_values(
    steps: Sequence[object], kept: Collection[Any] = (), outer: Collection[Any] = ()
) -> tuple[int, int]:
    """Set the address of every value in the arena or a region; return the bytes of both.

    Those in `kept` are used after the steps, and those in `outer` have an address already.
    """
    used: list[list[Any]] = []
    touched, owners = _owners(steps)
    owners.update(dict.fromkeys(kept))
    if outer:
        touched = {key: [m for m in found if m not in outer] for key, found in touched.items()}
    region = 0
    for step in steps:
        if step.__class__ is not Chains:
            used.append(touched[id(step)])
            continue
        shared: list[Any] = []
        for chain in step.chains:  # type: ignore[attr-defined]
            memories = [touched[id(node)] for node in chain]
            own = [[m for m in found if owners[m] is chain] for found in memories]
            region = max(region, allocate(own, _set_address_in_region))
            shared += [m for found in memories for m in found if owners[m] is not chain]
        used.append(shared)
    used.append(list(kept))
    return allocate(used, _set_address), region


def memories_of(steps: Sequence[object]) -> set[Any]:
    """Return all values and buffers that steps touch."""
    return set(_owners(steps)[1])


def _owners(steps: Sequence[object]) -> tuple[dict[int, list[Any]], dict[Any, list[Any] | None]]:
    """Return what each step touches, by its identity, and the chain that alone uses each of its values.

    It is None for what others use, too.
    """
    touched: dict[int, list[Any]] = {}
    owners: dict[Any, list[Any] | None] = {}
    for step in steps:
        for chain in step.chains if step.__class__ is Chains else [[step]]:  # type: ignore[attr-defined]
            for node in chain:
                memories = touched[id(node)] = _memories(node)
                for memory in memories:
                    if owners.setdefault(memory, chain) is not chain or node.__class__ is Gemm:
                        owners[memory] = None
    return touched, owners


def _set_address(memory: Any, at: int) -> None:
    memory.at = at


def _set_address_in_region(memory: Any, at: int) -> None:
    memory.at, memory.in_region = at, True


def _memories(step: Any) -> list[Any]:
    """Return the values and buffers in the arena that a step touches."""
    if step.__class__ is Gemm:
        bases = [factor.view.base for factor in (step.left, step.right) if factor.view is not None]
        bases += [tile.elements.base for factor in (step.left, step.right) for tile in factor.tiles]
        own = [] if step.result is None else [step.result]
        return own + _memories_of(bases)
    if step.__class__ is Pack:
        return _memories_of([step.value, *(tile.elements.base for tile in step.factor.tiles)])
    bases = [elements.base for elements in node_inputs(step)]
    bases += [value for _, value, _ in step.outputs]
    return _memories_of(bases)


def memory_of(value: SSAValue) -> Any:
    """Return what holds the bytes of a value: itself, or the buffer of a product."""
    return value if value.in_product is None else value.in_product[0]


def _memories_of(bases: list[Any]) -> list[Any]:
    """Return what holds the bytes of each value that is not stored elsewhere."""
    return [
        memory_of(base)
        for base in bases
        if base.__class__ is SSAValue and (base.in_product is not None or base.stored_at is None)
    ]
