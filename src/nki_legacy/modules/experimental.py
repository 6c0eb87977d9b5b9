"""nki.experimental: names that have moved to nki.language since."""

from nki.language import while_loop

__all__ = ["while_loop"]
