"""The single facts that others measured on devices, each beside what a small kernel of ours gives.

A fact has figures (device low, device high, ours) or, where the model has no such thing, the reason. `read`
says that a rule or a number of the model was read from this fact; then the row shows that the rule is built,
and proves no more.
"""

from collections.abc import Callable
from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import find
from nki.timing.links import launch_ms

from . import micro_kernels as micro
from . import micro_programs as programs
from .refusals import refusals

HW, SW = nisa.dge_mode.hwdge, nisa.dge_mode.swdge
KILN, TRACES, STUDY = "kiln's notes", "kernel-fusion traces", "study of attention kernels"


class Figure(NamedTuple):
    """A measured figure, and how ours is found; `high` is 0 where the source gives one number."""

    what: str
    unit: str
    low: float
    high: float
    ours: Callable[[], float]

    def ratio(self, ours: float) -> float:
        """Return ours against the nearest end of what was measured; 1 within it."""
        high = self.high or self.low
        return ours / self.low if ours < self.low else ours / high if ours > high else 1.0


class Fact(NamedTuple):
    """Something measured on a device: figures of it, and why the model has none or misses one."""

    id: str
    target: str
    source: str
    use: str  # "read", or "never used"
    figures: tuple[Figure, ...] = ()
    left_out: str = ""

    def ratios(self) -> list[float]:
        return [figure.ratio(figure.ours()) for figure in self.figures]


WITHIN = 1.10


def is_within(fact: Fact) -> bool:
    """Return True when every figure of a fact is within 10 %."""
    return bool(fact.figures) and all(1 / WITHIN <= ratio <= WITHIN for ratio in fact.ratios())


def table() -> str:
    """Return the facts as a table, and how many the model reproduces."""
    lines = ["| fact | what | device | ours | ratio | platform | use | source |", "|---" * 8 + "|"]
    for fact in FACTS:
        end = f"{fact.target} | {fact.use} | {fact.source} |"
        for what, unit, low, high, ours in fact.figures:
            value = ours()
            ratio = Figure(what, unit, low, high, ours).ratio(value)
            device = f"{low:g} to {high:g} {unit}" if high > low else f"{low:g} {unit}"
            lines.append(f"| {fact.id} | {what} | {device} | {value:,.4g} {unit} | {ratio:.2f} | {end}")
        if not fact.figures:
            lines.append(f"| {fact.id} | {fact.left_out} | | | | {end}")
    good = [fact.id for fact in FACTS if is_within(fact)]
    missed = [f"{fact.id}: {fact.left_out}." for fact in FACTS if fact.figures and fact.id not in good]
    count = f"Of {len(FACTS)} facts {len(good)} are reproduced within 10 % in every figure."
    return "\n".join(
        [*lines, "", count, *(["Not so:", "", *(f"- {text}" for text in missed)] if missed else []), ""]
    )


def packets():
    sizes = {4096: (171, 224), 2048: (89.5, 92.4), 512: (26.7, 28.2), 256: (16.6, 16.9), 4: (7, 9)}
    for size, (low, high) in sizes.items():
        yield Figure(f"packet of {size} B, mean", "ns", low, high, lambda size=size: micro.packet_ns(size))


def matmul_intervals():
    made = []
    for name, dtype, columns, half, full in (
        ("bf16", nl.bfloat16, 512, (427, 427), (215, 218)), ("bf16", nl.bfloat16, 128, (106, 107), (55, 56)),
        ("fp32", nl.float32, 512, (853, 853), (428, 429)), ("fp32", nl.float32, 128, (213, 213), (109, 112)),
    ):  # fmt: skip
        for clock, bounds, at in (("half", half, 2), ("full", full, -1)):
            ours = lambda d=dtype, n=columns, at=at: micro.matmul_ns(n, d, at)  # noqa: E731
            made.append(Figure(f"MATMUL of {columns} {name}, {clock} clock", "ns", *bounds, ours))
    return made


