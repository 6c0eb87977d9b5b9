"""nki.experimental: names that have moved to nki.language since."""

from ..language.loops import while_loop

__all__ = ["while_loop"]
