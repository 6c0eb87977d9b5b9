"""Claims of the documents that a number or a list in the code decides."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.check.releases import NAMES
from nki.options import DEFAULT_PLATFORM
from nkilib import catalogue

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
sys.path.insert(0, str(ROOT))


def text(name):
    return (ROOT / name).read_text()


def test_the_readme_counts_the_families_of_the_library_and_names_their_release():
    families = {kernel.page for kernel in catalogue.kernels() if kernel.is_built and kernel.is_documented}
    assert f"{len(families)} of the kernel families that AWS documents up to Neuron SDK 2.33" in text(
        "README.md"
    )


def test_the_first_kernel_of_the_readme_has_at_most_twelve_lines():
    code = text("README.md").partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12


@nki.jit
def product(x, columns=512):
    left, right = nl.ndarray((128, 128), nl.float32), nl.ndarray((128, columns), nl.float32)
    nisa.memset(left, 0.0)
    nisa.memset(right, 0.0)
    nisa.nc_matmul(nl.ndarray((128, columns), nl.float32, buffer=nl.psum), left, right)
    return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("platform", "most"), [("trn1", 512), ("trn2", 512), ("trn3", 4096)])
def test_the_tutorial_gives_the_limits_of_a_product(platform, most):
    with nki.options(target=platform):
        product.trace(nki.TensorSpec((1, 1), "float32"), columns=most)
        with pytest.raises(nki.NkiError, match=f"limit is {most}|PSUM"):
            product.trace(nki.TensorSpec((1, 1), "float32"), columns=most + 1)
    assert "K, M up to 128, N up to 512 (trn3: 4096)" in text("docs/tutorial/4-matmul.md")


def test_the_tutorial_says_that_no_engine_of_its_attention_is_busy_for_half_of_the_time():
    shown = re.search(r"(\d+) us, of which busy: (.*)", text("docs/tutorial/7-attention.md"))
    assert max(map(int, re.findall(r"\d+", shown[2]))) < int(shown[1]) / 2


def test_the_readme_names_the_default_platform():
    assert f"The platform is `{DEFAULT_PLATFORM}` unless" in text("README.md")


def table_rows(page):
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"
    ]


def test_the_readme_compares_as_the_page_of_comparison_does():
    rows = table_rows(text("docs/comparison.md"))
    names = next(row for row in rows if row[:2] == ["", "Open NKI"])[1:]
    mistakes = [row[1:] for row in rows if "returns" in row or any("**stops**" in cell for cell in row)]
    times = {row[0]: row[1:] for row in rows if row[0] in names and re.match(r"[\d.]+, [\d.]+", row[1])}
    for number, name in enumerate(names):
        cells = [row[number] for row in mistakes if row[number] != "-"]
        matmul, _, attention = (re.search(r", ([\d.]+)", cell)[1] for cell in times[name])
        noticed = f"{sum('**' in cell for cell in cells)} of {len(cells)}"
        assert [name, noticed, matmul, attention] in table_rows(text("README.md"))


def test_the_page_of_portability_lists_every_release():
    assert re.findall(r"^\| `(aws-[\d.]+)` \| [\d.]+ \|", text("docs/portability.md"), re.M) == list(NAMES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_installs_a_package_that_no_public_index_has(page):
    assert not re.search(r"pip install (-\S+ )*open-nki\b", page.read_text())
