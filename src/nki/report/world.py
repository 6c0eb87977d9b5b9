"""A world as a table, as figures, and as a page."""

from __future__ import annotations

from typing import Any

from ..ir.transfer_instruction import TransferInstruction
from ..markup import escape, frame, policy
from ..timing.links import launch_ms
from .figures import Figures
from .html import page as page_of_rank
from .html import script


def figures(world: Any) -> Figures:
    """Return the figures of a WorldProfile as plain data."""
    rows = []
    for rank, (profile, spent) in enumerate(zip(world.ranks, world.communication, strict=True)):
        rows.append(
            {
                "rank": rank,
                "start_us": _start(world, rank),
                "total_us": profile.total_us,
                "communication_us": spent.total / 1e3,
                "exposed_us": spent.exposed / 1e3,
                "waiting_us": spent.waiting / 1e3,
                "hidden_percent": spent.hidden_percent,
                "bytes": spent.nbytes,
            }
        )
    return {"kernel": world.kernel, "total_us": world.total_us, "ranks": rows}


def _start(world: Any, rank: int) -> float:
    return 0.0 if world.starts_us is None else world.starts_us[rank]


def summary(world: Any) -> str:
    """Return a table of the ranks; ranks that do the same share a line."""
    machine = world.ranks[0].timeline.machine
    cores = len(world.ranks[0].timeline.cores)
    each = f"{cores} cores" if cores > 1 else "1 core"
    lines = [
        f"{world.kernel} on {machine.name}, {len(world.ranks)} ranks of {each}: {world.total_us:,.1f} us",
        "",
    ]
    lines.append("rank      start us    end us   links us  exposed us  hidden  waiting us")
    rows = figures(world)["ranks"]
    for row in rows if world.starts_us is not None else rows[:1]:
        who = str(row["rank"]) if world.starts_us is not None else f"0 to {len(rows) - 1}"
        lines.append(
            f"{who:<8}{row['start_us']:>10,.1f}{row['total_us']:>10,.1f}{row['communication_us']:>11,.1f}"
            f"{row['exposed_us']:>12,.1f}{row['hidden_percent']:>6.0f} %{row['waiting_us']:>12,.1f}"
        )
    launch = launch_ms(machine, len(world.ranks))
    lines += ["", f"beside these times, the host's launch takes about {launch:.2g} ms per execution"]
    rests = sorted({name for row in _assumed(world) for name in row})
    if rests:
        lines += ["", "assumed of the links:"]
        lines += [f"  {name} = {getattr(machine, name):g}: {machine.assumptions[name]}" for name in rests]
    return "\n".join(lines)


def _assumed(world: Any) -> list[tuple[str, ...]]:
    """Return the fields of the machine that the links rest on and that no source publishes."""
    timeline = world.ranks[0].timeline
    found = []
    for plan in timeline.plans:
        for op in plan.operations:
            if not isinstance(op.instruction, TransferInstruction):
                continue
            wire = op.instruction.wire(timeline.machine, len(timeline.cores))
            if wire is not None:
                found.append(tuple(name for name in wire.rests_on if name in timeline.machine.assumptions))
    return found


def page(world: Any) -> str:
    """Return the pages of the ranks one below the other, each under its own heading; equal ranks once."""
    head = f"<!doctype html><meta charset=utf-8>{policy(script())}<title>{escape(world.kernel)}</title>"
    parts = [f"{head}<pre>{escape(summary(world))}</pre>"]
    profiles = world.ranks if world.starts_us is not None else world.ranks[:1]
    for rank, profile in enumerate(profiles):
        who = f"rank {rank}" if len(profiles) > 1 else f"ranks 0 to {len(world.ranks) - 1}, all equal"
        parts.append(f"<h2>{who}</h2>{frame(who, page_of_rank(profile), 'width:100%;height:90vh;border:0')}")
    return "\n".join(parts) + "\n"
