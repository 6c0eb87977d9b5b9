"""The three instructions of CONTRIBUTING ("How to add an instruction"), built from the text of that page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.effects import effects
from nki.ir.instruction import Instruction, MatmulInstruction, Out
from nki.ir.instruction_class import INSTRUCTIONS
from nki.isa.enums import GPSIMD, TENSOR, VECTOR
from nki.machine.generations import find
from support import target

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
TRN2 = find("trn2")
RNG = np.random.default_rng(5)
X = RNG.standard_normal((32, 96)).astype(np.float32)
S = RNG.integers(-4, 5, (32, 64)).astype(np.float32)
M = RNG.integers(-4, 5, (32, 96)).astype(np.float32)


def blocks():
    """The Python blocks of the page's section."""
    text = PAGE.read_text()
    section = text[text.index("## How to add an instruction") :]
    section = section[: section.index("\n## ", 3)]
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page():
    namespace = {"__name__": __name__}
    vector, tensor, dma = blocks()
    exec(compile("\n".join((vector, tensor, dma)), str(PAGE), "exec"), namespace)
    yield namespace
    for name in ("scale_add", "negated_matmul", "dma_negate"):
        del INSTRUCTIONS[name]


def issued(kernel, *args):
    """The one instruction of a kernel that is not nisa's, and its bar in the profile."""
    with target("trn2"):
        names = ("scale_add", "negated_matmul", "dma_negate")
        (instruction,) = [i for i in kernel.trace(*args).walk() if i.public in names]
        (bar,) = [bar for bar in kernel.profile(*args).timeline.bars if bar.name == instruction.public]
    return instruction, bar


def scaling(function):
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile, result = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        function(result, tile, 3.0)
        nisa.dma_copy(out, result)
        return out

    return kernel


def test_the_vector_instruction_scales_and_adds(page):
    kernel = scaling(page["scale_add"])
    with target("trn2"):
        np.testing.assert_allclose(kernel(X), 4 * X.astype(np.float64), rtol=1e-6)
        profile = kernel.profile(X)
        assert str(nki.Program.parse(str(kernel.trace(X)))) == str(kernel.trace(X))
    instruction, bar = issued(kernel, X)
    done = effects(instruction)
    assert done.reads == (instruction.data,) and done.writes == (instruction.dst,)
    assert not (done.adds_to or done.state or done.registers_read)
    assert instruction.cost(TRN2).cycles == 96 and bar.engine == "vector"
    assert bar.end - bar.start >= 96 / TRN2.vector_ghz
    assert profile.statistics.by_instruction["scale_add"] == 1


def test_the_vector_instruction_refuses_tiles_that_do_not_match(page):
    @nki.jit
    def kernel(x):
        tile, narrow = nl.ndarray(x.shape, x.dtype), nl.ndarray((32, 8), x.dtype)
        nisa.dma_copy(tile, x)
        page["scale_add"](narrow, tile, 3.0)
        return x

    with pytest.raises(nki.NkiError, match="dst has 8 elements per partition, data has 96"):
        kernel(X)


def product(*functions):
    """The sum of what the functions write into one PSUM tile."""

    @nki.jit
    def kernel(s, m):
        out = nl.ndarray((64, 96), nl.float32, buffer=nl.shared_hbm)
        left, right = nl.ndarray(s.shape, nl.bfloat16), nl.ndarray(m.shape, nl.bfloat16)
        nisa.dma_copy(left, s)
        nisa.dma_copy(right, m)
        psum = nl.ndarray((64, 96), nl.float32, buffer=nl.psum)
        for function in functions:
            function(psum, left, right)
        result = nl.ndarray((64, 96), nl.float32)
        nisa.tensor_copy(result, psum)
        nisa.dma_copy(out, result)
        return out

    return kernel


