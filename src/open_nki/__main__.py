"""The commands `nki` and `open-nki`, which explain a broken installation where `nki` cannot be imported."""

from __future__ import annotations

import sys


def main() -> int:
    """Run `nki.cli` with the command line; returns the exit code."""
    from . import check_import, doctor, is_provided

    if sys.argv[1:2] == ["doctor"]:
        return doctor.main(sys.argv[2:])
    try:
        check_import("nki", "nkilib")
        if not is_provided("nki"):
            raise ImportError("the package nki that Python imports is not that of Open NKI")
        from nki.cli import main
    except ImportError as problem:
        if not doctor.explain(sys.stderr):
            raise problem
        return 1
    return main()


if __name__ == "__main__":
    sys.exit(main())
