"""trn1, trn2 and trn3, and how they are called."""

from __future__ import annotations

import re
from dataclasses import replace

from ..errors import error, nearest
from .assumptions import ASSUMED_TRN1, ASSUMED_TRN2, ASSUMED_TRN3
from .machine import GIB, KIB, Machine

# fmt: on


TRN1 = Machine(
    name="trn1",
    aliases=("inf2", "gen2", "2"),
    generation=2,
    assumed=ASSUMED_TRN1,
    # device
    cores_per_device=2,
    lnc_degrees=(1,),
    cores_per_hbm_stack=1,
    hbm_bytes_per_core=16 * GIB,
    hbm_gbs=410.0,
    # clocks
    tensor_ghz=2.8,
    vector_ghz=1.12,
    scalar_ghz=1.4,
    gpsimd_ghz=1.4,
    dma_ghz=1.4,
    # memories
    sbuf_bytes=192 * KIB,
    sbuf_usable_bytes=180_224,
    psum_banks_pe_dma_transpose=8,  # the lowering exists from trn2 on
    vector_gpsimd_serial=True,
    vector_scalar_psum_serial=True,
    shared_bus_stops_fast_modes=False,
    # TensorE
    matmul_moving_max=512,
    matmul_moving_max_bf16=512,
    matmul_bank_limited=True,
    pe_tile_sizes=(128, 64),
    transpose_exact=False,
    double_row_multiplier=0.0,
    mx_multiplier=0.0,
    matmul_gap_cycles=0.0,
    matmul_after_load_ns=26.0,  # performance guide, figures 20 and 21
    fp32_transpose_factor=4,
    transpose_issue_slots=1,
    half_rate_rule=False,
    # latencies
    fix_tensor_ns=142.0,
    tensor_drain_ns=142.0,
    fix_vector_ns=130.0,
    fix_memset_ns=58 * 0.96 / 1.12,
    fix_activation_ns=158.0,
    fix_scalar_copy_ns=158.0,
    fix_scalar_psum_copy_ns=158.0,
    fix_accumulator_read_ns=158.0,
    fix_gpsimd_ns=52 * 1.2 / 1.4,
    scalar_operand_ns=0.0,
    # VectorE
    vector_access_cycles=60.0,  # "approximately 60 cycles on NeuronCore-v2"; the Mamba profiles show 50 to 90
    vector_two_inputs=2.0,
    vector_two_inputs_16bit=1.0,
    vector_copy_fp32=1.0,
    vector_copy_16bit=1.0,
    vector_copy_16bit_strided=1.0,
    vector_copy_16bit_psum=1.0,
    vector_copy_fp32_to_16bit=1.0,
    vector_copy_16bit_to_fp32=1.0,
    vector_fast_fp8=False,
    vector_memset=1.0,
    vector_scalar_tensor_tensor=2.0,
    vector_reduce_16bit=0.5,
    vector_scan_initial_ns=0.0,
    vector_reciprocal=8.0,
    vector_predicated_scalar=2.0,
    vector_transpose_first_ns=0.0,
    vector_transpose_next_ns=0.0,
    # ScalarE
    scalar_copy_narrow=1.0,
    scalar_has_tensor_copy=False,
    scalar_tensor_scalar="none",
    accumulator_read_ns=64 / 1.4,
    activation_table_ns=368.0,
    # DMA
    dma_priorities=1,
    dma_peak_gbs=272.0,
    dma_profiler_gbs=435.0,
    dma_bytes_per_ns=18.1,  # as seen (performance guide, figure 30); the bandwidth guide says 17
    has_hwdge=False,
    hwdge_units=0,
    dma_default_mode="static",
    dma_dispatch_load_ns=1300.0,
    dma_dispatch_store_ns=1300.0,
    dma_notify_load_ns=300.0,
    dma_notify_store_ns=300.0,
    dma_transpose_hbm_fraction=0.0,
    dma_transpose_sbuf_fraction=0.0,
    dma_compute_fraction=0.5,
    gpsimd_dma_gbs=0.0,
    # control
    same_engine_gap_ns=30.0,
    kernel_overhead_ns=22_000.0,  # 17 us before the first and 5 us after the last VectorE work
)

