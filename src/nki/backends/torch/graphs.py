"""Runs plans on a device; on a GPU, as CUDA graphs.

Python asks for about 35 kernels per millisecond, fewer than a GPU finishes. So the second call of a plan
captures what it asks for as a graph, and later calls replay that. A graph reads and writes memory at fixed
addresses. An argument that lies where it lay at every call so far, such as a weight, is read there; others
are copied to memory of the graph, and results from there. Graphs are evicted, the least recently used
first, when those of a device hold more than a part of its memory. A plan that is replayed often gets kernels
of its own (`kernels`); then it is captured again, with them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...errors import NkiError, emit_warning
from ...ir.caches import LRUCache
from ...ir.storage import Storage
from ..reference.collector import no_collections
from .instructions import Diagnosed
from .kernels import StepKernels
from .runner import DeviceRunner
from .steps import DevicePlan

if TYPE_CHECKING:
    from torch import device as TorchDevice

GRAPHS = 64  # of a device
OFTEN = 10  # replays, after which kernels are compiled
SHARE = 4  # graphs hold at most one part in so many of a GPU's memory
ALIGNED = 16  # bytes: what compiled kernels expect of an address

Tensors = dict[Storage, Any]


class Pending(NamedTuple):
    """What a device was asked for. It may still be at work."""

    written: Tensors | None  # None: the host is to run it
    doubt: Any = None  # on the device: whether an instruction reports something

    def finish(self) -> Tensors | None:
        """Return the tensors of what is written; None: run it on the host. In doubt, wait for the device."""
        return None if self.doubt is not None and bool(self.doubt) else self.written


def start(plan: DevicePlan, given: Tensors, where: TorchDevice) -> Pending:
    """Run on the tensors of the parameters, on a GPU without waiting for it where the plan was captured."""
    import torch

    where = torch.device(where)
    try:
        if where.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            return _graphs_on(torch, where).run(plan, given)
        return Pending(DeviceRunner(torch, plan, given, where).run())
    except (Diagnosed, NkiError):
        return Pending(None)


def run(plan: DevicePlan, given: Tensors, where: TorchDevice) -> Tensors | None:
    """Run on the tensors of the parameters; return those of what is written, or None: run it on the host."""
    return start(plan, given, where).finish()


# ---- which plans are captured --------------------------------------------------------------------


class Capture(Protocol):
    """The captured work of a plan."""

    nbytes: int

    def replay(self, given: Tensors) -> Pending: ...


class _History:
    """What happened to a plan on a device."""

    __slots__ = ("is_ready", "is_refused", "replays", "places")

    def __init__(self, places: dict[Storage, int]):
        self.is_ready = False  # it ran, and can be captured
        self.is_refused = False
        self.replays = 0
        self.places: dict[Storage, int | None] = {  # at every run so far; None: it moves
            storage: place if place % ALIGNED == 0 else None for storage, place in places.items()
        }

    def has_moved(self, now: dict[Storage, int]) -> bool:
        """Note where the arguments lie; return True if one of them moved that had not before."""
        before = self.places
        if before == now:
            return False
        moved = [s for s, place in before.items() if place is not None and place != now[s]]
        before.update(dict.fromkeys(moved))
        return bool(moved)


class PlanGraphs:
    """The plans that ran on one device: captured at the second run, replayed from then on."""

    def __init__(
        self,
        make: Callable[[DevicePlan, Tensors], DeviceRunner],
        capture: Callable[..., Capture],
        limit: int,
        kernels: StepKernels,
    ):
        self.make, self.capture, self.limit, self.kernels = make, capture, limit, kernels
        self.graphs: LRUCache[int, Capture] = LRUCache(GRAPHS, limit)
        self.histories: weakref.WeakKeyDictionary[DevicePlan, _History] = weakref.WeakKeyDictionary()
        self.lock = threading.RLock()  # one graph is used at a time: they share the workspace of cuBLAS

    def run(self, plan: DevicePlan, given: Tensors) -> Pending:
        places = {storage: tensor.data_ptr() for storage, tensor in given.items()}
        with self.lock:
            history = self.histories.get(plan)
            if history is None:
                history = self.histories[plan] = _History(places)
            has_moved = history.has_moved(places)
            graph = self.graphs.find(id(plan))
            if graph is not None and self.kernels.take(plan):
                self.graphs.discard(id(plan))  # new kernels are loaded by a run before they are captured
                graph = None
            elif (graph is not None and has_moved) or (graph is None and history.is_ready):
                self.graphs.discard(id(plan))
                graph = self._captured(plan, given, history)
            if graph is not None:
                history.replays += 1
                if history.replays == OFTEN:
                    self.kernels.ask(plan)
                return graph.replay(given)
        runner = self.make(plan, given)
        found = runner.run()
        if runner.stayed and found is not None and not history.is_refused:
            history.is_ready = True
        return Pending(found)

    def _captured(self, plan: DevicePlan, given: Tensors, history: _History) -> Capture | None:
        """Return the captured work of a plan; None: each call asks for its steps, from now on."""
        history.is_ready = False  # once evicted, it runs before it is captured again
        try:
            in_place = {s for s, place in history.places.items() if place is not None}
            graph = self.capture(plan, given, in_place)
        except Exception as problem:  # whatever it is, the plan runs without a graph
            history.is_refused = True
            text = f"the work of a kernel on the GPU is not captured as a graph: {problem}"
            emit_warning("device-graph", text, None, ["each call asks for every step: it takes longer"], None)
            return None
        if graph.nbytes > self.limit:
            history.is_refused = True
            return None
        weakref.finalize(plan, self.graphs.discard, id(plan))
        self.graphs.put(id(plan), graph, graph.nbytes)
        return graph


# ---- CUDA ----------------------------------------------------------------------------------------


class CudaCapture:
    """A CUDA graph of the work of a plan, and the memory that it reads and writes."""

    def __init__(
        self,
        torch: ModuleType,
        plan: DevicePlan,
        given: Tensors,
        in_place: Collection[Storage],  # arguments that stay where they are
        stream: Any,
        done: Any,
    ):
        where = stream.device
        self.torch, self.where, self.done = torch, where, done
        before = torch.cuda.memory_reserved(where)
        stream.wait_stream(torch.cuda.current_stream(where))
        with torch.cuda.stream(stream), no_collections():  # no tensor is freed by the collector meanwhile
            try:
                self.graph = torch.cuda.CUDAGraph()
                with _capturing(self.graph):
                    self.given = {s: torch.empty_like(t) for s, t in given.items() if s not in in_place}
                    runner = DeviceRunner(torch, plan, given | self.given, where)
                    self.doubt = runner.launch()
                    self.written = runner.written()
            except BaseException:  # KeyboardInterrupt too
                _leave_capture(torch, where)
                raise
        self.kept = plan.numbers[where], plan.constants_on(torch, where)  # at addresses that the graph knows
        self.nbytes = torch.cuda.memory_reserved(where) - before

    def replay(self, given: Tensors) -> Pending:
        """Run the graph on other tensors, after whatever uses its memory on other streams."""
        stream = self.torch.cuda.current_stream(self.where)
        stream.wait_event(self.done)
        for storage, tensor in self.given.items():
            tensor.copy_(given[storage])
        self.graph.replay()
        found = {storage: tensor.clone() for storage, tensor in self.written.items()}
        doubt = None if self.doubt is None else self.doubt.clone()
        self.done.record(stream)
        return Pending(found, doubt)


@contextmanager
def _capturing(graph: Any) -> Any:
    """Context: what the current stream is asked for becomes a graph."""
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        yield
    finally:
        graph.capture_end()


def _leave_capture(torch: ModuleType, where: TorchDevice) -> None:
    """Let PyTorch's random generator leave a capture that failed: the end of another one does it."""
    with _capturing(torch.cuda.CUDAGraph()):
        torch.empty(1, device=where).zero_()


_on_device: dict[TorchDevice, PlanGraphs] = {}
_lock = threading.Lock()


def _graphs_on(torch: ModuleType, where: TorchDevice) -> PlanGraphs:
    """Return the graphs of a GPU, with one stream to capture on."""
    if where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    known = _on_device.get(where)
    if known is not None:
        return known
    with _lock:
        if where not in _on_device:
            stream, done = torch.cuda.Stream(where), torch.cuda.Event()
            limit = torch.cuda.get_device_properties(where).total_memory // SHARE
            _on_device[where] = PlanGraphs(
                lambda plan, given: DeviceRunner(torch, plan, given, where),
                lambda plan, given, in_place: CudaCapture(torch, plan, given, in_place, stream, done),
                limit,
                StepKernels(torch, where),
            )
        return _on_device[where]


def finish_kernels() -> None:
    """Wait for the kernels that are being compiled: for those who measure."""
    for graphs in list(_on_device.values()):
        graphs.kernels.finish()
