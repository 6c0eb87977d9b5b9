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


def replay(plan: DevicePlan, given: Tensors, where: TorchDevice) -> Pending | None:
    """Replay the graph of a plan, if it has one for tensors that lie there; else do nothing."""
    known = _on_device.get(where)
    return None if known is None or known.is_capturing() else known.replay(plan, given)


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

    def __init__(self, given: Tensors):
        self.is_ready = False  # it ran, and can be captured
        self.is_refused = False
        self.replays = 0
        self.places: dict[Storage, int | None] = {  # at every run so far; None: it moves
            storage: None if tensor.data_ptr() % ALIGNED else tensor.data_ptr()
            for storage, tensor in given.items()
        }

    def moved(self, given: Tensors) -> list[Storage]:
        """Return the arguments that have moved and had not before."""
        places = self.places.items()
        return [s for s, place in places if place is not None and place != given[s].data_ptr()]


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
        self.is_capturing = kernels.torch.cuda.is_current_stream_capturing  # for others: nothing is replayed
        self.graphs: LRUCache[int, tuple[Capture, _History]] = LRUCache(GRAPHS, limit)
        self.histories: weakref.WeakKeyDictionary[DevicePlan, _History] = weakref.WeakKeyDictionary()
        self.lock = threading.RLock()  # one graph is used at a time: they share the workspace of cuBLAS

    def run(self, plan: DevicePlan, given: Tensors) -> Pending:
        with self.lock:
            found = self.replay(plan, given) or self._replay_anew(plan, given)
            history = self.histories[plan]
        if found is not None:
            return found
        runner = self.make(plan, given)
        written = runner.run()
        if runner.stayed and written is not None and not history.is_refused:
            history.is_ready = True
        return Pending(written)

    def replay(self, plan: DevicePlan, given: Tensors) -> Pending | None:
        """Replay the graph of a plan; None: it has none, or is to be captured again."""
        with self.lock:
            found = self.graphs.find(id(plan))
            if found is None or found[1].moved(given) or self.kernels.has_new(plan):
                return None
            graph, history = found
            history.replays += 1
            if history.replays == OFTEN:
                self.kernels.ask(plan)
            return graph.replay(given)

    def _replay_anew(self, plan: DevicePlan, given: Tensors) -> Pending | None:
        """Capture a plan that has run, or whose arguments have moved, and replay it; None: it is to run."""
        history = self.histories.get(plan)
        if history is None:
            history = self.histories[plan] = _History(given)
        moved = history.moved(given)
        history.places.update(dict.fromkeys(moved))
        if id(plan) in self.graphs:
            if self.kernels.take(plan):  # a run loads new kernels before they are captured
                self.graphs.discard(id(plan))
                return None
            if not moved:
                return self.replay(plan, given)
            self.graphs.discard(id(plan))
        elif not history.is_ready:
            return None
        graph = self._captured(plan, given, history)
        return None if graph is None else self.replay(plan, given)

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
        self.graphs.put(id(plan), (graph, history), graph.nbytes)
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
        order: GraphOrder,
    ):
        where = stream.device
        self.order = order
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
        stream = self.order.begin()
        for storage, tensor in self.given.items():
            tensor.copy_(given[storage])
        self.graph.replay()
        found = {storage: tensor.clone() for storage, tensor in self.written.items()}
        doubt = None if self.doubt is None else self.doubt.clone()
        self.order.end(stream)
        return Pending(found, doubt)


class GraphOrder:
    """Lets the graphs of a GPU run one after the other, on whatever streams: they share memory."""

    def __init__(self, torch: ModuleType, where: TorchDevice):
        self.current_stream, self.address_of = torch.cuda.current_stream, torch._C._cuda_getCurrentRawStream
        self.where, self.done = where, torch.cuda.Event()
        self.default: Any = None  # the default stream, if the last graph ran there

    def begin(self) -> Any:
        """Return the current stream; what it is asked for from now on comes after the last graph."""
        is_default = self.address_of(self.where.index) == 0
        if is_default and self.default is not None:  # a stream keeps its order
            return self.default
        stream = self.current_stream(self.where)
        if self.default is not None:
            self.done.record(self.default)  # only now: most often no other stream follows
        stream.wait_event(self.done)
        self.default = stream if is_default else None
        return stream

    def end(self, stream: Any) -> None:
        if self.default is None:  # a stream that may be captured later
            self.done.record(stream)


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
            stream, order = torch.cuda.Stream(where), GraphOrder(torch, where)
            limit = torch.cuda.get_device_properties(where).total_memory // SHARE
            _on_device[where] = PlanGraphs(
                lambda plan, given: DeviceRunner(torch, plan, given, where),
                lambda plan, given, in_place: CudaCapture(torch, plan, given, in_place, stream, order),
                limit,
                StepKernels(torch, where),
            )
        return _on_device[where]


def finish_kernels() -> None:
    """Wait for the kernels that are being compiled: for those who measure."""
    for graphs in list(_on_device.values()):
        graphs.kernels.finish()
