"""Kernels of steps: all numpy functions of a step as one kernel of the GPU, compiled by PyTorch's Inductor.

Each numpy function is a launch and a pass over memory, and an instruction has several. Inductor takes about
half a second for a step. So a plan that is replayed often is compiled on a thread while its calls go on.
The options make it round after each function, as PyTorch does: the bits are the same, except of sums.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...errors import emit_warning
from ...ir.caches import LRUCache
from ...ir.context import activate
from .batches import Batch
from .device import Lengthy, held_as
from .instructions import InstructionRunner
from .steps import DevicePlan

if TYPE_CHECKING:
    from torch import device as TorchDevice

LARGE = 4 << 20  # bytes of the operands of a step that is worth compiling
KERNELS = 1024  # of a device
OPTIONS = {
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "eager_numerics.disable_ftz": True,
}

StepFunction = Callable[[list[Any]], list[Any]]  # of the tensors of a step; it returns the masks to check
Compile = Callable[[Any, list[Any]], Callable[..., Any]]


def compiled(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
    """Return a graph of torch functions as compiled code."""
    from torch import _inductor

    return _inductor.compile(graph, inputs, options=OPTIONS)  # type: ignore[no-any-return]


class StepKernels:
    """Compiles the large steps of plans on one device, on a thread. Equal steps share a kernel."""

    def __init__(self, torch: ModuleType, where: TorchDevice, compile: Compile = compiled):
        self.torch, self.where, self.compile = torch, where, compile
        self.known: LRUCache[Any, Callable[..., Any]] = LRUCache(KERNELS)
        self.waiting: list[weakref.ref[DevicePlan]] = []
        self.done: weakref.WeakKeyDictionary[DevicePlan, dict[Batch, StepFunction]] = (
            weakref.WeakKeyDictionary()
        )
        self.problem = ""
        self.thread: threading.Thread | None = None
        self.lock = threading.Lock()

    def ask(self, plan: DevicePlan) -> None:
        """Compile the steps of a plan on the thread."""
        with self.lock:
            self.waiting.append(weakref.ref(plan))
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="nki-kernels")
                self.thread.start()

    def has_new(self, plan: DevicePlan) -> bool:
        """Return whether the kernels of a plan were finished, or failed, since it was asked last."""
        return bool(self.done) and plan in self.done

    def take(self, plan: DevicePlan) -> bool:
        """Let the plan use its kernels, if they were finished meanwhile; return whether it has new ones."""
        found = self.done.pop(plan, None) if self.done else None
        if found:
            plan.kernels[self.where] = found
        elif found is not None and self.problem:
            text = f"the steps of a kernel on the GPU are not compiled: {self.problem}"
            emit_warning("device-graph", text, None, ["each function is a launch: it takes longer"], None)
            self.problem = ""
        return bool(found)

    def finish(self) -> None:
        """Wait for everything that was asked for."""
        thread = self.thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self.lock:
                if not self.waiting:
                    self.thread = None
                    return
                plan = self.waiting.pop(0)()
            if plan is not None:
                self.done[plan] = self._kernels(plan)
                del plan

    def _kernels(self, plan: DevicePlan) -> dict[Batch, StepFunction]:
        found: dict[Batch, StepFunction] = {}
        for step in plan.steps:
            if not threading.main_thread().is_alive():
                break  # Python ends, and waits for this thread
            if isinstance(step, Batch) and step.node.kind == "compute" and step.nbytes >= LARGE:
                try:
                    found[step] = self._kernel(plan, step)
                except Lengthy:
                    pass  # its steps are launched one by one
                except Exception as problem:  # whatever it is, the step runs without a kernel
                    self.problem = f"{type(problem).__name__}: {problem}"
        return found

    def _kernel(self, plan: DevicePlan, step: Batch) -> StepFunction:
        present = [i for i, grid in enumerate(step.operands()) if grid is not None]
        inputs = self._without_memory(step)
        graph = self._traced(plan, step, present, inputs)
        constants = lift_constants(graph)
        inputs += constants
        layouts = tuple([(tuple(t.shape), tuple(t.stride()), t.dtype) for t in inputs])
        key = (graph.code, _numbers(graph), layouts)
        function = self.known.find(key)
        if function is None:
            function = self.compile(graph, inputs)
            self.known.put(key, function)
        return lambda tensors: list(function(*[tensors[i] for i in present], *constants))

    def _without_memory(self, step: Batch) -> list[Any]:
        """Return tensors like the operands of a step, each with a storage of its own."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        found = []
        with FakeTensorMode(allow_non_fake_inputs=True):
            for grid in step.operands():
                if grid is not None:
                    held = getattr(self.torch, held_as(grid.layout.dtype.storage))
                    place, lead = step.place_of(grid)
                    shape, strides = place.tensor_layout(lead)
                    found.append(self.torch.empty_strided(shape, strides, dtype=held, device=self.where))
        return found

    def _traced(self, plan: DevicePlan, step: Batch, present: list[int], inputs: list[Any]) -> Any:
        """Return the torch functions that a step calls, as a graph."""
        from torch.fx.experimental.proxy_tensor import make_fx

        runner = InstructionRunner(self.torch, plan, self.where)
        runner.device.constants = dict(runner.device.constants)  # a new one would have no memory
        runner.device.compiles = True

        def masks(*given: Any) -> list[Any]:
            tensors: list[Any] = [None] * len(step.operands())
            for i, tensor in zip(present, given, strict=True):
                tensors[i] = tensor
            runner.apply(step, tensors)
            return runner.device.doubts

        outer = activate(runner.core)  # type: ignore[arg-type]
        try:
            with self.torch.no_grad():
                return make_fx(masks, self._quotients(), "fake", _allow_non_fake_inputs=True)(*inputs)
        finally:
            activate(outer)

    def _quotients(self) -> dict[Any, Any]:
        """Return reciprocals in terms of divisions: Inductor rounds those, by an option."""
        torch, aten = self.torch, self.torch.ops.aten

        def reciprocal(x: Any) -> Any:
            return torch.true_divide(torch.ones_like(x), x)

        def reciprocal_out(x: Any, *, out: Any) -> Any:
            return out.copy_(reciprocal(x))

        return {aten.reciprocal.default: reciprocal, aten.reciprocal.out: reciprocal_out}


def lift_constants(graph: Any) -> list[Any]:
    """Make inputs of the constant tensors of a graph, but not of numbers; return them."""
    found: dict[str, Any] = {}
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        tensor = getattr(graph, node.target)
        if tensor.dim():
            if node.target not in found:
                with graph.graph.inserting_after(last):
                    last = graph.graph.placeholder(node.target.strip("_"))
                last.meta = node.meta
                found[node.target] = last, tensor
            node.replace_all_uses_with(found[node.target][0])
            graph.graph.erase_node(node)
    graph.recompile()
    return [tensor for _, tensor in found.values()]


def _numbers(graph: Any) -> tuple:
    """Return the numbers that the code of a graph names."""
    names = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    return tuple([(name, repr(getattr(graph, name).item())) for name in names])