def launches():
    for target, rows in (
        ("trn1", {8: 2.45, 16: 3.76, 32: 5.10}), ("trn2", {4: 1.04, 8: 1.49, 16: 1.98, 32: 2.54, 64: 2.97}),
    ):  # fmt: skip
        for ranks, ms in rows.items():
            ours = lambda t=target, n=ranks: launch_ms(find(t), n)  # noqa: E731
            yield Figure(f"execution with a collective, {ranks} ranks, {target}", "ms", ms, 0, ours)
    yield Figure("2 ranks of one chip", "ms", 0.15, 0, lambda: launch_ms(find("trn1"), 2))


def dequantizing():
    rows = {"two SBUF operands": 8.50, "tensor_scalar": 5.84, "one operand in PSUM": 3.74, "activation": 4.43}
    for way, us in {**rows, "both": 2.69}.items():
        yield Figure(f"[128, 4096], {way}", "us", us, 0, lambda way=way: micro.dequantize_us(way))


def all_reduces():
    for mb, ms in ((8, 4.62), (16, 8.62), (32, 16.80)):
        ours = lambda mb=mb: 12 * programs.all_reduce_us(32, 64 * mb, 8192) / 1e3  # noqa: E731
        yield Figure(f"12 all-reduces of {mb} MB, 32 ranks", "ms", ms, 0, ours)


def bar(kernel, name, target="trn2"):
    return lambda: micro.bar_ns(kernel, name, target)


def by_column(kernel, name):
    """Return how much longer an instruction takes with a column than with a number."""
    return lambda: micro.bar_ns(kernel(4096, True), name) / micro.bar_ns(kernel(4096, False), name)


def of(name, target="trn2"):
    return lambda: getattr(find(target), name)


