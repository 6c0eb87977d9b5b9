"""How each rank gets its arguments, and that they fit one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import error
from ..ir import tree
from ..kernel.arrays import framework_of, is_description
from ..kernel.kernel import Kernel


class PerRank(NamedTuple):
    """One value for each rank."""

    values: tuple[Any, ...]


def per_rank(values: Sequence[object]) -> PerRank:
    """Marks the values of a keyword that differ from rank to rank, one for each."""
    return PerRank(tuple(values))


class CallOf(NamedTuple):
    """What one rank calls the kernel with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def calls_of(inputs: object, world_size: int) -> list[CallOf]:
    """Return the arguments of each rank: of a function, a sequence, or a dict with `per_rank` values."""
    if isinstance(inputs, dict):
        return [
            _call({k: _of_rank(k, v, r, world_size) for k, v in inputs.items()}) for r in range(world_size)
        ]
    if callable(inputs):
        return [_call(inputs(rank)) for rank in range(world_size)]
    if isinstance(inputs, (list, tuple)):
        if len(inputs) != world_size:
            raise error("rank-arguments", f"run_ranks: {len(inputs)} inputs for {world_size} ranks")
        return [_call(given) for given in inputs]
    raise error(
        "argument",
        f"run_ranks: inputs must be a function, a sequence or a dict, got {type(inputs).__name__}",
        help="lambda rank: (x[rank], weights)",
    )


def _call(given: object) -> CallOf:
    if isinstance(given, tuple):
        return CallOf(given, {})
    return CallOf((), given) if isinstance(given, dict) else CallOf((given,), {})


def _of_rank(name: str, value: object, rank: int, world_size: int) -> Any:
    if not isinstance(value, PerRank):
        return value
    if len(value.values) != world_size:
        raise error(
            "rank-arguments", f"run_ranks: '{name}' has {len(value.values)} values for {world_size} ranks"
        )
    return value.values[rank]


def check_alike(kernel: Kernel, calls: list[CallOf]) -> None:
    """Check that one program serves all ranks: equal values, and tensors of equal shape and dtype."""
    first = _described(kernel, calls[0])
    for rank, call in enumerate(calls[1:], 1):
        found = _described(kernel, call)
        for name in dict.fromkeys((*first, *found)):
            if first.get(name) != found.get(name):
                raise error(
                    "rank-arguments",
                    f"{kernel.__name__}: argument '{name}' differs between ranks",
                    notes=[f"rank 0: {first.get(name)}", f"rank {rank}: {found.get(name)}"],
                    help="ranks share one program: pass tensors of one shape, and what differs in a tensor",
                )


def _described(kernel: Kernel, call: CallOf) -> dict[str, str]:
    bound = kernel.__signature__.bind(*call.args, **call.kwargs)
    found: dict[str, str] = {}

    def leaf(value: Any, name: str) -> Any:
        if is_tensor(value):
            found[name] = f"{value.dtype}{list(value.shape)}"
        else:
            found[name] = repr(value)
        return value

    for name, value in bound.arguments.items():
        tree.map_tree(leaf, value, name, is_leaf=is_tensor)
    return found


def is_tensor(value: object) -> bool:
    return is_description(value) or framework_of(value) is not None
