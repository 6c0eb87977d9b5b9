"""Every family of the library has a page with all of its parts."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest
from benchmarks.kernels import cases, measure

import layouts
import library_pages
from nkilib.catalogue import kernels

FAMILIES = library_pages.families()
BUILT = [kernel for kernel in kernels() if kernel.is_built]
FUNCTIONS = [kernel for kernel in BUILT if not isinstance(kernel.target, type)]
CONFIGURATIONS = [k for k in BUILT if k not in FUNCTIONS and dataclasses.is_dataclass(k.target)]


@pytest.mark.parametrize("kernel", FUNCTIONS, ids=lambda kernel: kernel.name)
def test_every_argument_has_a_meaning_and_every_tensor_a_shape(kernel):
    family, missing = library_pages.family_of(kernel), []
    assert family is not None, f"add {kernel.module} to `Modules:` of a file in src/nkilib/reference"
    for name, parameter in inspect.signature(kernel.target).parameters.items():
        shape, meaning = library_pages.argument(family, kernel, name)
        is_tensor = str(parameter.annotation).startswith("Tensor") and "[" not in str(parameter.annotation)
        without_shape = is_tensor and not shape and "without effect" not in meaning
        if not meaning or (
            without_shape and not re.search(r"\[|not read|refused|name of|one int32", meaning)
        ):
            missing.append(name)
    assert missing == [], f"src/nkilib/reference/{family.name}.md"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_page_has_its_parts(family):
    page = library_pages.pages()[f"nkilib/{family.name}.md"]
    assert page.count("<svg") == len(family.layouts) >= 1
    for part in ("## Kernels\n", "| since | backward |", "## Modelled time\n", "| lower bound us |"):
        assert part in page
    assert re.search(r"## Differences from AWS's documentation\n\n?- \w|## Differences.*\n\n?- `", page)
    assert len(page) < 200_000


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_text_names_arguments_that_exist(family):
    functions = {k.name: k for k in library_pages.members(family) if k in FUNCTIONS}
    known = {name: set(inspect.signature(k.target).parameters) for name, k in functions.items()}
    every = set().union(*known.values())
    for kernel, listed in family.arguments.items():
        assert set(listed) - (known[kernel] if kernel else every) == set(), kernel
    drawn = [name for line in family.layouts for name, _, _ in layouts.tensors(line.partition(" -> ")[0])]
    assert set(drawn) <= every


@pytest.mark.parametrize(
    "kernel",
    [k for k in BUILT if isinstance(k.target, type) and dataclasses.is_dataclass(k.target)],
    ids=lambda kernel: kernel.name,
)
def test_every_field_of_a_configuration_has_a_meaning(kernel):
    names = [field.name for field in dataclasses.fields(kernel.target)]
    assert [name for name in names if not library_pages.field_meaning(kernel.target, name)] == []


def test_a_drawing_shows_every_axis():
    drawn = layouts.drawing("x SBUF [128, T, J], w [H, I] -> y [T]")
    assert set(re.findall(r">([\w ]+)</text>", drawn)) == {
        "x", "T", "J", "for each 128 SBUF", "w", "H", "I", "y",
    }  # fmt: skip


def test_the_modelled_times_are_those_of_the_benchmarks():
    written = {(row["kernel"], row["size"]): row["modelled_us"] for row in library_pages.times()}
    every = list(cases())
    assert {kernel for kernel, _ in written} <= {case.kernel_name for case in every}, "run `make times`"
    wanted = ("add_tensor_kernel", "cumsum", "RoPE", "rmsnorm_quant_kernel", "pad")
    sample = {case.kernel_name: case for case in every if case.kernel_name in wanted}
    for case in sample.values():
        found = measure(case)
        assert written[found.kernel, found.size] == pytest.approx(found.modelled_us, rel=0.1), (
            "run `make times`"
        )


def test_every_size_above_twice_its_bound_is_listed_with_what_limits_it():
    page = library_pages.index()
    for row in library_pages.times():
        slow = row["modelled_us"] > 2 * row["bound_us"] and row["bound_us"] >= 2
        reason = f"| {row['limit']}, {row['limit_us']:,.1f} us"
        listed = [line for line in page.splitlines() if f"| `{row['kernel']}` | {row['size']} |" in line]
        assert [reason in line for line in listed] == [True] * slow
