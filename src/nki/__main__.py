"""`python -m nki` is the `nki` command."""

import sys

from nki.cli import main

if __name__ == "__main__":
    sys.exit(main())
