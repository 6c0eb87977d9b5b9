"""Names of nki.language: old ones, missing ones, and what `import *` brings."""

from __future__ import annotations

import builtins
import subprocess
import sys

import pytest
from bodies import kinds, run

import nki
import nki.language as nl
from nki.language.history import REMOVED


@pytest.mark.tiny
@pytest.mark.parametrize("name", REMOVED)
def test_removed_names_are_missing_but_explain_themselves(name):
    assert not hasattr(nl, name)
    with pytest.raises(AttributeError) as caught:
        getattr(nl, name)
    assert isinstance(caught.value, nki.NkiError) and caught.value.kind == "removed"
    assert f"nl.{name}" in str(caught.value) and caught.value.help == REMOVED[name]


@pytest.mark.parametrize(
    ("name", "advice"),
    [("arange", "nl.ds"), ("mgrid", ".ap("), ("all_reduce", "tensor_partition_reduce")],
)
def test_the_replacement_is_named(name, advice):
    assert advice in REMOVED[name]


def test_a_misspelt_name_gets_the_nearest_name_suggested():
    with pytest.raises(AttributeError, match="did you mean nl.maximum"):
        nl.maximun  # noqa: B018
    with pytest.raises(AttributeError):
        nl.__no_such_thing__  # noqa: B018


def test_old_spellings_that_still_work():
    assert nl.bool is nl.bool_ and nl.range is builtins.range
    assert nl.fp32.min == -3.4028235e38 and nl.fp32.max == 3.4028235e38


def test_par_dim_is_the_number_with_a_warning():
    def body():
        assert nl.par_dim(64) == 64

    assert kinds(body) == ["legacy"]
    with pytest.warns(nki.NkiWarning, match="par_dim"):
        assert nl.par_dim(128) == 128


def test_star_import_brings_the_documented_names_and_spares_bool_and_range():
    assert {"add", "ndarray", "max", "tile_size", "NKIObject", "affine_range", "program_id"} <= set(
        nl.__all__
    )
    assert not {"bool", "range", "par_dim", "fp32", "creation"} & set(nl.__all__)
    assert all(hasattr(nl, name) for name in nl.__all__)


def test_public_import_forms():
    from nki.language import NKIObject, affine_range, bfloat16, static_range

    assert bfloat16 == "bfloat16" and NKIObject and affine_range and static_range


def test_importing_nki_language_brings_neither_torch_nor_jax():
    code = "import sys, nki.language; print('torch' in sys.modules or 'jax' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_module_constants_may_be_read_at_import():
    assert nl.tile_size.pmax == 128 and nl.is_hbm(nl.hbm) and nl.float32 == "float32"


def test_builtins_inside_our_modules_are_pythons():
    run(lambda: (nl.sum(nl.ones((4, 4), nl.float32), 1), None)[1])
    assert builtins.max(1, 2) == 2
