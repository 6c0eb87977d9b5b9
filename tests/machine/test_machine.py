"""The machine tables, checked against the tables of spec/machine.md and spec/language.md."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import nki
from nki.errors import NkiError
from nki.machine.assumptions import ASSUMPTIONS, INFORMATIVE
from nki.machine.generations import MACHINES, TRN1, TRN2, TRN3, find
from nki.machine.machine import Machine

ALL = (TRN1, TRN2, TRN3)
FIELDS = [field.name for field in dataclasses.fields(Machine)]
FIELD_LINE = re.compile(
    r"^    (?P<name>\w+): [^#]+# (?P<section>(?:spec/language\.md )?[\d.]+) \[(?P<tag>[DSXTUC])\]"
)


def documented_fields() -> dict[str, str]:
    """Each field whose line names a section, with its evidence tag."""
    matches = (FIELD_LINE.match(line) for line in inspect.getsource(Machine).splitlines())
    return {match["name"]: match["tag"] for match in matches if match}


def on_each(name):
    return tuple(getattr(machine, name) for machine in ALL)


@pytest.mark.tiny
@pytest.mark.parametrize(
    "name, expected",
    [
        ("partitions", (128, 128, 128)),
        ("psum_bank_fp32", (512, 512, 512)),
        ("psum_bank_bytes", (2048, 2048, 2048)),
        ("psum_banks", (8, 8, 8)),
        ("psum_banks_pe_dma_transpose", (8, 7, 7)),
        ("matmul_stationary_max", (128, 128, 128)),
        ("gemm_moving_fmax", (512, 512, 512)),
        ("bn_stats_max", (512, 512, 512)),
        ("psum_min_align", (4, 4, 4)),
        ("sbuf_min_align", (1, 1, 1)),
        ("sbuf_size_bytes", (25165824, 29360128, 33554432)),
        ("sbuf_usable_bytes", (180224, 212984, 245752)),
    ],
)
def test_values_behind_tile_size_match_language_section_8(name, expected):
    assert on_each(name) == expected


@pytest.mark.parametrize(
    "name, expected",
    [
        ("generation", (2, 3, 4)),
        ("hbm_gbs", (410, 716, 1175)),
        ("hbm_bytes_per_core", (16 * 2**30, 24 * 2**30, 36 * 2**30)),
        ("lnc_degrees", ((1,), (1, 2), (1, 2))),
        ("tensor_ghz", (2.8, 2.4, 2.4)),
        ("vector_ghz", (1.12, 0.96, 1.2)),
        ("scalar_ghz", (1.4, 1.2, 1.2)),
        ("gpsimd_ghz", (1.4, 1.2, 1.2)),
        ("dma_ghz", (1.4, 1.2, 1.2)),
        ("matmul_moving_max", (512, 512, 4096)),
        ("matmul_moving_max_bf16", (512, 512, 8192)),
        ("matmul_bank_limited", (True, True, False)),
        ("pe_tile_sizes", ((128, 64), (128, 64, 32), (128, 64, 32))),
        ("transpose_exact", (False, True, True)),
        ("has_hwdge", (False, True, True)),
        ("dma_bytes_per_ns", (17.1, 23.9, 33.0)),
        ("dma_peak_gbs", (272, 368, 528)),
        ("dma_profiler_gbs", (435, 435, 614)),
        ("dma_compute_fraction", (0.5, 0.5, 1.0)),
        ("half_rate_rule", (False, True, True)),
        ("activation_table_ns", (368, 1283, 1283)),
        ("vector_two_inputs", (2, 1, 1)),
        ("vector_copy_16bit", (1, 0.25, 0.25)),
        ("vector_reciprocal", (8, 6, 6)),
    ],
)
def test_what_differs_between_generations_matches_the_tables(name, expected):
    assert on_each(name) == expected


@pytest.mark.parametrize(
    "machine, multiplier, teraflops",
    [
        (TRN1, 1, 91.75),
        (TRN2, 1, 78.64),
        (TRN3, 1, 78.64),
        (TRN1, TRN1.fp32_multiplier, 22.9),
        (TRN2, TRN2.fp32_multiplier, 19.66),
        (TRN3, TRN3.fp32_multiplier, 19.66),
        (TRN2, TRN2.double_row_multiplier, 157.3),
        (TRN3, TRN3.double_row_multiplier, 157.3),
        (TRN3, TRN3.mx_multiplier, 314.6),
    ],
)
def test_peak_flops_match_machine_section_2(machine, multiplier, teraflops):
    assert machine.peak_flops(multiplier) / 1e12 == pytest.approx(teraflops, rel=2e-3)


def test_a_rate_the_generation_lacks_is_a_peak_of_zero():
    assert TRN1.peak_flops(TRN1.double_row_multiplier) == 0
    assert TRN2.peak_flops(TRN2.mx_multiplier) == 0


@pytest.mark.parametrize("machine", ALL, ids=lambda machine: machine.name)
def test_geometry_agrees_with_itself(machine):
    assert machine.psum_banks * machine.psum_bank_bytes == machine.psum_bytes
    assert machine.psum_size_bytes == 2 * 2**20
    assert machine.sbuf_usable_bytes < machine.sbuf_bytes <= machine.sbuf_partition_stride_bytes
    assert machine.dma_partitions_per_engine == 8
    assert machine.matmul_moving_max * 4 <= machine.psum_bytes
    assert machine.matmul_moving_max_bf16 * 2 <= machine.psum_bytes
    assert machine.matmul_bank_limited == (machine.matmul_moving_max * 4 <= machine.psum_bank_bytes)
    assert machine.has_hwdge == (machine.hwdge_units > 0)
    assert machine.dma_peak_gbs < machine.dma_profiler_gbs


def test_trn2_latencies_reproduce_the_measured_instructions_of_machine_section_13():
    add_512_from_psum = TRN2.fix_vector_ns + 512 * TRN2.vector_two_inputs_psum / TRN2.vector_ghz
    exp_4096 = TRN2.fix_activation_ns + 4096 * TRN2.scalar_activation / TRN2.scalar_ghz
    affine_select_128 = TRN2.fix_gpsimd_ns + (TRN2.gpsimd_overhead_cycles + 128) / TRN2.gpsimd_ghz
    load_8kib_x4 = 4 * (TRN2.dma_descriptor_ns + 8192 / TRN2.dma_bytes_per_ns)
    matmul_ns = (512 + TRN2.matmul_gap_cycles) / TRN2.tensor_ghz
    assert add_512_from_psum == pytest.approx(690, rel=0.01)
    assert exp_4096 == pytest.approx(3710, rel=0.01)
    assert affine_select_128 == pytest.approx(177 + 128 / 1.2, rel=0.01)
    assert load_8kib_x4 == pytest.approx(1416, rel=0.031)  # 3.0 % below, as 9.2 says
    assert matmul_ns == pytest.approx(217.6, rel=0.002)


def test_trn3_vector_latencies_are_the_cycles_of_trn2():
    for name in ("fix_vector_ns", "fix_memset_ns", "vector_transpose_first_ns", "vector_transpose_next_ns"):
        cycles = [getattr(machine, name) * machine.vector_ghz for machine in (TRN2, TRN3)]
        assert cycles[0] == pytest.approx(cycles[1]), name


def test_every_field_names_its_section_and_evidence():
    assert set(FIELDS) == set(documented_fields())


def test_every_field_has_a_value_on_every_machine():
    missing = [(m.name, f) for m in ALL for f in FIELDS if getattr(m, f) is None]
    assert missing == []


def test_a_machine_is_frozen_and_can_key_a_cache():
    assert len({machine: machine.name for machine in ALL}) == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        TRN2.partitions = 256  # type: ignore[misc]


def test_assumptions_name_real_fields_and_give_a_reason():
    assert set(ASSUMPTIONS) <= set(FIELDS)
    assert all(ASSUMPTIONS.values())


def test_every_assumption_belongs_to_a_machine_and_every_machine_explains_its_own():
    assert set().union(*(machine.assumed for machine in ALL)) == set(ASSUMPTIONS)
    assert TRN3.assumptions["hbm_gbs"] == "trn3: 4.7 TB/s of the device over four stacks"
    assert "hbm_gbs" not in TRN2.assumptions


def test_every_field_tagged_unknown_is_listed_as_an_assumption():
    unknown = {name for name, tag in documented_fields().items() if tag == "U"}
    assert unknown <= set(ASSUMPTIONS)


def test_every_reason_that_names_machines_agrees_with_their_assumed_sets():
    for field, reason in ASSUMPTIONS.items():
        start = re.match(r"trn[123](?: and trn[123])?:", reason)
        if start:
            named = set(re.findall(r"(trn[123])(?=[^;:]*:)", reason))
            assert named == {machine.name for machine in ALL if field in machine.assumed}, field


def test_what_was_only_measured_is_an_assumption_on_trn3():
    measured = {name for name, tag in documented_fields().items() if tag == "T"}
    host = {"launch_ms", "collective_launch_ms"}  # of no generation
    assert measured - TRN3.assumed - host == {"sbuf_usable_bytes"}  # reported per generation


@pytest.mark.tiny
@pytest.mark.parametrize(
    "machine, spellings",
    [
        (TRN1, "trn1 inf2 gen2 2 TRN1 Inf2"),
        (TRN2, "trn2 gen3 3 Trn2 GEN3"),
        (TRN3, "trn3 gen4 4 TRN3 Gen4"),
    ],
)
def test_find_knows_every_spelling_in_any_case(machine, spellings):
    assert all(find(spelling) is machine for spelling in spellings.split())
    assert MACHINES[machine.name] is machine


def test_an_unknown_platform_lists_the_names_and_points_at_the_caller():
    with pytest.raises(NkiError) as caught:
        find("h100")
    err = caught.value
    assert err.kind == "platform" and isinstance(err, ValueError)
    assert err.site is not None and err.site.filename == __file__
    assert err.message == "there is no platform 'h100'"
    assert err.help == "use one of: trn1, inf2, gen2, 2; trn2, gen3, 3; trn3, gen4, 4"


def test_a_mistyped_platform_gets_a_suggestion():
    with pytest.raises(NkiError, match="there is no platform 'Trn-2', did you mean 'trn2'"):
        find("Trn-2")


def test_every_number_is_read_somewhere_or_marked_as_information():
    """A field that no code reads, and that is not marked, would look like part of the model."""
    sources = Path(nki.__file__).parent.rglob("*.py")
    texts = [path.read_text() for path in sources if path.parent.name != "machine"]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    own = inspect.getsource(Machine)
    names = {field.name for field in dataclasses.fields(Machine)}
    read = {n for n in names if n in words or re.search(rf"self\.{n}\b", own)}
    assert names - read == INFORMATIVE
