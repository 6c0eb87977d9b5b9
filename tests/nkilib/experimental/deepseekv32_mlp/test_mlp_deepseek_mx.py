"""mlp_deepseek_mx against float64; MXFP8 of the middle is emulated."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from mla_operands import as_mx, block_weights, packed_tokens
from mx_weights import rows_in_words
from options.common import Option, each, near, on_both, refusal, refusals

from nkilib.core.mlp.mlp import act_ref
from nkilib.core.utils.common_types import ActFnType
from nkilib.experimental.deepseekv32_mlp import mlp_deepseek_mx, mlp_deepseek_mx_ref


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(mlp_deepseek_mx)


def call(b=1, s=5, h=512, inner=512, compact=False):
    packed, values = packed_tokens(random((b, s, h), "bfloat16", 1))
    given, matrices = {"hidden_tensor": packed}, []
    for seed, (name, rows, columns) in enumerate((("gate", h, inner), ("up", h, inner), ("down", inner, h))):
        if compact:
            words, scales, matrix = block_weights(rows, columns, seed)
        else:
            words, scales, matrix = rows_in_words(rows, columns, "float8_e4m3fn", seed)
        given |= {f"{name}_proj_weights_tensor": words, f"{name}_w_scale": scales}
        matrices.append(matrix)
    return given | {"compact_scales": compact}, values, matrices


def expected(values, matrices, activation_fn=ActFnType.SiLU, routed=0.0):
    """The middle is rounded to bfloat16, then quantised in blocks of 32."""
    gate, up, down = matrices
    x = values.astype(np.float64)
    return as_mx(act_ref(x @ gate, activation_fn) * (x @ up)) @ down + np.asarray(routed, np.float64)


def compare(option):
    build = {key: value for key, value in option.changes.items() if key in call.__code__.co_varnames[:5]}
    given, values, matrices = call(**build)
    given |= {key: value for key, value in option.changes.items() if key not in build}
    if option.refused:
        with pytest.raises((AssertionError, NotImplementedError), match=refusal(option.refused)):
            run(mlp_deepseek_mx, **given, lnc=option.lnc, on=option.on)
        return
    (got,) = run(mlp_deepseek_mx, **given, lnc=option.lnc, on=option.on)
    assert got.dtype == np.dtype(given.get("output_dtype", ml_dtypes.bfloat16))
    routed = given.get("routed_expert_output", 0.0)
    near(got, expected(values, matrices, given.get("activation_fn", ActFnType.SiLU), routed), 2**-5)


CASES = [
    Option("basic"),
    Option("one-token", {"s": 1}),
    Option("two-batches", {"b": 2, "s": 3}),
    Option("odd-tokens", {"s": 131}),
    Option("530-tokens", {"s": 530}, slow=True),
    Option("wide", {"h": 1024}),
    Option("wide-inner", {"inner": 1536}),
    Option("compact", {"compact": True}),
    Option("compact-wide", {"compact": True, "h": 1024, "inner": 1024}),
    Option("routed", {"routed_expert_output": random((1, 5, 512), "bfloat16", 9)}),
    Option("float32", {"output_dtype": np.dtype("float32")}),
    Option("gelu", {"activation_fn": ActFnType.GELU}),
    Option("swish", {"activation_fn": ActFnType.Swish}),
]
WRONG = refusals(
    hidden_tensor=np.zeros((1, 5, 600), ml_dtypes.float8_e4m3fn),
    hidden_tensor__dtype=np.zeros((1, 5, 640), np.float32),
    gate_proj_weights_tensor=np.zeros((128, 500), np.uint32),
    up_proj_weights_tensor=np.zeros((128, 256), np.uint32),
    down_proj_weights_tensor=np.zeros((64, 512), np.uint32),
    gate_w_scale=np.zeros((4, 512), np.uint8),
    up_w_scale=np.zeros((16, 500), np.uint8),
    down_w_scale=np.zeros((4, 4), np.uint8),
    output_dtype=np.dtype("int32"),
    routed_expert_output=random((1, 4, 512), "bfloat16"),
)

ON_TRN2 = Option(
    "refuses-trn2", {"hidden_tensor": np.zeros((1, 5, 640), ml_dtypes.float8_e4m3fn)}, "mlp_deepseek_mx"
)


@each([case._replace(on="trn3") for case in on_both(CASES) + WRONG] + [ON_TRN2])
def test_each_option_is_right_or_refused(option):
    compare(option)


def test_the_reference_is_the_formula_without_quantisation():
    _, values, matrices = call(s=2)
    got = mlp_deepseek_mx_ref(values, *matrices, lambda v: act_ref(v, ActFnType.SiLU))
    near(got, expected(values, matrices), 0.1)
