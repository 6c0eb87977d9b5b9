"""Which cases of the library the usual suite runs; `make test-all` runs all of them."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

MANY = 4  # a test with more cases than this runs a fourth of them


@pytest.hookimpl(tryfirst=True)  # before those that -m leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark three fourths of the cases of a test with many of them as slow, always the same ones."""
    ours = [item for item in items if isinstance(item, pytest.Function) and "nkilib" in item.path.parts]
    cases = Counter(item.function for item in ours)
    for item in ours:
        if cases[item.function] > MANY and crc32(item.name.encode()) % 4:
            item.add_marker(pytest.mark.slow)
