"""The options that kernels have in common, as enums. Members are ints too: callers compare with both."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import new_class
from typing import TYPE_CHECKING, Any

import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert

# An IntEnum that is shown by its member's name. The NKI compiler knows enumerations by a base called Enum.
_SHOWN = {"__str__": enum.Enum.__str__, "__format__": lambda member, spec: format(str(member), spec)}
if TYPE_CHECKING:
    from enum import IntEnum as Enum
else:
    Enum = new_class("Enum", (enum.IntEnum,), {}, lambda body: body.update(_SHOWN))


class NormType(Enum):
    """Which normalisation comes first."""

    NO_NORM = 0
    RMS_NORM = 1
    LAYER_NORM = 2
    RMS_NORM_SKIP_GAMMA = 3
    RMS_NORM_ACROSS_HEADS = 4


class ActFnType(Enum):
    """Activation functions of MLPs and convolutions."""

    SiLU = 0
    GELU = 1
    GELU_Tanh_Approx = 2
    Swish = 3
    ReLU = 4
    SquaredReLU = 5


class QuantizationType(Enum):
    """How operands are quantised."""

    NONE = 0
    STATIC = 1
    ROW = 2
    MX = 3
    STATIC_MX = 4
    ROW_MX = 5

    def is_mx(self):
        return self in (QuantizationType.MX, QuantizationType.STATIC_MX, QuantizationType.ROW_MX)

    def is_logical_static(self):
        return self in (QuantizationType.STATIC, QuantizationType.STATIC_MX)

    def is_logical_row(self):
        return self in (QuantizationType.ROW, QuantizationType.ROW_MX)


class QKVOutputLayout(Enum):
    """Layout of a QKV projection: [B, S, I], [N, B, S, d] or [N, B, d, S]."""

    BSD = 0
    NBSd = 1
    NBdS = 2


class QKVWeightLayout(Enum):
    """Layout of the QKV weights."""

    CONTIGUOUS = 0
    MX_CONTIGUOUS = 1
    MX_INTERLEAVED = 2


class RouterActFnType(Enum):
    """How router logits become affinities; its text is the lower-case name."""

    SIGMOID = 0
    SOFTMAX = 1
    NOAUX_TC = 2

    def __str__(self):
        return self.name.lower()


class ExpertAffinityScaleMode(Enum):
    """When expert outputs are scaled by their affinity."""

    NO_SCALE = 0
    POST_SCALE = 1
    PRE_SCALE = 2
    PRE_SCALE_DELAYED = 3


class GateUpDim(Enum):
    """The two halves of a fused gate/up projection."""

    GATE = 0
    UP = 1


class MLPGateUpWeightLayout(Enum):
    """Where the four lanes of an MX weight stand."""

    CONTIGUOUS = 0
    H_X4_INNERMOST = 1
    H_X4_MIDDLE = 2


class ComputationMode(Enum):
    """Prefill or decode, or by the number of tokens."""

    AUTO = 0
    PREFILL = 1
    DECODE = 2


class DtypeMode(Enum):
    """The flavour of E4M3: NON_OCP is e4m3 (240), OCP is e4m3fn (448), AUTO goes by the hardware."""

    NON_OCP = 0
    OCP = 1
    AUTO = 2


class MoEBlockIOLayout(Enum):
    """Layout of the tokens of a MoE block."""

    B_S_H = 0
    _128_Nprgs_Hfree_T = 1


class MoEAllToAllVStrategy(Enum):
    """How the rows of an all-to-all-v are ordered."""

    DISABLED = 0
    PRESERVE_ROW_ORDER = 1
    PACK_OUTPUT_ROWS = 2


class LNCShardingStrategy(Enum):
    """How two cores share a kernel. Callers leave it to the kernel."""

    AUTO = 0


@dataclass
class QKNormConfig(nl.NKIObject):
    """Norms of queries and keys; None skips one."""

    q_norm: NormType | None = NormType.RMS_NORM
    k_norm: NormType | None = NormType.RMS_NORM
    eps: float = 1e-6
    q_gamma_norm_weights: Any = None
    k_gamma_norm_weights: Any = None


def check_strided_input(strided_input_config: object) -> None:
    """StridedInputConfig is named in the documentation but not described: only None is accepted."""
    kernel_assert(
        strided_input_config is None,
        f"strided_input_config: got {strided_input_config}, allowed is None (its meaning is not documented)",
    )