# fmt: off
FACTS = (
    Fact("B01", "trn2", STUDY, "never used", (),
         "the model is of a run without a profiler: recording descriptors costs nothing"),
    Fact("B02", "trn2", STUDY, "never used", (
        Figure("spacing of software triggers", "ns", 582, 598, lambda: micro.trigger_ns(SW)),
        Figure("smallest attention, software", "us", 16, 18, lambda: programs.attention_us(SW)),
        Figure("smallest attention, hardware", "us", 14, 15, lambda: programs.attention_us(HW))),
        "in the traces hardware descriptors come 0.6 us later, in the study the kernel is 1.7 us faster"),
    Fact("B03", "trn2", STUDY, "read", (
        Figure("hardware trigger", "ns", 600, 0, lambda: micro.trigger_ns(HW)),)),
    Fact("B04", "trn2", STUDY, "never used", (
        Figure("smallest attention", "us", 15, 18, programs.attention_us),
        Figure("the same on both cores", "us", 19.3, 0, lambda: programs.attention_us(lnc=2)))),
    Fact("B05", "trn2", TRACES, "read", (
        Figure("hardware trigger", "ns", 517, 572, lambda: micro.trigger_ns(HW)),)),
    Fact("B06", "trn2", TRACES, "read", tuple(packets())),
    Fact("B07", "trn2", TRACES, "read", (
        Figure("first full clock after the first matmul", "us", 3.6, 6.6, micro.first_full_rate_us),)),
    Fact("B08", "trn2", TRACES, "never used", (*matmul_intervals(),
        Figure("a bar beyond its interval", "ns", 163, 203, lambda: micro.bar_beyond_interval(512, -1)))),
    Fact("B09", "trn2", TRACES, "never used", (),
         "loading weights is not a bar of its own: it runs behind the matmul before it, as B08 shows"),
    Fact("B10", "trn2", TRACES, "never used", (
        Figure("ScalarE copy of 512", "ns", 584, 591, bar(micro.copy(nisa.engine.scalar), "tensor_copy")),
        Figure("exp of 512 in SBUF", "ns", 704, 720, bar(micro.exponential(nl.sbuf), "activation")),
        Figure("exp of 512 in PSUM", "ns", 673, 729, bar(micro.exponential(nl.psum), "activation")))),
    Fact("B11", "trn2", TRACES, "read", (
        Figure("VectorE copy of 512", "ns", 680, 691, bar(micro.copy(nisa.engine.vector), "tensor_copy")),
        Figure("maximum of 512", "ns", 674, 687, bar(micro.maximum, "tensor_reduce")),
        Figure("512 times a column", "ns", 481, 0, bar(micro.scaled(512, True), "tensor_scalar")),
        Figure("128 times a column", "ns", 342, 353, bar(micro.scaled(128, True), "tensor_scalar")))),
    Fact("B12", "trn2", TRACES, "read", (
        Figure("register load", "ns", 520, 1070, of("register_load_ns")),
        Figure("from a result to another engine", "ns", 33, 52, of("semaphore_ns")))),
    Fact("B13", "trn2", TRACES, "never used", (
        Figure("prologue, less 6.7 us of profiling", "us", 10.3, 13.3, programs.first_matmul_us),)),
    Fact("B14", "trn2", TRACES, "never used", (
        Figure("HBM bandwidth", "GB/s", 716, 0, of("hbm_gbs")),
        Figure("DMA bandwidth", "GB/s", 435, 0, of("dma_profiler_gbs")),
        Figure("PE clock", "GHz", 2.4, 0, of("tensor_ghz")),
        Figure("other clocks", "GHz", 1.2, 0, of("scalar_ghz")))),
    Fact("B17", "trn2", "nki-autotune", "never used", (),
         "how to read a counter of the profiler, which the model does not have"),
    Fact("B19", "trn2", "nki-autotune", "never used", (
        Figure("tensor_scalar, column against number", "x", 1, 0, by_column(micro.scaled, "tensor_scalar")),
        Figure("activation, column against number", "x", 1, 0, by_column(micro.activated, "activation")))),
    Fact("B21", "trn1", "pantheonneuron", "never used", (
        Figure("8192^3 in bf16", "TFLOP/s", 78.6, 0,
               lambda: 2 * 128**2 * 512e-3 / micro.matmul_ns(512, target="trn1")),),
        "seconds of load lower the limit of power to 0.77 on trn1, 0.56 on inf2; the model is of one launch"),
    Fact("B22", "trn1", "pantheonneuron", "read", (
        Figure("stream of loads", "GB/s", 273, 0, lambda: micro.gbs(16384, "trn1")),
        Figure("stream of stores", "GB/s", 275, 0, lambda: micro.gbs(16384, "trn1", out=True)))),
    Fact("B23", "trn1", KILN, "read", (
        Figure("stream of loads", "GB/s", 270, 272, lambda: micro.gbs(16384, "trn1")),
        Figure("in runs of 512 B", "GB/s", 160, 0, lambda: micro.gbs(512, "trn1", count=64)))),
    Fact("B30", "trn1", "pantheonneuron", "never used", (),
         "whole kernels of the old API, which the compiler transforms; no single instruction shows it"),
    Fact("B31", "trn1", KILN, "read", (
        Figure("tensor_tensor of 512, one in PSUM", "ns", 620, 0,
               bar(micro.sum_with_psum, "tensor_tensor", "trn1")),)),
    Fact("B32", "trn1", KILN, "read", tuple(dequantizing())),
    Fact("B33", "trn1", KILN, "read", (
        Figure("TensorE waits for VectorE's slot of a ring", "%", 48.7, 0, micro.ring_waits),)),
    Fact("B34", "trn1", KILN, "read", (
        Figure("load with an address of the run", "us", 1, 0, lambda: micro.addressed_us(4, False)),)),
    Fact("B35", "trn1", KILN, "read", (
        Figure("gather, per row", "ns", 15, 0, lambda: micro.addressed_us(256, True) / 0.128),
        Figure("rows of 256 B", "GB/s", 20, 0, lambda: 0.128 * 256 / micro.addressed_us(256, True)),
        Figure("rows of 2 KB", "GB/s", 95, 99, lambda: 0.128 * 2048 / micro.addressed_us(2048, True))),
        "rows of 2 KB were measured within a larger kernel; those of 8 KB alone (B37) agree"),
    Fact("B36", "trn1", KILN, "never used", (
        Figure("256 loads of [128, 6528 B] and the launch", "ms", 0.98, 0,
               lambda: 0.256 * micro.addressed_us(6528, False) + launch_ms(find("trn1"), 1)),)),
    Fact("B37", "trn1", KILN, "never used", (
        Figure("gather of 128 rows of 8 KB", "us", 4.01, 0, lambda: micro.addressed_us(8192, True)),
        Figure("load of a block of [128, 6400 B]", "us", 3.05, 0, lambda: micro.addressed_us(6400, False))),
        "1.8 MB in 2.2 us would be three times B22: the probe reads one of eight parts, the others are dead"),
    Fact("B38", "trn1", KILN, "read", (
        Figure("iteration of a dynamic loop", "us", 1.4, 1.5, programs.loop_us),)),
    Fact("B39", "trn1, trn2", KILN, "read", (
        Figure("null graph, trn1", "ms", 0.10, 0.14, lambda: launch_ms(find("trn1"), 1)),
        Figure("null graph, trn2", "ms", 0.086, 0.154, lambda: launch_ms(find("trn2"), 1)))),
    Fact("B40", "trn1, trn2", KILN, "read", tuple(launches())),
    Fact("B41", "trn1", KILN, "read", (
        Figure("one of a chain, 32 ranks", "us", 10, 0, lambda: programs.all_reduce_us(32, 8, 4096)),
        Figure("the same on one chip, 2 ranks", "us", 26, 0, lambda: programs.all_reduce_us(2, 4, 4096)))),
    Fact("B42", "trn1", KILN, "read", tuple(all_reduces())),
    Fact("B43", "trn1", KILN, "never used", (),
         "what XLA schedules around its own collectives; those of a kernel are free to overlap"),
    Fact("B44", "trn2", KILN, "never used", (
        Figure("split over two cores against done twice", "x", 1.81, 1.94,
               lambda: programs.divided_us(False) / programs.divided_us(True)),)),
    Fact("B45", "trn1", "kiln, pantheonneuron", "never used", (
        Figure("things that trn1 lacks, reported", "of 5", 5, 0, refusals),)),
    Fact("B46", "trn1", KILN, "never used", (
        Figure("float32 matmul against bf16", "x", 4, 0, lambda:
               micro.matmul_ns(512, nl.float32, target="trn1") / micro.matmul_ns(512, target="trn1")),)),
    Fact("B47", "trn1", KILN, "never used", (),
         "72 matmuls take 4.4 us here and 7.4 there, each with its weights; B08 shows them hidden on trn2"),
    Fact("B48", "inf2", STUDY, "read", (
        Figure("a matmul of 128 columns", "ns", 186, 0, bar(micro.stream(128), "nc_matmul", "trn1")),
        Figure("a small VectorE instruction", "ns", 161, 0,
               bar(micro.scaled(32, False), "tensor_scalar", "trn1")))),
    Fact("B49", "trn2, trn3", "nki-moe-megakernel", "never used", (),
         "shapes and number of the transfers are not published"),
    Fact("B50", "trn2", STUDY, "never used", (
        Figure("chunks of 8 tiles against 16", "x", 1, 1.2, lambda: programs.rotations(8, 16)),
        Figure("chunks of 32 tiles against 16", "x", 1, 1.2, lambda: programs.rotations(32, 16)),
    ), "of what size is not published; here the optimum is flat"),
)
# fmt: on
