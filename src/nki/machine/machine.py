"""The numbers of one NeuronCore, per generation: sizes, limits, clocks, rates, latencies. Data, no logic.

Beside every field stands the section of spec/machine.md that gives it and the evidence there:
[D] AWS documents, [S] AWS profiler pictures, [X] arithmetic on those, [T] one-instruction measurements by
others, [U] unknown, assumed. The tag is the best one found on any generation; where a generation rests on
an assumption its `assumed` set names the field, and `ASSUMPTIONS` gives the reason.

Units are in the names: `_bytes` per partition unless noted, `_ns`, `_ghz`, `_gbs` (GB/s = bytes per ns),
`_cycles` of the engine named. Rates of the engines are cycles per element of one partition.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from .assumptions import ASSUMED_TRN1, ASSUMED_TRN2, ASSUMED_TRN3, ASSUMPTIONS

KIB = 1024
GIB = 1024**3
T = TypeVar("T")


class PerGeneration(NamedTuple):
    """The values of a field on trn1, trn2 and trn3."""

    values: tuple[Any, Any, Any]


def each(trn1: T, trn2: T, trn3: T | None = None) -> T:
    """Return a default that differs by generation; trn3 is as trn2 unless it is given."""
    return PerGeneration((trn1, trn2, trn2 if trn3 is None else trn3))  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class Machine:
    """One generation. A field without `each` is the same on all of them."""

    # --- identity
    name: str = each("trn1", "trn2", "trn3")  # spec/language.md 5 [D]
    aliases: tuple = each(("inf2", "gen2", "2"), ("gen3", "3"), ("gen4", "4"))  # spec/language.md 5 [D]
    generation: int = each(2, 3, 4)  # 1 [D] NeuronCore-v2, v3, v4
    assumed: frozenset[str] = each(ASSUMED_TRN1, ASSUMED_TRN2, ASSUMED_TRN3)  # 15 [X] see assumptions.py

    # --- the device around the core
    cores_per_device: int = each(2, 8)  # 1 [D]
    lnc_degrees: tuple[int, ...] = each((1,), (1, 2))  # 1 [D] physical cores a logical core may have
    cores_per_hbm_stack: int = each(1, 2)  # 1 [D]
    hbm_bytes_per_core: int = each(16 * GIB, 24 * GIB, 36 * GIB)  # 1 [D] the whole stack a core reaches
    hbm_gbs: float = each(410.0, 716.0, 1175.0)  # 1 [X] one stack; the profiler's MBU denominator

    # --- clocks
    tensor_ghz: float = each(2.8, 2.4)  # 1 [D]
    vector_ghz: float = each(1.12, 0.96, 1.2)  # 1 [D]
    scalar_ghz: float = each(1.4, 1.2)  # 1 [D]
    gpsimd_ghz: float = each(1.4, 1.2)  # 1 [D]
    dma_ghz: float = each(1.4, 1.2)  # 1 [X] the clock behind the profiler's DMA and core "cycles"

    # --- SBUF and PSUM: geometry
    partitions: int = 128  # 3 [D]
    quadrant_partitions: int = 32  # 3 [D] operands of <= 32 partitions start at a multiple of this
    sbuf_bytes: int = each(192 * KIB, 224 * KIB, 256 * KIB)  # 1 [D]
    sbuf_usable_bytes: int = each(180_224, 212_984, 245_752)  # 1 [T] the rest is reserved
    sbuf_partition_stride_bytes: int = 262_144  # 1 [S] address step from partition to partition
    sbuf_min_align: int = 1  # spec/language.md 8 [C] bytes
    psum_bytes: int = 16 * KIB  # 1 [D]
    psum_bank_bytes: int = 2 * KIB  # 1 [D]
    psum_banks: int = 8  # 1 [D]
    psum_banks_pe_dma_transpose: int = each(8, 7)  # 3 [D] from trn2 on, dma_transpose on TensorE takes bank 7
    psum_min_align: int = 4  # spec/language.md 8 [C] bytes

    # --- SBUF and PSUM: access
    access_max_dims: int = 4  # 3 [D] nested dimensions of the free axis
    access_max_size: int = 2**16 - 1  # 3 [D] uint16 elements per dimension
    access_max_stride: int = 2**15 - 1  # 3 [D] int16 elements
    stride_full_rate_bytes: int = 16  # 3 [D] a longer innermost stride is slowed down ...
    stride_slowdown: float = 2.0  # 3 [D] ... by this factor
    vector_gpsimd_serial: bool = each(True, False)  # 3.1 [D] VectorE and GpSimdE take turns in SBUF
    vector_scalar_psum_serial: bool = each(True, False)  # 3.1 [D] VectorE and ScalarE take turns in PSUM
    psum_bank_serial: bool = True  # 3.1 [U] they take turns in one bank
    shared_bus_stops_fast_modes: bool = each(False, True)  # 3.1 [U] VectorE is at 1x while GpSimdE is active

    # --- TensorE: limits
    matmul_contraction_max: int = 128  # 5.1 [D] partitions of both operands (K)
    matmul_stationary_max: int = 128  # 5.1 [D] free elements of stationary (M)
    matmul_moving_max: int = each(512, 512, 4096)  # 5.1 [D] free elements of moving (N), float32 dst
    matmul_moving_max_bf16: int = each(512, 512, 8192)  # 5.1 [D] the same, bfloat16 dst
    matmul_bank_limited: bool = each(True, True, False)  # 3 [D] one matmul's dst lies in one PSUM bank
    gemm_moving_fmax: int = 512  # spec/language.md 8 [D] the constant nl.tile_size shows on every generation
    pe_tile_sizes: tuple[int, ...] = each((128, 64), (128, 64, 32))  # 5.1 [D] rows or columns of a PE tile
    transpose_exact: bool = each(False, True)  # 3.2 [D] transposes move bits, else multiply by identity
    mx_contraction_multiple: int = 32  # 5.1 [D] K of nc_matmul_mx

    # --- TensorE: rates
    fp32_multiplier: float = 0.25  # 2 [D] of the bf16 peak
    double_row_multiplier: float = each(0.0, 2.0)  # 2 [D] fp8 double_row; 0: absent
    mx_multiplier: float = each(0.0, 0.0, 4.0)  # 2 [D] mxfp8 and mxfp4; 0: absent
    matmul_min_cycles: int = 64  # 5.2 [D] MM = max(N, 64)
    # trn2: 217.6 ns is 512 cycles + 10. trn1: 213 ns in the fastest bf16 GEMMs of two studies (6.96 ms of
    # 4096x8192x8192, 78.5 TFLOP/s of 8192^3); 34 ns for each of four passes in five float32 ones (NKIBench)
    matmul_gap_cycles: float = each(86.0, 10.0)  # 5.3 [X] between two matmuls
    # 26 ns: performance guide, figures 20 and 21
    matmul_after_load_ns: float = each(26.0, 0.0)  # 4 [S] from LoadStationary to Matmult, at least
    load_stationary_columns: int = 4  # 5.2 [D] columns of stationary per cycle (fast LoadStationary)
    fp32_matmul_pairs: int = each(4, 2)  # 5.2 [X] LS+MM pairs of one float32 nc_matmul
    fp32_matmul_factor: int = 4  # 5.2 [D] cycles against bf16, all pairs together
    fp32_onezero_factor: int = 2  # 5.2 [D] the same with one operand flagged one/zero
    fp32_load_stationary_factor: int = 4  # 5.2 [U]
    fp32_transpose_factor: int = each(4, 2)  # 5.2 [D] plain float32 matmul on v2, transpose mode after
    transpose_issue_slots: int = each(1, 1, 2)  # 5.2 [U] a second slot: transposes run behind matmuls
    half_rate_rule: bool = each(False, True)  # 5.3 [T] the PE array has a half and a full clock
    half_rate_window_ns: float = 3413.0  # 5.3 [T] 4,096 cycles of 1.2 GHz
    half_rate_threshold: float = 0.375  # 5.3 [T] after a window with less ...
    half_rate_slowdown: float = 2.0  # 5.3 [T] ... the next is slower by this factor

    # --- issue and result latency (done = start + II + FIX)
    min_ii_cycles: int = 64  # 4 [D] TensorE, VectorE, ScalarE: shortest initiation interval
    dynamic_min_ii_cycles: int = 600  # 6.2 [D] the same when a register gives the address
    fix_tensor_ns: float = each(111.0, 203.0)  # 4 [T] isolated matmul until its result is readable
    tensor_drain_ns: float = each(111.0, 170.0)  # 5.3 [S] what a matmul's bar shows beyond its II in a stream
    # trn1: 163 from 0.62 us of 512 elements (kiln), at most 145 from a mean of 161 ns (GatedDeltaNet)
    fix_vector_ns: float = each(145.0, 156.0, 156 * 0.96 / 1.2)  # 4 [T] all but memset: 152-161
    fix_memset_ns: float = each(58 * 0.96 / 1.12, 58.0, 58 * 0.96 / 1.2)  # 4 [T]
    fix_activation_ns: float = each(158.0, 293.0)  # 4 [T] activation, SBUF to SBUF
    fix_activation_psum_ns: float = each(158.0, 253.0)  # 4 [T] the same, PSUM to SBUF: 680 of 512 elements
    fix_scalar_copy_ns: float = each(158.0, 190.0)  # 4 [T] ScalarE copy, SBUF to SBUF
    fix_scalar_psum_copy_ns: float = each(158.0, 167.0)  # 4 [T] ScalarE copy, PSUM to SBUF: 160-174
    fix_accumulator_read_ns: float = each(158.0, 94.0)  # 4 [T] ActReadAccumulator: done 279 - II 185
    fix_gpsimd_ns: float = each(52 * 1.2 / 1.4, 52.0)  # 4 [T] affine_select: 177 ns - the 150 cycles of II
    # traces, 512 elements: exp every 612 ns (705 long), from PSUM 570 (680), copies 475 (585), VectorE 598
    # (681); ActReadAccumulator 185 (279). On trn1 the access cycles stand for it.
    overlap_ns: float = each(0.0, 95.0)  # 4 [T] the next instruction begins so long before a result
    scalar_operand_ns: float = each(0.0, 90.0)  # 4 [T] a [P,1] scale tile that an activation reads
    # TENSOR_SCALAR by a pointer in the traces: 481 ns of 512 float32 elements, 348 of 128
    vector_operand_ns: float = each(0.0, 95.0)  # 4 [T] a [P,1] operand that VectorE reads

    # --- VectorE: cycles per element
    # "approximately 60 cycles on NeuronCore-v2"; the Mamba profiles show 50 to 90. Kiln's probe: 38 for a
    # tensor_scalar, 166 (four times 41.5) for tensor_tensor with both tiles in SBUF, 11 with one in PSUM.
    vector_access_cycles: float = each(39.5, 0.0)  # 3 [T] before the next instruction; hidden from trn2 on
    vector_one_input: float = 1.0  # 6.1 [D]
    vector_two_inputs: float = each(2.0, 1.0)  # 6.1 [D] tensor_tensor, both in SBUF
    vector_two_inputs_psum: float = 1.0  # 6.1 [D] one of them in PSUM
    vector_two_inputs_16bit: float = each(1.0, 0.5)  # 6.1 [D] all bf16/fp16 in SBUF, contiguous (2x mode)
    vector_copy_fp32: float = each(1.0, 0.5)  # 6.1 [D] tensor_copy, tensor_scalar; SBUF to SBUF
    vector_copy_16bit: float = each(1.0, 0.25)  # 6.1 [D] both sides 16-bit in SBUF, contiguous (4x mode)
    vector_copy_16bit_strided: float = each(1.0, 0.5)  # 6.1 [D] the same, not contiguous
    vector_copy_16bit_psum: float = each(1.0, 0.5)  # 6.1 [D] the same, contiguous, one side in PSUM
    vector_copy_fp32_to_16bit: float = each(1.0, 0.5)  # 6.1 [T]
    vector_copy_16bit_to_fp32: float = each(1.0, 0.77)  # 6.1 [T]
    vector_psum_fp32: float = 1.0  # 6.1 [T] float32 source in PSUM
    vector_fast_fp8: bool = each(False, False, True)  # 6.1 [D] fp8 has the 4x mode too
    vector_memset: float = each(1.0, 0.8)  # 6.2 [T] 0.83 ns x 0.96 GHz
    vector_memset_zero_16bit: float = 0.5  # 6.2 [D]
    vector_scalar_tensor_tensor: float = each(2.0, 1.0)  # 6.2 [D]
    vector_scalar_tensor_tensor_fast: float = 1.0  # 6.2 [D] bf16, subtract then multiply, N even
    vector_reduce: float = 1.0  # 6.2 [D]
    vector_reduce_16bit: float = each(0.5, 1.0)  # 6.2 [D] bf16 in and out, add or max
    vector_cumulative: float = 2.0  # 6.2 [U] tensor_scalar_cumulative
    vector_scan: float = 2.0  # 6.2 [D] tensor_tensor_scan
    vector_scan_initial_ns: float = each(0.0, 60.0)  # 6.2 [T] once, when `initial` is a tensor
    vector_bn_stats: float = 1.0  # 6.2 [D]
    vector_bn_aggr: float = 13 / 3  # 6.2 [D] 13 cycles per (count, mean, M2) triple
    vector_reciprocal: float = each(8.0, 6.0)  # 6.2 [D]
    # NKIBench's profiles: VectorE has 2.2 us for 1 / (1 + e) and a product of 512 elements, not 4.9
    reciprocal_by_division: bool = each(True, False)  # 6.2 [X] what the compiler makes of a wide one
    vector_dropout: float = 1.0  # 6.2 [D]
    vector_predicated: float = 2.0  # 6.2 [D] tensor_copy_predicated, select_reduce
    vector_predicated_psum: float = 1.0  # 6.2 [D] src or predicate in PSUM
    vector_predicated_scalar: float = each(2.0, 1.06)  # 6.2 [T] src is a scalar
    vector_rng: float = 1.0  # 6.2 [U]
    vector_rand2: float = 0.25  # 6.2 [D] v4
    vector_exponential: float = 0.25  # 6.2 [D] v4, reduction included
    vector_quantize_mx: float = 0.25  # 6.2 [D] v4, of 16-bit source elements
    vector_transpose_first_ns: float = each(0.0, 234.0, 234 * 0.96 / 1.2)  # 4 [T] II, 32x32; 0: none
    vector_transpose_next_ns: float = each(0.0, 93.0, 93 * 0.96 / 1.2)  # 4 [T] the next on its pair
    bn_stats_max: int = 512  # 6.2 [D] elements of one bn_stats

    # --- ScalarE
    scalar_activation: float = 1.0  # 7 [D] cycles per element, any function
    scalar_access_cycles: float = each(33.0, 0.0)  # 7 [T] before the next one: 64 of 64 in 4.43 us (kiln)
    scalar_copy_narrow: float = each(1.0, 1.0, 0.5)  # 7 [D] copy, tensor_scalar of 16- and 8-bit elements
    scalar_has_tensor_copy: bool = each(False, True)  # 7 [D]
    scalar_tensor_scalar: str = each("none", "multiply-add", "all")  # 7 [D] operators of tensor_scalar
    accumulator_read_ns: float = each(64 / 1.4, 185.0)  # 7 [T] II of ActReadAccumulator
    activation_table_ns: float = each(368.0, 1283.0)  # 7 [T] ACT_TABLE_LOAD, when the function changes
    activation_table_free: tuple[str, ...] = ("copy", "identity", "square")  # 7 [U] never reload

    # --- GpSimdE: overhead + rate x N cycles
    gpsimd_processors: int = 8  # 8 [D] of 16 partitions each
    gpsimd_overhead_cycles: int = 150  # 8 [D]
    gpsimd_one_input: float = 1.0  # 8 [D] iota, affine_select
    gpsimd_copy: float = 1.0  # 8 [U] tensor_copy, memset
    gpsimd_two_inputs: float = 2.0  # 8 [U] tensor_tensor int32 or power, tensor_scalar
    gpsimd_rsqrt_factor: float = 4.0  # 8 [D] slower than ScalarE
    gpsimd_partition_reduce: float = 16.0  # 8 [U] tensor_partition_reduce
    gpsimd_gather: float = 4.0  # 8 [U] nc_n_gather, sequence_bounds, nonzero_with_count
    gpsimd_topk: float = 4.0  # 8 [D] 4n + K
    local_gather_latency: int = 28  # 8 [U] C = ((28 + t*e)/(t*e)) / min(4/dtype_size, e)
    local_gather_threads: int = 4  # 8 [U] t of the line above

    # --- DMA: engines and bandwidth
    dma_engines: int = 16  # 9.1 [D] per core
    dma_queues: int = 16  # 9.1 [D] per engine
    dma_priorities: int = each(1, 1, 4)  # 1 [D] QoS classes; 1: plain round robin
    dma_peak_gbs: float = each(272.0, 368.0, 528.0)  # 9.2 [D] all engines of the core, practical
    dma_profiler_gbs: float = each(435.0, 435.0, 614.0)  # 9.2 [D] 16 x theory: the profiler's denominator
    dma_descriptor_ns: float = each(21.0, 7.0)  # 9.2 [T] one descriptor on one engine: this ...
    # trn1: streams of 270 to 275 GB/s, and 160 GB/s in runs of 512 B (kiln's notes). trn2: mean packets of
    # eight traces (kernel-fusion reports) and the packet times of the optimisation guide. trn3: that of the
    # bandwidth guide, as no transfer is published; it says 17 and 23 for trn1 and trn2.
    dma_bytes_per_ns: float = each(17.1, 23.9, 33.0)  # 9.2 [T] ... + bytes / this
    dma_min_descriptor_ns: float = 8.0  # 9.2 [T] 4 bytes: 7 to 9 ns in the traces
    dma_semaphore_ns: float = 7.0  # 9.2 [S] the 4-byte completion descriptor
    dma_efficient_bytes: int = 2 * KIB  # 9.5 [D] advised per partition, at least
    dma_saturating_bytes: int = 4 * KIB  # 9.5 [D] per partition

    # --- DMA: issue
    has_hwdge: bool = each(False, True)  # 1 [D] descriptors generated in hardware
    hwdge_units: int = each(0, 2)  # 1 [D]
    hwdge_ns: float = 575.0  # 9.3 [T] sequencer and unit held per dma instruction: 562 to 606 in the traces
    swdge_instruction_ns: float = 8.0  # 9.3 [S] GpSimdE held per trigger (31 in [T])
    swdge_spacing_ns: float = 600.0  # 9.3 [X] between consecutive triggers
    # 1 us: offset, address and trigger on GpSimdE's sequencer (kiln's notes); 15 ns per row of a gather,
    # and 13 for rows of 256 B at 20 GB/s
    dma_address_ns: float = 1000.0  # 9.3 [T] trigger held, at least, where the address is read at run time
    swdge_descriptor_ns: float = 14.0  # 9.3 [T] and per row of a gather or scatter
    # stores of eight traces are triggered 1,192 to 1,359 ns after the instruction they wait for
    swdge_wait_ns: float = each(0.0, 1150.0)  # 9.3 [T] until software begins with a store it has waited for
    static_trigger_ns: float = 60.0  # 9.3 [U] sequencer held per static DMA
    dma_default_mode: str = each("static", "software")  # 9.3 [U] what dge_mode.unknown means

    # --- DMA: latency
    dma_dispatch_load_ns: float = each(1300.0, 750.0)  # 9.4 [T] trigger to first byte, HBM to SBUF
    dma_dispatch_store_ns: float = each(1300.0, 570.0)  # 9.4 [T] SBUF to HBM
    dma_skew_ns: float = 22.0  # 9.4 [X] engine k starts k times this later; two pictures give 19 and 25
    dma_notify_load_ns: float = each(300.0, 310.0)  # 9.4 [T] last byte to consumer
    dma_notify_store_ns: float = each(300.0, 360.0)  # 9.4 [T]

    # --- DMA: what the compiler does ahead. How far is not published; the DMA time of AWS's blocked matmul,
    # which overflows SBUF, asks for 48 us for what it had no room for.
    fetch_ahead_ns: float = 24_000.0  # 15 [U] a tile is loaded at most this long before its use ...
    refetch_ahead_ns: float = 48_000.0  # 15 [U] ... and this long, where SBUF had no room for it

    # --- DMA: special transfers
    dma_transpose_hbm_fraction: float = each(0.0, 0.9)  # 9.5 [D] of a copy's; 0: descriptors per element
    dma_transpose_sbuf_fraction: float = each(0.0, 0.5)  # 9.5 [D] SBUF to SBUF
    dma_transpose_partitions: int = 128  # 9.5 [D] full speed at multiples of these partitions ...
    dma_transpose_free: int = 16  # 9.5 [D] ... and free elements
    hwdge_transpose_rows: int = 16  # 9.5 [D] src.shape[0] of a 2-D hardware-DGE transpose
    hwdge_transpose_columns: int = 128  # 9.5 [D] its last dimension, at most
    dma_compute_fraction: float = each(0.5, 0.5, 1.0)  # 9.5 [D] of copy throughput
    sendrecv_max_elements: int = 256  # 9.5 [D] per partition, GpSimd DMA (1 KiB of 32-bit)
    gpsimd_dma_gbs: float = each(0.0, 153.0)  # 1 [D] per direction; 0: absent
    sendrecv_ns: float = 1000.0  # 9.5 [U] latency

    # --- sequencers, semaphores, control
    same_engine_gap_ns: float = each(30.0, 34.0)  # 10 [T] producer to consumer on one engine
    semaphore_ns: float = 40.0  # 10 [T] compute to compute across engines: 33 to 52 in the traces
    compute_to_dma_ns: float = 50.0  # 10 [U] compute done to DMA trigger
    semaphore_wait_ns: float = 9.0  # 10 [S] the wait instruction, once satisfied
    register_ns: float = 50.0  # 10 [U] scalar ALU, branch
    register_move_ns: float = 68.0  # 10 [T]
    register_load_ns: float = 680.0  # 10 [T] TENSOR_LOAD of one element: 520 to 1,070 in the traces
    # 64 iterations took 96 us longer than the same work written out (kiln's notes)
    dynamic_loop_ns: float = 1400.0  # 10 [T] rendezvous of the engines, per iteration
    # trn1: sums of two vectors take 19 to 34 us (students of CS149), of which 5 to 20 us are transfers. The
    # profile of the Mamba tutorial shows 22 us; a profiler adds about 8.
    kernel_overhead_ns: float = each(14_000.0, 9_400.0)  # 10 [T] fixed, per run on the device

    # --- the host: not part of the time of a run on the device (kiln's notes)
    launch_ms: float = each(0.137, 0.12)  # 10 [T] a null graph: 0.10 to 0.14 on trn1, 0.086 to 0.154 on trn2
    # 2.45, 3.76 and 5.10 ms at 8, 16 and 32 ranks; trn2: 1.04 to 2.97 ms at 4 to 64
    collective_launch_ms: tuple[float, float] = each((-1.54, 1.325), (0.06, 0.49))  # 11 [T] and per doubling

    # --- several cores
    core_barrier_ns: float = 1000.0  # 8 [U]
    collective_hop_ns: float = 1500.0  # 11 [U] the documents say 1-2 us
    # trn1: an all-reduce of 32 KB on one chip took 26 us (kiln's notes); trn2: the lower end of 1-2 us
    collective_chip_hop_ns: float = each(10_250.0, 1000.0)  # 11 [T] between ranks of one chip
    # chains of all-reduces over 32 ranks (kiln's notes): 32 to 128 KB 10 us each; 12 of 8, 16 and 32 MB 4.62,
    # 8.62 and 16.80 ms
    collective_start_ns: float = 2000.0  # 11 [T] once per collective
    collective_link_gbs: float = each(46.5, 100.0)  # 11 [T] per pair of ranks
    devices_per_node: int = 16  # 11 [U] chips that reach each other without a network
    internode_hop_ns: float = 15000.0  # 11 [D] point to point between nodes
    efa_gbs_per_core: float = 3.125  # 11 [D] 25 Gb/s per core, 50 Gb/s per rank of two

    # --- what dataclass would write out for each of the fields, in a tenth of the time of `import nki`
    def __init__(self, **values: Any):
        known = self.__dict__
        for field in fields(self):
            known[field.name] = values.pop(field.name, field.default)
        missing = [name for name, value in known.items() if isinstance(value, PerGeneration)]
        if missing or values:
            raise TypeError(f"Machine: missing {missing}, unknown {sorted(values)}")

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Machine) and self.__dict__ == other.__dict__)

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        return f"<Machine {self.name}>"

    # --- derived
    @property
    def sbuf_size_bytes(self) -> int:
        """The whole SBUF, all partitions."""
        return self.partitions * self.sbuf_bytes

    @property
    def psum_size_bytes(self) -> int:
        """The whole PSUM, all partitions."""
        return self.partitions * self.psum_bytes

    @property
    def psum_bank_fp32(self) -> int:
        """float32 elements of one PSUM bank in one partition."""
        return self.psum_bank_bytes // 4

    @property
    def dma_partitions_per_engine(self) -> int:
        """Engine e moves partitions 8e to 8e+7 (9.1)."""
        return self.partitions // self.dma_engines

    def peak_flops(self, multiplier: float = 1) -> float:
        """FLOP/s of the array: bf16 by default, else times one of the `_multiplier` fields (2)."""
        return 2 * self.partitions * self.matmul_stationary_max * self.tensor_ghz * 1e9 * multiplier

    @property
    def assumptions(self) -> dict[str, str]:
        """The fields that are assumed on this machine, each with the reason."""
        return {field: ASSUMPTIONS[field] for field in sorted(self.assumed)}
