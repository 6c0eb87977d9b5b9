"""The custom call that stands for a kernel in HLO text (spec/frameworks.md 4.3)."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import Counter
from typing import Any

import numpy as np

from ..ir.tree import leaves
from ..kernel.staged import Returned, Staged
from ..options import framework_debug
from ..version import __version__
from .programs import programs

TARGET = "AwsNeuronCustomNativeKernel"
API_VERSION = "API_VERSION_STATUS_RETURNING_UNIFIED"
PRIMITIVE = "nki_call"


def backend_config(staged: Staged, key: str, world: int = 0, site: int = 0) -> str:
    """What identifies the kernel in the call: base64 of a JSON object.

    `world`: as many devices call it together, `site` tells where; the last operand is then the rank.
    """
    outline = staged.outline
    names = [*outline.arguments, *(f"tmp.{i}" for i in range(len(outline.constants)))]
    returned = leaves(outline.result, Returned)
    record: dict[str, Any] = {
        "kernel_version": 1,
        "klir_binary": {
            "binary": f"open-nki:{key}",
            "input_names": names,
            "output_names": [f"{r.name or 'output'}.{i}" for i, r in enumerate(returned)],
        },
        "func_name": staged.kernel.__name__,
        "grid": list(staged.kernel.grid),
        "has_collectives": outline.has_collectives,
        "open_nki": {"version": __version__, "platform": staged.call.machine.name},
    }
    if world:
        record["open_nki"] |= {"world": world, "site": site}
    return base64.b64encode(json.dumps(record).encode()).decode()


def read_config(config: str | bytes) -> dict[str, Any]:
    """The JSON object of a backend_config."""
    return json.loads(base64.b64decode(config))


def program_key(config: str | bytes) -> str:
    """The key of the program that a backend_config names."""
    return read_config(config)["klir_binary"]["binary"].partition(":")[2]


# ---- HLO text without JAX ------------------------------------------------------------------------

_HLO = {
    "bool": "pred",
    "bfloat16": "bf16",
    "float8_e4m3": "f8e4m3",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2",
    "float8_e8m0fnu": "f8e8m0fnu",
}


def _hlo_type(shape: tuple[int, ...], dtype: np.dtype) -> str:
    kind = (
        _HLO.get(dtype.name)
        or f"{'f' if dtype.kind == 'f' else dtype.kind.replace('i', 's')}{dtype.itemsize * 8}"
    )
    order = ",".join(str(d) for d in reversed(range(len(shape))))
    return f"{kind}[{','.join(map(str, shape))}]{{{order}}}"


def hlo_text(staged: Staged) -> str:
    """An HLO module that does nothing but call the kernel."""
    key = programs.add(staged)
    kernel, outline = staged.kernel.__name__, staged.outline
    lines = []
    inputs = []
    for i, (name, spec) in enumerate(staged.described):
        from ..machine.dtypes import resolve

        inputs.append(f"%{name}")
        kind = _hlo_type(tuple(spec.shape), resolve(spec.dtype).storage)
        lines.append(f"  %{name} = {kind} parameter({i})")
    for i, constant in enumerate(outline.constants):
        inputs.append(f"%tmp.{i}")
        lines.append(f"  %tmp.{i} = {_hlo_type(constant.shape, constant.dtype)} constant({{...}})")
    types = [_hlo_type(r.shape, r.dtype.storage) for r in leaves(outline.result, Returned)]
    result = types[0] if len(types) == 1 else f"({', '.join(types)})"
    lines.append(
        f"  ROOT %{PRIMITIVE} = {result} custom-call({', '.join(inputs)}), "
        f'custom_call_target="{TARGET}", api_version={API_VERSION}, '
        f'metadata={{op_name="{kernel}/{PRIMITIVE}"}}, backend_config="{backend_config(staged, key)}"'
    )
    return "\n".join([f"HloModule {kernel}", "", "ENTRY %main {", *lines, "}", ""])


# ---- NEURON_FRAMEWORK_DEBUG ----------------------------------------------------------------------


class DebugDumps:
    """With NEURON_FRAMEWORK_DEBUG=1, writes each new program and its HLO into the working directory."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.numbers: Counter[str] = Counter()

    def wanted(self) -> bool:
        return framework_debug()

    def write(self, staged: Staged) -> None:
        key, name = programs.add(staged), staged.kernel.__name__
        if key in self.written:
            return
        self.written.add(key)
        stem = f"{name}.{self.numbers[name]}"
        self.numbers[name] += 1
        for ending, text in (("hlo.txt", hlo_text(staged)), ("program.txt", staged.describe() + "\n")):
            with open(f"{stem}.{ending}", "w", encoding="utf-8") as file:
                file.write(text)
        print(f"nki: wrote {stem}.hlo.txt and {stem}.program.txt in {os.getcwd()}", file=sys.stderr)


debug_dumps = DebugDumps()