def test_the_tensor_instruction_multiplies_and_accumulates(page):
    negated = page["negated_matmul"]
    exact = S.T.astype(np.float64) @ M
    with target("trn2"):
        np.testing.assert_array_equal(product(negated)(S, M), -exact)
        np.testing.assert_array_equal(product(nisa.nc_matmul, nisa.nc_matmul, negated)(S, M), exact)


def test_the_tensor_instruction_takes_as_long_as_a_matmul(page):
    kernel = product(page["negated_matmul"])
    with target("trn2"):
        ours, theirs = kernel.profile(S, M), product(nisa.nc_matmul).profile(S, M)
    assert ours.total_us == theirs.total_us
    assert ours.timeline.flops == theirs.timeline.flops == 2 * 32 * 64 * 96
    instruction, bar = issued(kernel, S, M)
    done = effects(instruction)
    assert done.adds_to == (instruction.dst,) and not done.writes
    assert done.reads == (instruction.stationary, instruction.moving)
    assert bar.engine == "tensor" and instruction.array_rows() == 32


def transfer(function):
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype)
        function(tile, x)
        nisa.dma_copy(out, tile)
        return out

    return kernel


def test_the_dma_instruction_negates_at_half_the_rate(page):
    kernel = transfer(page["dma_negate"])
    with target("trn2"):
        np.testing.assert_array_equal(kernel(X), -X)
        ours, copy = kernel.profile(X), transfer(nisa.dma_copy).profile(X)
    assert TRN2.dma_compute_fraction < 1 and ours.total_us > copy.total_us
    assert ours.statistics.dma_transfers == 2
    instruction, bar = issued(kernel, X)
    done = effects(instruction)
    assert done.reads == (instruction.src,) and done.writes == (instruction.dst,)
    assert bar.engine == "dma" and instruction.engine_name() == "dma"


# ---- what TensorE asks of a class ----------------------------------------------------------------


def test_a_class_on_tensor_engine_must_declare_its_use_of_the_array():
    with pytest.raises(TypeError, match="Bare runs on TensorE: derive it from .*MatmulInstruction"):

        class Bare(Instruction):
            public = "bare"
            engines = (VECTOR, TENSOR)
            dst: Out

    assert "bare" not in INSTRUCTIONS


@pytest.mark.parametrize("missing", ["adds_to_dst", "is_transpose", "array_flops", "array_operand"])
def test_a_matmul_that_leaves_out_a_declaration_is_refused(missing):
    given = {
        "adds_to_dst": lambda self: False,
        "is_transpose": False,
        "array_flops": lambda self: 0,
        "array_operand": lambda self: self.data,
    }
    del given[missing]
    body = {"__annotations__": {"dst": "Out", "data": "In"}, "public": "partly", **given}
    with pytest.raises(TypeError, match=f"Partly runs on TensorE and does not declare {missing}"):
        type(MatmulInstruction)("Partly", (MatmulInstruction,), body)
    assert "partly" not in INSTRUCTIONS


def test_an_instruction_has_few_flags_and_methods():
    """CONTRIBUTING promises that little has to be known to add an instruction."""
    base = vars(Instruction)
    about = {"public", "engines", "since", "state", "cost_formula", "cost_source"}
    derived = {"listed_as", "accumulates", "partial", "fields", "operand_names", "read_at", "write_at"}
    derived |= {"required", "registers", "registers_written", "defaults"}
    declared = {k for k, v in base["__annotations__"].items() if v.startswith("ClassVar")}
    assert len(declared - about - derived) <= 6
    final = {"operands", "key", "writes_all", "views"}
    assert len({k for k, v in base.items() if callable(v) and k[0] != "_"} - final) <= 15


def test_a_barrier_on_tensor_engine_needs_no_declaration():
    from nki.isa.sync import CoreBarrier

    assert TENSOR in CoreBarrier.engines and GPSIMD is CoreBarrier.engines[0]
    assert not issubclass(CoreBarrier, MatmulInstruction)
