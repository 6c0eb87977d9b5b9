"""Every published figure that we may show, with the kernel it was published for.

`use` is how the model uses the figure: `fitted` where a constant was fitted on it, `read` where a rule was
read from it, `same source` where rules were read from other rows of its source, `never used` where it only
checks the model.
"""

import sys
from pathlib import Path

from . import experiments, kernel_fusion, kiln, mamba
from .case import Case
from .experiments import length, packets, spacing, spec, tensor_rate

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "matmul"))


def total_ms(p):
    return p.total_us / 1e3


def active(engine):
    return lambda p: p.timeline.active_percent(engine)


def active_us(engine):
    return lambda p: p.timeline.active_ns(engine) / 1e3


def packet_ms(p):
    return p.timeline.packet_ns / 1e6


def mfu(p):
    return p.timeline.mfu_percent


GUIDE = "kernel optimisation guide"
FIVE_STEPS = {  # total ms, active % of DMA, TensorE, VectorE, MFU %, packet ms
    "tiled": (39.89, 99.93, 87.28, None, 17.52, 519.6),
    "hoisted": (28.20, 99.73, 99.85, None, 24.79, 402.1),
    "blocked_mn": (28.41, 95.70, 99.52, None, 24.60, 390.7),
    "blocked_mnk": (28.30, 21.54, 99.50, 10.55, 24.70, 81.7),
}
READ = (
    ("total", "ms", total_ms),
    ("DMA active", "%", active("dma")),
    ("TensorE active", "%", active("tensor")),
    ("VectorE active", "%", active("vector")),
    ("MFU", "%", mfu),
    ("DMA packet time", "ms", packet_ms),
)


def five_steps():
    import kernels

    arguments = (spec(8192, 4096, dtype="float32"), spec(8192, 8192, dtype="float32"))
    for name, values in FIVE_STEPS.items():
        figures = tuple(
            (n, u, v, read) for (n, u, read), v in zip(READ, values, strict=True) if v is not None
        )
        title = f"matmul 4096x8192x8192 fp32, {name}"
        yield Case(
            title,
            GUIDE,
            "fitted",
            "trn2",
            getattr(kernels, name),
            arguments,
            figures,
            long=True,
            family="matmul guide",
        )


TUTORIAL = "fused Mamba tutorial"
PROFILER_US = 8  # what a profiler adds to a run, in the traces of attention


def profiled_us(p):
    return p.total_us + PROFILER_US


def mambas():
    rows = [  # version, channels, length, total us, VectorE active us, use
        ("v1", 256, 512, 172.93, 148.99, "read"),
        ("v1", 4096, 512, 2340, 2120, "read"),
        ("v2", 4096, 512, 1610, 1570, "read"),
        ("v2", 4096, 2048, 8900, None, "same source"),
        ("v2", 4096, 8192, 53330, 31320, "read"),
        ("v3", 4096, 1024, 3300, None, "same source"),
        ("v3", 4096, 2048, 6600, None, "same source"),
        ("v3", 4096, 4096, 13300, None, "same source"),
        ("v3", 4096, 8192, 27800, 26260, "same source"),
    ]
    for version, channels, columns, total, vector, use in rows:
        figures = [("total", "us", total, profiled_us)]
        if vector is not None:
            figures.append(("VectorE active", "us", vector, active_us("vector")))
        kernel = getattr(mamba, f"mamba_{version}")
        title = f"Mamba {version}, {channels} channels x {columns}, fp32"
        arguments = tuple(mamba.specs(channels, columns))
        yield Case(
            title, TUTORIAL, use, "trn1", kernel, arguments, tuple(figures), channels == 256, columns > 512,
            family="Mamba tutorial",
            only=("repeats",),  # all that is known of this older compiler: its profiles show loads again
        )  # fmt: skip


def instructions():
    yield Case(
        "exp of 4,096 elements", "DMA overview", "read", "trn2", experiments.exponential(4096), (),
        (("instruction", "ns", 3710, length("activation")),), True,
    )  # fmt: skip
    yield Case(
        "exp of 128 elements", "DMA overview", "read", "trn2", experiments.exponential(128), (),
        (("instruction", "ns", 405, length("activation")),), True,
    )  # fmt: skip
    yield Case(
        "add of 512 fp32, PSUM and SBUF", GUIDE, "read", "trn2", experiments.add_of_psum_and_sbuf, (),
        (("instruction", "ns", 690, length("tensor_tensor")),), True,
    )  # fmt: skip
    yield Case(
        "16,384 bf16 elements", "rmsnorm-quant design", "never used", "trn2", experiments.wide, (),
        (
            ("tensor_reduce", "ns", 17_200, length("tensor_reduce")),
            ("tensor_scalar to fp8", "ns", 8_800, length("tensor_scalar")),
            ("activation_reduce", "ns", 15_200, length("activation_reduce")),
        ), True,
    )  # fmt: skip
    yield Case(
        "load of 4x4096 bf16", "DMA overview", "read", "trn2", experiments.load, (spec(4, 4096),),
        (("its one DMA engine", "ns", 1416, packets),), True,
    )  # fmt: skip
    yield Case(
        "load of 128x128 bf16", "DMA overview", "read", "trn2", experiments.load, (spec(128, 128),),
        (("transfer", "ns", 468, length("dma_copy")),), True,
    )  # fmt: skip
    yield Case(
        "dependent activations of one element", "performance guide", "read", "trn1", experiments.chain, (),
        (("spacing", "ns", 189, spacing("activation")),), True,
    )  # fmt: skip
    yield Case(
        "2,048 resident bf16 matmuls", "profiling notes", "read", "trn2", experiments.resident, (),
        (("rate", "TFLOP/s", 77.2, tensor_rate),), True,
    )  # fmt: skip
    yield Case(
        "the same in four groups, three of them small", "profiling notes", "read", "trn2",
        experiments.mixture, (), (("rate", "TFLOP/s", 30.8, tensor_rate),), True,
    )  # fmt: skip


def cases(public: Path | None = None) -> list[Case]:
    """Return all cases; of kernels that are not ours, those of the checkouts in the folder `public`."""
    others = [] if public is None else [*kernel_fusion.cases(public), *kiln.cases(public)]
    return [*instructions(), *mambas(), *five_steps(), *others]
