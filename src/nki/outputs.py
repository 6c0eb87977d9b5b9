"""What a kernel may return (language.md 3.2 to 3.4)."""

from __future__ import annotations

from typing import Any

from .arguments import Arguments
from .errors import error
from .execute.memory import uninitialised
from .functions import return_site
from .launch import Launch
from .storage import PRIVATE_HBM
from .view import View


def check_results(kernel: Any, launch: Launch, results: list[Any]) -> None:
    """What the programs returned can be given to the caller."""
    for core, result in enumerate(results):
        for view in tensors(result):
            _check_output(kernel, launch, view)
        if core and _layout(result) != _layout(results[0]):
            raise error(
                "lnc-outputs",
                f"{kernel.__name__}: core 0 and core {core} return different tensors",
                notes=[f"core 0: {_layout(results[0])}", f"core {core}: {_layout(result)}"],
                help="return the same shared_hbm tensors from every core",
                site=return_site(kernel.func),
            )


def _check_output(kernel: Any, launch: Launch, view: View) -> None:
    site = return_site(kernel.func)
    if view.storage.loop is not None:
        raise error(
            "loop-local-tensor",
            f"{kernel.__name__} returns a tensor allocated inside a dynamic loop",
            notes=[view.describe()],
            help="allocate it before the loop",
            site=site,
        )
    if view.on_chip:
        raise error(
            "output-buffer",
            f"{kernel.__name__} returns a tensor in {view.buffer.value}, which ends with the kernel",
            notes=[view.describe()],
            help="copy it to a tensor made with nl.ndarray(..., buffer=nl.shared_hbm) and return that",
            site=site,
        )
    if view.buffer is PRIVATE_HBM and not view.storage.parameter:
        text = f"{kernel.__name__} returns a private HBM tensor"
        help = "allocate outputs with buffer=nl.shared_hbm"
        if launch.degree > 1:
            raise error(
                "output-buffer",
                f"{text}; each core has its own",
                notes=[view.describe()],
                help=help,
                site=site,
            )
        launch.diagnose("output-buffer", text, [view.describe()], help, site)
    if view.storage.memory is not None and not view.storage.memory.is_written(view):
        launch.diagnose(*uninitialised(view), site)


def warn_lost_writes(kernel: Any, arguments: Arguments, result: Any, aliased: set[str]) -> None:
    """Say which arguments the kernel wrote to no effect, because their framework cannot change them."""
    returned = {id(view.storage) for view in tensors(result)}
    for name, _value, framework, storage in arguments.written():
        if id(storage) not in returned and name not in aliased and not hasattr(framework, "write_back"):
            arguments.launch.diagnose(
                "lost-write",
                f"{kernel.__name__} wrote argument '{name}', but {framework.name} arrays cannot change",
                [],
                "return the tensor from the kernel",
                return_site(kernel.func),
            )


def tensors(value: Any) -> list[View]:
    """All tensors of a returned value, in order."""
    if isinstance(value, View):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


def _layout(value: Any) -> Any:
    """Structure, shapes, dtypes and storages of a result, to compare the cores'."""
    if isinstance(value, View):
        return (str(value.dtype), tuple(value.shape), value.storage.name, id(value.storage))
    if isinstance(value, dict):
        return {k: _layout(v) for k, v in value.items()}
    return tuple(_layout(v) for v in value) if isinstance(value, (tuple, list)) else type(value).__name__
