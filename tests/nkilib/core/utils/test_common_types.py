import pickle

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils import common_types
from nkilib.core.utils.common_types import (
    ActFnType,
    NormType,
    QKNormConfig,
    QuantizationType,
    RouterActFnType,
    check_strided_input,
)


@pytest.mark.tiny
def test_members_have_the_documented_values_and_compare_with_ints():
    assert [m.value for m in NormType] == [0, 1, 2, 3, 4]
    assert NormType.RMS_NORM == 1 and NormType.RMS_NORM != NormType.LAYER_NORM
    assert [m.name for m in ActFnType] == ["SiLU", "GELU", "GELU_Tanh_Approx", "Swish", "ReLU", "SquaredReLU"]
    assert common_types.MoEBlockIOLayout._128_Nprgs_Hfree_T == 1


def test_members_are_shown_by_name():
    assert str(NormType.RMS_NORM) == f"{NormType.RMS_NORM}" == "NormType.RMS_NORM"
    assert str(RouterActFnType.NOAUX_TC) == "noaux_tc"


def test_members_survive_pickling():
    assert pickle.loads(pickle.dumps(QuantizationType.ROW)) is QuantizationType.ROW


def test_quantization_types_know_their_families():
    assert [q.name for q in QuantizationType if q.is_mx()] == ["MX", "STATIC_MX", "ROW_MX"]
    assert [q.name for q in QuantizationType if q.is_logical_static()] == ["STATIC", "STATIC_MX"]
    assert [q.name for q in QuantizationType if q.is_logical_row()] == ["ROW", "ROW_MX"]


@nki.jit
def scaled_if_normalised(x, norm, config):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    factor = 2.0 if norm == NormType.RMS_NORM and config.q_norm == NormType.LAYER_NORM else 1.0
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def test_enums_and_configurations_are_constants_of_a_kernel():
    x = np.ones((2, 3), np.float32)
    config = QKNormConfig(q_norm=NormType.LAYER_NORM)
    assert scaled_if_normalised(x, NormType.RMS_NORM, config).sum() == 12
    assert scaled_if_normalised(x, NormType.NO_NORM, config).sum() == 6
    assert scaled_if_normalised(x, NormType.RMS_NORM, QKNormConfig()).sum() == 6


def test_a_strided_input_configuration_raises():
    check_strided_input(None)
    with pytest.raises(AssertionError, match="strided_input_config: got 3, allowed is None"):
        check_strided_input(3)