TRN2 = Machine(
    name="trn2",
    aliases=("gen3", "3"),
    generation=3,
    assumed=ASSUMED_TRN2,
    # device
    cores_per_device=8,
    lnc_degrees=(1, 2),
    cores_per_hbm_stack=2,
    hbm_bytes_per_core=24 * GIB,
    hbm_gbs=716.0,
    # clocks
    tensor_ghz=2.4,
    vector_ghz=0.96,
    scalar_ghz=1.2,
    gpsimd_ghz=1.2,
    dma_ghz=1.2,
    # memories
    sbuf_bytes=224 * KIB,
    sbuf_usable_bytes=212_984,
    psum_banks_pe_dma_transpose=7,
    vector_gpsimd_serial=False,
    vector_scalar_psum_serial=False,
    shared_bus_stops_fast_modes=True,
    # TensorE
    matmul_moving_max=512,
    matmul_moving_max_bf16=512,
    matmul_bank_limited=True,
    pe_tile_sizes=(128, 64, 32),
    transpose_exact=True,
    double_row_multiplier=2.0,
    mx_multiplier=0.0,
    matmul_gap_cycles=10.0,
    matmul_after_load_ns=0.0,
    fp32_transpose_factor=2,
    transpose_issue_slots=1,
    half_rate_rule=True,
    # latencies
    fix_tensor_ns=203.0,
    tensor_drain_ns=170.0,
    fix_vector_ns=156.0,
    fix_memset_ns=58.0,
    fix_activation_ns=293.0,
    fix_scalar_copy_ns=190.0,
    fix_scalar_psum_copy_ns=167.0,
    fix_accumulator_read_ns=94.0,
    fix_gpsimd_ns=52.0,
    scalar_operand_ns=90.0,
    # VectorE
    vector_access_cycles=0.0,
    vector_two_inputs=1.0,
    vector_two_inputs_16bit=0.5,
    vector_copy_fp32=0.5,
    vector_copy_16bit=0.25,
    vector_copy_16bit_strided=0.5,
    vector_copy_16bit_psum=0.5,
    vector_copy_fp32_to_16bit=0.5,
    vector_copy_16bit_to_fp32=0.77,
    vector_fast_fp8=False,
    vector_memset=0.8,
    vector_scalar_tensor_tensor=1.0,
    vector_reduce_16bit=1.0,
    vector_scan_initial_ns=60.0,
    vector_reciprocal=6.0,
    vector_predicated_scalar=1.06,
    vector_transpose_first_ns=234.0,
    vector_transpose_next_ns=93.0,
    # ScalarE
    scalar_copy_narrow=1.0,
    scalar_has_tensor_copy=True,
    scalar_tensor_scalar="multiply-add",
    accumulator_read_ns=185.0,
    activation_table_ns=1283.0,
    # DMA
    dma_priorities=1,
    dma_peak_gbs=368.0,
    dma_profiler_gbs=435.0,
    dma_bytes_per_ns=24.5,  # packet times of the optimisation guide; the bandwidth guide says 23
    has_hwdge=True,
    hwdge_units=2,
    dma_default_mode="software",
    dma_dispatch_load_ns=750.0,
    dma_dispatch_store_ns=570.0,
    dma_notify_load_ns=310.0,
    dma_notify_store_ns=360.0,
    dma_transpose_hbm_fraction=0.9,
    dma_transpose_sbuf_fraction=0.5,
    dma_compute_fraction=0.5,
    gpsimd_dma_gbs=153.0,
    # control
    same_engine_gap_ns=13.0,
    kernel_overhead_ns=9_400.0,
)

# trn2 with the differences of spec/machine.md; most of what is not named here is a documented "same".
TRN3 = replace(
    TRN2,
    name="trn3",
    aliases=("gen4", "4"),
    generation=4,
    assumed=ASSUMED_TRN3,
    # device
    hbm_bytes_per_core=36 * GIB,
    hbm_gbs=1175.0,
    # clocks
    vector_ghz=1.2,
    # memories
    sbuf_bytes=256 * KIB,
    sbuf_usable_bytes=245_752,
    # TensorE
    matmul_moving_max=4096,
    matmul_moving_max_bf16=8192,
    matmul_bank_limited=False,
    mx_multiplier=4.0,
    transpose_issue_slots=2,
    # VectorE: the cycles of trn2 at a faster clock
    fix_vector_ns=156 * 0.96 / 1.2,
    fix_memset_ns=58 * 0.96 / 1.2,
    vector_transpose_first_ns=234 * 0.96 / 1.2,
    vector_transpose_next_ns=93 * 0.96 / 1.2,
    vector_fast_fp8=True,
    # ScalarE
    scalar_copy_narrow=0.5,
    scalar_tensor_scalar="all",
    # DMA
    dma_priorities=4,
    dma_peak_gbs=528.0,
    dma_profiler_gbs=614.0,
    dma_bytes_per_ns=33.0,  # bandwidth guide; no transfer is published
    dma_compute_fraction=1.0,
)

MACHINES: dict[str, Machine] = {machine.name: machine for machine in (TRN1, TRN2, TRN3)}


def find(name: str) -> Machine:
    """The machine of a platform name: trn1, inf2, gen2, trn2, gen3, trn3, gen4, 2, 3 or 4, in any case.

    So are variants and instances of one: trn1n, trn2u, trn3pre, trn3_a0, trn2.48xlarge.
    """
    spelling = str(name).strip().lower()
    variant = _VARIANT.fullmatch(spelling)
    machine = _BY_SPELLING.get(variant.group(1) if variant else spelling)
    if machine is None:
        raise _unknown(str(name))
    return machine


_VARIANT = re.compile(r"(inf2|trn[1-3]|gen[2-4])(?:n|u|s|pre|pds[0-9]*)?(?:[-_.][a-z0-9]+)*")
_BY_SPELLING = {spelling: m for m in MACHINES.values() for spelling in (m.name, *m.aliases)}


def _unknown(name: str) -> Exception:
    close = nearest(name.strip().lower(), _BY_SPELLING)
    names = "; ".join(", ".join((m.name, *m.aliases)) for m in MACHINES.values())
    return error(
        "platform",
        f"there is no platform {name!r}" + (f", did you mean {close!r}?" if close else ""),
        help=f"use one of: {names}",
    )
