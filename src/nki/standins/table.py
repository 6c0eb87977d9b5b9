"""Which names of other vendors' packages have a stand-in, and which module it is ("": an empty package)."""

from __future__ import annotations

_OLD = "nki.old_api"
_OURS = "nki.standins"

TABLE: dict[str, dict[str, str]] = {
    "neuronxcc": {
        "neuronxcc.nki": _OLD,
        "neuronxcc.nki.language": f"{_OLD}.language",
        "neuronxcc.nki.language.constants": f"{_OLD}.types",
        "neuronxcc.nki.isa": f"{_OLD}.isa",
        "neuronxcc.nki.isa.constants": f"{_OLD}.constants",
        "neuronxcc.nki.typing": f"{_OLD}.typing",
        "neuronxcc.nki.compiler": f"{_OLD}.compiler",
        "neuronxcc.starfish": "",
        "neuronxcc.starfish.support": "",
        "neuronxcc.starfish.support.dtype": "nki.standins.starfish",
        "neuronxcc.starfish.support.util": "nki.standins.starfish",
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
        "torch_neuronx.experimental": "",
        "torch_neuronx.experimental.profiler": f"{_OURS}.profiler",
    },
    "neuronx_distributed": {
        "neuronx_distributed.parallel_layers": "",
        "neuronx_distributed.parallel_layers.layers": f"{_OURS}.distributed",
        "neuronx_distributed.parallel_layers.parallel_state": f"{_OURS}.distributed",
        "neuronx_distributed.parallel_layers.mappings": f"{_OURS}.distributed",
        "neuronx_distributed.utils": f"{_OURS}.distributed",
    },
    "libneuronxla": {},
    "jax_neuronx": {},
}
