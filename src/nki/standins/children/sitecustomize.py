"""Found by the Python processes that a script of `nki run` starts: they get its stand-ins."""

import nki.standins  # noqa: F401
