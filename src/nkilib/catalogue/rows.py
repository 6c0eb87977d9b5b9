"""A row of the catalogue."""

from __future__ import annotations

from typing import NamedTuple

EXTENSION = "+"  # in place of a page: a kernel that the documented library lacks
HELPER = "-"  # in place of a page: a public function that callers import, without a page


class CatalogueRow(NamedTuple):
    """One page of the documentation, a helper without a page, or an extension."""

    page: str  # L01 to L46 of docs/spec/library, then the name of AWS's page
    module: str
    names: str
    release: str = ""  # of the Neuron SDK that introduced it
    backward: str = ""  # the kernel that computes the gradient of the first name
    also: str = ""  # other words that users search for
    meaning: str = ""  # while it is not built; afterwards its docstring has it
