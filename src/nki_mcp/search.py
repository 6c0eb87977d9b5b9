"""Search the reference, without a network and without an index on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from nki.cli.script import UsageError
from nki.errors import nearest

from .reference import ReferenceEntry, entries, facts

MOST = 8
LONGEST = 200  # characters of a query
WIDTH = 200  # characters of a signature that was not asked for
SHORT = {"nisa": "nki.isa", "nl": "nki.language", "ncc": "nki.collectives"}  # how kernels import them


def search(query: str, most: int = MOST) -> dict[str, Any]:
    """Return the names that fit a query, best first; a name that is asked for exactly has its whole text."""
    if len(query) > LONGEST or not _words(query):
        raise UsageError(f"a query has a word or a name in it, and at most {LONGEST} characters")
    wanted = _expanded(query)
    words = _words(query) - {"nki", *SHORT} or _words(query)
    exact = [one for one in entries() if wanted in (one.name.lower(), one.whole.lower())]
    scores = {one: _score(one, words) for one in entries() if one not in exact}
    ranked = sorted(
        (one for one in scores if scores[one] > 0), key=lambda o: (-scores[o], len(o.name), o.whole)
    )
    found = [*(_described(one, whole=True) for one in exact), *(_described(one) for one in ranked)]
    answer = {"query": query, "count": len(found), "found": found[:most]}
    close = None if exact or " " in wanted else nearest(wanted, _names())
    return {**answer, "did_you_mean": close} if close else answer


def _expanded(query: str) -> str:
    """Return a name as the reference writes it: nki.isa.iota for nisa.iota."""
    head, dot, rest = query.strip().lower().removesuffix("()").partition(".")
    return f"{SHORT.get(head, head)}{dot}{rest}"


def _names() -> Iterable[str]:
    return {name for one in entries() for name in (one.name.lower(), one.whole.lower())}


def _score(one: ReferenceEntry, words: Iterable[str]) -> int:
    """Return how well an entry fits: words of its name count most, then its first line, then the rest."""
    name, first = _words(one.name), _words(one.text.partition("\n")[0])
    rest = _words(f"{one.whole} {one.signature} {one.text}")
    points = [next((worth for worth, among in _worth(word, name, first, rest) if among), 0) for word in words]
    return sum(points) * sum(point > 0 for point in points)


def _worth(word: str, name: set[str], first: set[str], rest: set[str]) -> Iterator[tuple[int, bool]]:
    """Yield what a word is worth in each place, best first, and whether it is there."""
    yield 8, word in name
    yield 5, any(part.startswith(word) for part in name)
    yield 3, any(part.startswith(word) for part in first)
    yield 1, word in rest


@lru_cache(maxsize=4096)
def _words(text: str) -> set[str]:
    return {word for word in re.split(r"[\W_]+", text.lower()) if word}


def _described(one: ReferenceEntry, whole: bool = False) -> dict[str, str]:
    """Return an entry as data: whole, or with the first line of its text."""
    text, signature = one.text, one.signature
    if not whole:
        text = text.partition("\n")[0]
        signature = signature if len(signature) <= WIDTH else f"{signature[:WIDTH]}..."
    shown = {"name": one.whole, "group": one.group, "signature": signature, "text": text}
    return {**shown, **facts(one.name)} if whole and one.module in SHORT.values() else shown
