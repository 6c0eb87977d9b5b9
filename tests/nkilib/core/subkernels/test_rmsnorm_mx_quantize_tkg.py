"""rmsnorm_mx_quantize_tkg: the norm in float64, the MX bits of its rounded result by emulation."""

import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, each, on_both, refusal, refusals

import nki
import nki.isa as nisa
import nki.language as nl
from nki import mx
from nkilib.core.subkernels.rmsnorm_mx_quantize_tkg import (
    rmsnorm_mx_quantize_tkg,
    rmsnorm_mx_quantize_tkg_ref,
)


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(rmsnorm_mx_quantize_tkg)


def call(b=1, s=5, h=512, dtype="float16", form="mxfp8", residual=False, **more):
    t = b * s
    words = np.zeros((128, h // 512, t), np.uint32).view(mx.x4_dtype(form))
    given = {
        "input": random((b, s, h), dtype),
        "gamma": random((1, h), dtype, 1),
        "output": np.zeros((128, t, h // 128), dtype),
        "output_quant": words,
        "output_scale": np.zeros((128, h // 512, t), np.uint8),
    }
    if residual:
        given |= {"residual": random((b, s, h), dtype, 5), "output_residual": np.zeros((t, h), dtype)}
    return given | more


def check_bits(output, words, scales, form):
    """Lanes are the quarters of the columns: word [p, i, t] has columns q H/4 + 128 i + p."""
    output = np.asarray(output)
    rows = output.transpose(1, 2, 0).reshape(output.shape[1], -1)  # [T, H]
    size = rows.shape[1]
    order = [q * size // 4 + 128 * i + p for i in range(size // 512) for p in range(128) for q in range(4)]
    emulated = mx_emulation.quantized(rows[:, order], form, "1x32")
    bits = np.asarray(words).view(np.uint32).view(np.uint8)
    bits = bits.reshape(128, -1, len(rows), 4).transpose(2, 1, 0, 3).reshape(len(rows), size)
    assert np.array_equal(bits, emulated.codes)
    for block, codes in enumerate(emulated.scales):
        i, inside = divmod(block, 16)
        assert np.array_equal(np.asarray(scales)[32 * (inside // 4) + inside % 4, i], codes)


def check_without_blocks(rows, words, scales, form, scale):
    """Words hold the rounded rows over a scale [T, 1] or number, and every scale of a block is 1."""
    size, dtype = rows.shape[1], getattr(ml_dtypes, form)
    largest = float(ml_dtypes.finfo(dtype).max)
    wanted = np.clip(rows.astype(np.float32) / np.float32(scale), -largest, largest)
    bits = (
        np.asarray(words).view(np.uint32).view(np.uint8).view(dtype).reshape(128, size // 512, len(rows), 4)
    )
    got = bits.astype(np.float32).transpose(2, 3, 1, 0).reshape(len(rows), size)  # q H/4 + 128 i + p
    near = (wanted * np.float32(1 - 2e-6)).astype(dtype), (wanted * np.float32(1 + 2e-6)).astype(dtype)
    assert np.all((got == near[0].astype(np.float32)) | (got == near[1].astype(np.float32)))
    codes = np.asarray(scales).reshape(4, 32, -1)
    assert (codes[:, :4] == 127).all() and not codes[:, 4:].any()


def compare(option):
    arguments = call() | option.changes
    if option.refused:
        with pytest.raises(AssertionError, match=refusal(option.refused)):
            run(rmsnorm_mx_quantize_tkg, **arguments, lnc=option.lnc, on=option.on)
        return
    output, words, scales, *total = run(rmsnorm_mx_quantize_tkg, **arguments, lnc=option.lnc, on=option.on)
    rows = np.asarray(output).transpose(1, 2, 0).reshape(output.shape[1], -1)
    x, dtype = arguments["input"], arguments["input"].dtype
    if total:
        x = (x.astype(np.float32) + arguments["residual"].astype(np.float32)).astype(dtype)
        assert np.array_equal(total[0], x.reshape(total[0].shape))
    flat = x.astype(np.float64).reshape(len(rows), -1)
    power = (flat**2).sum(1, keepdims=True) / (arguments.get("hidden_actual") or flat.shape[1])
    expected = flat / np.sqrt(power + arguments.get("eps", 1e-6)) * arguments["gamma"].astype(np.float64)
    step = 2**-10 if dtype == np.float16 else 2**-8
    np.testing.assert_allclose(rows.astype(np.float64), expected, rtol=step, atol=1e-5)
    form = "float8_e5m2" if "e5m2" in str(arguments["output_quant"].dtype) else "float8_e4m3fn"
    if arguments.get("is_static_mx"):
        check_without_blocks(rows, words, scales, form, arguments.get("gate_up_in_scale", 1.0))
    elif (scale := arguments.get("output_row_dequant_scale")) is not None:
        largest = float(ml_dtypes.finfo(getattr(ml_dtypes, form)).max)
        maximum = np.abs(rows.astype(np.float64)).max(1, keepdims=True)
        np.testing.assert_allclose(scale, maximum / largest, rtol=2e-6)
        check_without_blocks(rows, words, scales, form, scale)
    else:
        check_bits(output, words, scales, form)


CASES = [
    Option("basic"),
    Option("bfloat16", call(dtype="bfloat16")),
    Option("one-token", call(s=1)),
    Option("131-tokens", call(b=131, s=1)),
    Option("speculation", call(b=4, s=3, h=1024)),
    Option("padded", call(h=1536) | {"hidden_actual": 1440}),
    Option("eps", {"eps": 0.25}),
    Option("e5m2", call(form="mxfp8_e5m2")),
    Option("residual", call(residual=True)),
    Option("static", call(is_static_mx=True)),
    Option("static-scale", call(h=1024, is_static_mx=True, gate_up_in_scale=np.float32([[0.013]]))),
    Option("static-clipped", call(is_static_mx=True, gate_up_in_scale=np.float32([0.0005]))),
    Option("static-e5m2", call(form="mxfp8_e5m2", is_static_mx=True, gate_up_in_scale=np.float32([3e-5]))),
    Option("static-131-tokens", call(b=131, s=1, dtype="bfloat16", is_static_mx=True)),
    Option("rows", call(output_row_dequant_scale=np.zeros((5, 1), np.float32))),
    Option("rows-131-tokens", call(b=131, s=1, output_row_dequant_scale=np.zeros((131, 1), np.float32))),
    Option(
        "rows-padded", call(h=1536, hidden_actual=1440, output_row_dequant_scale=np.zeros((5, 1), np.float32))
    ),
    Option("rows-e5m2", call(form="mxfp8_e5m2", output_row_dequant_scale=np.zeros((5, 1), np.float32))),
    Option("rows-residual", call(residual=True, output_row_dequant_scale=np.zeros((5, 1), np.float32))),
    Option("residual-batch", call(b=3, s=2, h=1024, dtype="bfloat16", residual=True)),
]
WRONG = refusals(
    gamma=random((1, 511), "float16"),
    output=np.zeros((128, 5, 4), np.float32),
    output_quant=np.zeros((128, 1, 5), np.uint32),
    output_scale=np.zeros((128, 1, 4), np.uint8),
    hidden_actual=0,
    output_residual=np.zeros((5, 512), np.float16),
) + [
    Option("refuses-input", call(h=640), "input"),
    Option("refuses-residual", call(residual=True) | {"residual": random((1, 4, 512))}, "residual"),
    Option("refuses-scale", {"gate_up_in_scale": np.float32([1.0])}, "gate_up_in_scale"),
    Option(
        "refuses-both",
        {"is_static_mx": True, "output_row_dequant_scale": np.zeros((5, 1), np.float32)},
        "output_row_dequant_scale",
    ),
    Option(
        "refuses-rows", {"output_row_dequant_scale": np.zeros((4, 1), np.float32)}, "output_row_dequant_scale"
    ),
    Option("refuses-trn2", {}, "rmsnorm_mx_quantize_tkg"),
]


@each(
    [case._replace(on="trn3") for case in on_both(CASES)]
    + [case._replace(on="trn2" if case.name == "refuses-trn2" else "trn3") for case in WRONG]
)
def test_each_option_is_right_or_refused(option):
    compare(option)


@nki.jit
def in_sbuf(x, gamma):
    """As the published test calls it: outputs are tiles, of which every core has its own."""
    tokens, columns = x.shape[0] * x.shape[1], x.shape[2] // 128
    output = nl.ndarray((128, tokens, columns), x.dtype, buffer=nl.sbuf)
    words = nl.ndarray((128, columns // 4, tokens), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    scales = nl.ndarray((128, columns // 4, tokens), nl.uint8, buffer=nl.sbuf)
    nisa.memset(scales, 0)
    rmsnorm_mx_quantize_tkg(x, gamma, output, words, scales)
    results = []
    for tile in (output, words, scales):
        out = nl.ndarray((nl.num_programs(0), *tile.shape), tile.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out[nl.program_id(0)], tile)
        results.append(out)
    return tuple(results)


@pytest.mark.parametrize("lnc", [1, 2])
def test_every_core_has_all_of_a_result_in_sbuf(lnc):
    x, gamma = random((4, 1, 512), "float16"), random((1, 512), "float16", 1)
    output, words, scales = run(in_sbuf, x, gamma, lnc=lnc, on="trn3")
    expected = rmsnorm_mx_quantize_tkg_ref(x, gamma)
    for core in range(lnc):
        rows = output[core].transpose(1, 2, 0).reshape(4, 512)
        np.testing.assert_allclose(rows.astype(np.float64), expected, rtol=2**-10, atol=1e-5)
        check_bits(output[core], words[core], scales[core], "float8_e4m3fn")
