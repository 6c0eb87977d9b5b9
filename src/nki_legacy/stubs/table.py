"""Which names of other vendors' packages have a stub, and which module it is ("": an empty package)."""

from __future__ import annotations

from .finder import UNBUILT, Resolve

_OLD = "nki_legacy.old_api"
_OURS = "nki_legacy.stubs"

TABLE: dict[str, dict[str, str]] = {
    "neuronxcc": {
        "neuronxcc.nki": _OLD,
        "neuronxcc.nki.language": f"{_OLD}.language",
        "neuronxcc.nki.language.constants": f"{_OLD}.types",
        "neuronxcc.nki.isa": f"{_OLD}.isa",
        "neuronxcc.nki.isa.constants": f"{_OLD}.constants",
        "neuronxcc.nki.typing": f"{_OLD}.typing",
        "neuronxcc.nki.compiler": f"{_OLD}.compiler",
        "neuronxcc.nki.kernels": f"{_OURS}.old_kernels",
        "neuronxcc.nki.kernels.attention": f"{_OURS}.old_kernels",
        "neuronxcc.nki.kernels.vision": f"{_OURS}.old_kernels",
        "neuronxcc.nki._private_kernels": "",
        "neuronxcc.nki._private_kernels.attention": f"{_OURS}.old_kernels",
        "neuronxcc.nki._private_kernels.mlp": f"{_OURS}.old_kernels",
        "neuronxcc.nki._private_kernels.qkv": f"{_OURS}.old_kernels",
        "neuronxcc.nki._pre_prod_kernels": "",
        "neuronxcc.nki._private": "",
        "neuronxcc.nki._private.private_api": f"{_OURS}.old_kernels",
        "neuronxcc.nki.nccl": f"{_OURS}.old_kernels",
        "neuronxcc.starfish": "",
        "neuronxcc.starfish.support": "",
        "neuronxcc.starfish.support.dtype": f"{_OURS}.starfish",
        "neuronxcc.starfish.support.util": f"{_OURS}.starfish",
    },
    "torch_xla": {
        "torch_xla": f"{_OURS}.torch_xla",
        "torch_xla.core": "",
        "torch_xla.core.xla_model": f"{_OURS}.xla_model",
        "torch_xla.runtime": f"{_OURS}.xla_runtime",
        "torch_xla.debug": "",
        "torch_xla.debug.metrics": f"{_OURS}.xla_runtime",
        "torch_xla.debug.profiler": f"{_OURS}.xla_runtime",
        "torch_xla.distributed": "",
        "torch_xla.distributed.xla_backend": f"{_OURS}.xla_backend",
        "torch_xla.distributed.parallel_loader": f"{_OURS}.xla_runtime",
        "torch_xla.distributed.xla_multiprocessing": f"{_OURS}.xla_runtime",
        "torch_xla.utils": "",
        "torch_xla.utils.checkpoint": f"{_OURS}.xla_utils",
        "torch_xla.utils.serialization": f"{_OURS}.xla_utils",
        "torch_xla.experimental": "",
        "torch_xla.experimental.pjrt_backend": f"{_OURS}.xla_backend",
    },
    "torch_neuronx": {
        "torch_neuronx": f"{_OURS}.torch_neuronx",
        "torch_neuronx.utils": f"{_OURS}.torch_neuronx",
        "torch_neuronx.testing": f"{_OURS}.torch_neuronx",
        "torch_neuronx.xla_impl": "",
        "torch_neuronx.xla_impl.ops": f"{_OURS}.torch_neuronx",
        "torch_neuronx.nki_hop": f"{_OURS}.torch_neuronx",
        "torch_neuronx.profiling": f"{_OURS}.profiling",
        "torch_neuronx.experimental": "",
        "torch_neuronx.experimental.profiler": f"{_OURS}.profiler",
    },
    "neuronx_distributed": {
        "neuronx_distributed.operators": "",
        "neuronx_distributed.operators.argmax": f"{_OURS}.distributed",
        "neuronx_distributed.operators.topk": f"{_OURS}.distributed",
        "neuronx_distributed.parallel_layers": "",
        "neuronx_distributed.parallel_layers.layers": f"{_OURS}.distributed",
        "neuronx_distributed.parallel_layers.parallel_state": f"{_OURS}.distributed",
        "neuronx_distributed.parallel_layers.mappings": f"{_OURS}.distributed",
        "neuronx_distributed.utils": f"{_OURS}.distributed",
        "neuronx_distributed.utils.utils": f"{_OURS}.distributed",
    },
    "libneuronxla": {"libneuronxla": f"{_OURS}.libneuronxla"},
    "jax_neuronx": {"jax_neuronx": f"{_OURS}.jax_neuronx"},
}


def _table(root: str) -> Resolve:
    return {root: "", **TABLE[root]}.get


def _library(root: str) -> Resolve:
    """`root.nkilib.x` is `nkilib.x`: the import roots of older releases of the library."""

    def resolve(fullname: str) -> str | None:
        if fullname == root:
            return ""
        below = fullname.removeprefix(f"{root}.")
        return below if below.partition(".")[0] == "nkilib" else None

    return resolve


def _unbuilt(fullname: str) -> str:
    return UNBUILT


ROOTS: dict[str, Resolve] = {
    **{root: _table(root) for root in TABLE},
    "neuronx_distributed_inference": _unbuilt,
    **{root: _library(root) for root in ("nkilib_src", "nkilib_standalone")},
}
