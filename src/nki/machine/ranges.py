"""How far each assumed number of a machine may be off.

A range is a pair: the least and the most that the sources leave possible, as numbers, as `Times` of the value
used, or as the two things a switch can be. Where a source gives a second figure the range reaches it, and the
comment names it; where there is none, half and double stand for "unknown", a fifth for "measured on
another generation".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .machine import Machine


class Times(NamedTuple):
    """A range in multiples of the value used."""

    low: float
    high: float


UNKNOWN = Times(0.5, 2.0)  # nothing is published
CARRIED = Times(0.8, 1.25)  # measured on another generation

RANGES: dict[str, Any] = {
    "accumulator_read_ns": CARRIED,
    "activation_table_free": ((), ("copy", "identity", "square")),
    "activation_table_ns": CARRIED,
    "collective_chip_hop_ns": (500.0, 2000.0),  # within a chip at most what the documents say between chips
    "collective_hop_ns": (1000.0, 2000.0),  # the documents say 1-2 us
    "collective_link_gbs": UNKNOWN,
    "collective_start_ns": UNKNOWN,
    "compute_to_dma_ns": (30.0, 880.0),  # two AWS profiles
    "core_barrier_ns": UNKNOWN,
    "dma_address_ns": CARRIED,
    "dma_bytes_per_ns": CARRIED,
    "dma_default_mode": ("software", "hardware"),
    "dma_descriptor_ns": Times(0.8, 3.0),  # trn3: as trn2, or as trn1
    "dma_dispatch_load_ns": CARRIED,
    "dma_dispatch_store_ns": CARRIED,
    "dma_ghz": CARRIED,
    "dma_min_descriptor_ns": (7.0, 9.0),  # as seen on trn2
    "dma_notify_load_ns": CARRIED,
    "dma_notify_store_ns": CARRIED,
    "dma_profiler_gbs": CARRIED,
    "dma_semaphore_ns": CARRIED,
    "dma_skew_ns": (19.0, 25.0),  # two pictures
    "devices_per_node": (1, 64),
    "double_row_multiplier": (1.0, 2.0),
    "dynamic_loop_ns": CARRIED,
    "fetch_ahead_ns": (8_000.0, 48_000.0),
    "fix_accumulator_read_ns": CARRIED,
    "fix_activation_ns": CARRIED,
    "fix_activation_psum_ns": CARRIED,
    "fix_gpsimd_ns": CARRIED,
    "fix_memset_ns": CARRIED,
    "fix_scalar_copy_ns": CARRIED,
    "fix_scalar_psum_copy_ns": CARRIED,
    "fix_tensor_ns": CARRIED,
    "fix_vector_ns": Times(1.0, 2.4),  # trn1: bars of a Mamba profile (v2, 8K) are 310 ns beyond the work
    "fp32_load_stationary_factor": UNKNOWN,
    "gpsimd_copy": UNKNOWN,
    "gpsimd_dma_gbs": CARRIED,
    "gpsimd_gather": UNKNOWN,
    "gpsimd_partition_reduce": UNKNOWN,
    "gpsimd_two_inputs": UNKNOWN,
    "half_rate_rule": (False, True),
    "half_rate_slowdown": (1.0, 2.0),
    "half_rate_threshold": (0.25, 0.75),
    "half_rate_window_ns": UNKNOWN,
    "hbm_gbs": (1175.0, 1225.0),  # trn3: 4.7 or 4.9 TB/s over four stacks
    "hwdge_ns": CARRIED,
    "kernel_overhead_ns": CARRIED,
    "local_gather_latency": UNKNOWN,
    "local_gather_threads": UNKNOWN,
    "matmul_after_load_ns": (0.0, 26.0),  # as seen on trn1
    "matmul_gap_cycles": CARRIED,
    "overlap_ns": CARRIED,
    "psum_bank_serial": (False, True),
    "refetch_ahead_ns": (24_000.0, 96_000.0),  # fitted on one kernel alone, AWS's blocked matmul
    "register_load_ns": (520.0, 1070.0),  # as seen on trn2
    "register_move_ns": CARRIED,
    "register_ns": UNKNOWN,
    "same_engine_gap_ns": CARRIED,
    "sbuf_partition_stride_bytes": CARRIED,
    "scalar_access_cycles": (0.0, 33.0),  # hidden, or as measured on trn1
    "scalar_activation": Times(0.5, 1.0),  # trn3: the wide path for all 16-bit activations
    "scalar_operand_ns": (0.0, 90.0),  # as measured on trn2
    "semaphore_ns": (33.0, 205.0),  # in the traces of trn2: latencies, and the longest instruction
    "semaphore_wait_ns": CARRIED,
    "sendrecv_ns": UNKNOWN,
    "shared_bus_stops_fast_modes": (False, True),
    "static_trigger_ns": UNKNOWN,
    "stride_full_rate_bytes": (16, 24),  # a ramp between steps of 16 and 24 was measured
    "stride_slowdown": (1.0, 2.0),
    "swdge_descriptor_ns": (13.0, 15.0),
    "swdge_instruction_ns": (8.0, 31.0),  # a picture, a measurement
    "swdge_spacing_ns": (538.0, 860.0),  # measurements, and the chart of throughput by size
    "swdge_wait_ns": (0.0, 1150.0),  # as measured on trn2
    "tensor_drain_ns": CARRIED,
    "transpose_issue_slots": (1, 2),
    "vector_access_cycles": (0.0, 44.0),  # hidden; trn2: a profile shows 44
    "vector_bn_aggr": CARRIED,
    "vector_bn_stats": CARRIED,
    "vector_copy_16bit_to_fp32": CARRIED,
    "vector_copy_fp32_to_16bit": CARRIED,
    "vector_cumulative": (1.0, 2.0),
    "vector_dropout": CARRIED,
    "vector_memset": CARRIED,
    "vector_operand_ns": (0.0, 125.0),  # as measured on trn2
    "vector_predicated": (1.0, 2.0),
    "vector_predicated_scalar": CARRIED,
    "vector_psum_fp32": CARRIED,
    "vector_reciprocal": (6.0, 8.0),  # measured, documented for trn1
    "vector_reduce_16bit": (0.5, 1.0),  # documented for trn1, measured
    "vector_rng": UNKNOWN,
    "vector_scalar_tensor_tensor": (1.0, 2.0),  # as tensor_tensor, or as documented for trn1
    "vector_scan_initial_ns": (0.0, 60.0),
    "vector_transpose_first_ns": CARRIED,
    "vector_transpose_next_ns": CARRIED,
}


def ends(machine: Machine, field: str) -> tuple[Any, Any]:
    """The least and the most that an assumed field of a machine may be."""
    value, bounds = getattr(machine, field), RANGES[field]
    if field == "dma_default_mode" and not machine.has_hwdge:
        return "static", "software"
    if isinstance(bounds, Times):
        return value * bounds.low, value * bounds.high
    return bounds
