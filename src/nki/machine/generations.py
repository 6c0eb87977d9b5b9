"""trn1, trn2 and trn3, and how they are called."""

from __future__ import annotations

import re
from dataclasses import fields

from ..errors import error, nearest
from .machine import Machine, PerGeneration


def _generation(index: int) -> Machine:
    """Return the machine of trn1, trn2 or trn3, by its place in `each`."""
    defaults = {field.name: field.default for field in fields(Machine)}
    return Machine(**{n: v.values[index] for n, v in defaults.items() if isinstance(v, PerGeneration)})


TRN1, TRN2, TRN3 = map(_generation, range(3))
MACHINES: dict[str, Machine] = {machine.name: machine for machine in (TRN1, TRN2, TRN3)}


def find(name: str) -> Machine:
    """The machine of a platform name: trn1, inf2, gen2, trn2, gen3, trn3, gen4, 2, 3 or 4, in any case.

    So are variants and instances of one: trn1n, trn2u, trn3pre, trn3_a0, trn2.48xlarge.
    """
    spelling = str(name).strip().lower()
    variant = _VARIANT.fullmatch(spelling)
    machine = _BY_SPELLING.get(variant.group(1) if variant else spelling)
    if machine is None:
        raise _unknown(str(name))
    return machine


_VARIANT = re.compile(r"(inf2|trn[1-3]|gen[2-4])(?:n|u|s|pre|pds[0-9]*)?(?:[-_.][a-z0-9]+)*")
_BY_SPELLING = {spelling: m for m in MACHINES.values() for spelling in (m.name, *m.aliases)}


def _unknown(name: str) -> Exception:
    close = nearest(name.strip().lower(), _BY_SPELLING)
    names = "; ".join(", ".join((m.name, *m.aliases)) for m in MACHINES.values())
    return error(
        "platform",
        f"there is no platform {name!r}" + (f", did you mean {close!r}?" if close else ""),
        help=f"use one of: {names}",
    )
