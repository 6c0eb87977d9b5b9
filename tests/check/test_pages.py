"""`nki explain` has a page for every kind, and its kernels do what the page says."""

from __future__ import annotations

import linecache
import os
import re
import warnings
from pathlib import Path

import pytest

import nki
from nki.check.pages import PAGES, PRELUDE, SECTIONS
from nki.check.python_rules import RULES
from nki.errors import KINDS
from support import target

SOURCES = Path(nki.__file__).parent
SAYS = r"(?:\bwarn|\berror|diagnose|fail|_fail|_warn_once|emit_warning|error_class|Diagnostic|_refuse)"
SAID = SAYS + r'\(\s*(?:[\w.]+,\s*)?"([a-z][a-z0-9-]+)",?\s'
SHOWN = {"launch-grid-type": "launch-grid", "removed-name": "removed"}
RELEASES = SECTIONS["Releases of AWS's NKI"]  # test_portability.py checks their samples
KERNELS = {kind: page for kind, page in PAGES.items() if page.wrong and kind not in {*RULES, *RELEASES}}


def kinds_of(code, platform):
    """The kinds of what a sample says and raises."""
    name = f"<sample {hash(code)}>"
    linecache.cache[name] = (len(code), None, (PRELUDE + code).splitlines(True), name)
    found = []
    before = os.environ.copy()
    with warnings.catch_warnings(record=True) as said, target(platform):
        warnings.simplefilter("always")
        try:
            exec(compile(PRELUDE + code, name, "exec"), {"__name__": "sample"})
        except nki.NkiError as problem:
            found.append(problem.kind)
        finally:
            os.environ.clear()
            os.environ.update(before)
            os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", platform)
    return found + [w.category.kind for w in said if issubclass(w.category, nki.NkiWarning)]


def kinds_in_the_sources():
    found = set()
    for file in SOURCES.rglob("*.py"):
        if file.parent.name != "pages":
            found |= set(re.findall(SAID, file.read_text()))
    return {SHOWN.get(kind, kind) for kind in found | set(KINDS)}


def test_every_kind_has_a_page():
    notes = {"iteration", "len"}  # operators named in a message
    assert sorted(kinds_in_the_sources() - set(PAGES) - notes) == []


def test_every_rule_of_the_lint_has_a_page_with_code():
    assert all(PAGES[code].wrong and PAGES[code].right for code in RULES)


def test_no_kind_has_two_pages():
    assert len(PAGES) == sum(map(len, SECTIONS.values()))


@pytest.mark.parametrize("kind", KERNELS)
def test_the_wrong_kernel_is_wrong_in_this_way(kind):
    page = KERNELS[kind]
    assert kind in kinds_of(page.wrong_code, page.target)


@pytest.mark.parametrize("kind", [kind for kind, page in KERNELS.items() if page.right])
def test_the_right_kernel_has_no_finding(kind):
    page = KERNELS[kind]
    assert kinds_of(page.right_code, page.target) == []


def test_pages_without_a_kernel_are_few():
    without = sorted(kind for kind, page in PAGES.items() if not page.wrong)
    assert len(without) <= 26, without
