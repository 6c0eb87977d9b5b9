import numpy as np
import pytest

import nki
from nki.check import lint
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert, not_built


@pytest.mark.tiny
def test_a_failed_assertion_has_code_and_text():
    kernel_assert(True, "never shown")
    with pytest.raises(AssertionError, match="NCC_INKI016.*Kernel validation exception: H: got 3, allowed 4"):
        kernel_assert(False, "H: got 3, allowed 4")


def test_a_wrong_shape_is_named():
    assert_shape(np.zeros((2, 3)), [2, 3], "x")
    with pytest.raises(AssertionError, match=r"x: got shape \(2, 3\), expected \(3, 2\)"):
        assert_shape(np.zeros((2, 3)), (3, 2), "x")


@nki.jit
def unfinished(x):
    not_built("layout=MX", "needs trn3")


def test_an_option_not_built_names_itself_and_why():
    with pytest.raises(
        NotImplementedError, match="^not-implemented-yet: unfinished option layout=MX: needs trn3$"
    ):
        unfinished(np.zeros(3, np.float32))


def test_the_compiler_reads_neither():
    assert lint(unfinished) == []
