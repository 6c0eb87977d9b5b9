"""Which names of other vendors' packages have a stand-in, and which module it is ("": an empty package)."""

from __future__ import annotations

_OLD = "nki.old_api"

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
}
