"""What Open NKI knows of its own installation: who else provides its packages here.

AWS's distributions install packages of the same names. This package has a name of its own, needs Python's
library alone, and therefore works where another distribution has overwritten or removed the files of `nki`.
"""

from __future__ import annotations

import os

# distributions that install packages of our names, as their metadata folders begin
OTHERS = ("nki-", "nki_library-", "nkilib-", "trnblas-")


def check_import(*packages: str) -> None:
    """Raise ImportError if another distribution has installed files into one of these packages of ours.

    It costs a listing of one folder: the metadata is read only if that folder has a suspect.
    """
    try:
        names = os.listdir(os.path.dirname(os.path.dirname(__file__)))
    except OSError:  # imported from an archive
        return
    if any(name.startswith(OTHERS) and name.endswith(".dist-info") for name in names):
        from .doctor import mixed

        text = mixed(packages)
        if text:
            raise ImportError(text)


def is_provided(package: str) -> bool:
    """Return whether the package that Python imports under this name is Open NKI's."""
    from importlib.util import find_spec

    found = find_spec(package)
    origin = found.origin if found is not None else None
    return origin is not None and _root(os.path.dirname(origin)) == _root(os.path.dirname(__file__))


def _root(package: str) -> str:
    return os.path.realpath(os.path.dirname(package))
