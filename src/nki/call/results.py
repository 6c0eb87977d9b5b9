"""What a kernel may return (language.md 3.2 to 3.4)."""

from __future__ import annotations

from typing import Any

from ..errors import error
from ..execute.memory import uninitialised
from ..hardware.memories import PRIVATE_HBM
from ..run.launch import Launch
from ..tensors import View
from ..tree import flatten, is_record, leaves, map_tree, replace_leaves
from .arguments import Arguments
from .user_function import return_site


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
    if view.storage.loop:
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
    if launch.mode in ("eager", "replay") and not launch.backend.is_written(view):
        launch.diagnose(*uninitialised(view), site)


def warn_lost_writes(kernel: Any, arguments: Arguments, result: Any, aliased: set[str]) -> None:
    """Say which arguments the kernel wrote to no effect, because their framework cannot change them."""
    returned = {id(view.storage) for view in tensors(result)}
    for name, _, framework, storage in arguments.written():
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
    return leaves(value, View)


def bare(value: Any) -> Any:
    """The returned value with views that claim no bytes."""
    return replace_leaves(value, View, lambda view: view.bare())


def is_plain(value: Any) -> bool:
    """True for tensors and plain values: what a replay can return once more."""
    return all(
        leaf is None or isinstance(leaf, (View, bool, int, float, str))
        for leaf in flatten(value, lambda v: isinstance(v, View))
    )


def _layout(value: Any) -> Any:
    """Structure, shapes, dtypes and storages of a result, to compare the cores'."""
    found = map_tree(_described, value, is_leaf=lambda v: isinstance(v, View))
    return tuple(flatten(found)) if is_record(found) else found


def _described(leaf: Any, path: str) -> Any:
    if isinstance(leaf, View):
        return f"{leaf.dtype}{list(leaf.shape)} {leaf.storage.name}@{id(leaf.storage)}"
    return type(leaf).__name__
