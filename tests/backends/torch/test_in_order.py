"""Programs without a plan run in order on a device: loops, registers, cores that wait, ranks, what prints."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import loaded, stored, target

torch = pytest.importorskip("torch")
from backend_agreement import assert_agrees, nothing_goes_to_the_host, torch_devices  # noqa: E402
from nki.backends.torch import in_order  # noqa: E402
from nki.backends.torch.lanes import FUNCTIONS  # noqa: E402
from nki.kernel.devices import run_on_device  # noqa: E402

DEVICES = torch_devices()


@pytest.fixture(params=DEVICES)
def device(request):
    return DEVICES[request.param]


@pytest.fixture(autouse=True)
def nothing_on_the_host():
    """No instruction leaves the device, except where a test asks for it."""
    with target("trn2"), nothing_goes_to_the_host():
        yield


def floats(*shape, seed=0):
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def register_of(tensor):
    register = nisa.register_alloc(0)
    nisa.register_load(register, tensor)
    return register


def agrees_in_order(kernel, given, device, **options):
    program = kernel.trace(*given, **options)
    assert assert_agrees(program, given, "torch", exact=True, **device) == "in order"


@nki.jit
def doubled(x, times):
    """x * 2 ** times."""
    tile = loaded(x)

    def body(_):
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)

    nl.fori_loop(0, register_of(times), body)
    return stored(tile)


@pytest.mark.parametrize("times", [0, 1, 5])
def test_a_loop_runs_as_often_as_a_register_says(device, times):
    agrees_in_order(doubled, [floats(8, 16), np.array([[times]], np.int32)], device)


def test_a_while_loop_reads_its_condition_in_every_iteration(device):
    @nki.jit
    def halved(x, start):
        tile, left = loaded(x), loaded(start)
        register = register_of(left)

        def body(_):
            nisa.tensor_scalar(tile, tile, nl.multiply, 0.5)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(register, left)
            return register

        nl.while_loop(register, body)
        return stored(tile)

    agrees_in_order(halved, [floats(8, 16), np.array([[3]], np.int32)], device)


def test_addresses_in_registers_and_on_chip(device):
    @nki.jit
    def moved(x, places):
        tile, chosen = loaded(x), loaded(places)
        found = nl.ndarray((x.shape[0], 4), x.dtype)
        nisa.memset(found, 0.0)
        out = nl.ndarray((3, x.shape[0], 4), x.dtype, buffer=nl.shared_hbm)

        def body(i):
            nisa.register_load(column, chosen[0:1, nl.ds(i, 1)])
            nisa.tensor_tensor(found, found, tile[:, nl.ds(column, 4)], nl.add)
            nisa.dma_copy(out[i], found)

        column = nisa.register_alloc(0)
        nl.fori_loop(0, 3, body)
        return out

    agrees_in_order(moved, [floats(8, 16), np.array([[5, 0, 12]], np.int32)], device)


def test_cores_that_exchange_tiles_and_hbm(device):
    @nki.jit
    def exchanged(x):
        core = nl.program_id(0)
        shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        mine, theirs = loaded(x[core]), nl.ndarray(x.shape[1:], x.dtype)
        nisa.sendrecv(mine, theirs, 1 - core, 1 - core, 0)
        nisa.tensor_tensor(mine, mine, theirs, nl.subtract)
        nisa.dma_copy(shared[core], mine)
        nisa.core_barrier(shared, (0, 1))
        nisa.dma_copy(out[core], loaded(shared[1 - core]))
        return out

    agrees_in_order(exchanged[2], [floats(2, 8, 16)], device)


def test_prints_and_random_numbers_are_those_of_the_host(device):
    @nki.jit
    def drawn(x):
        tile = loaded(x)
        nl.device_print("x", tile)
        noise = nl.ndarray(x.shape, nl.float32)
        nisa.rng(noise.view(nl.uint32), engine=nisa.engine.vector)
        kept = nl.ndarray(x.shape, nl.float32)
        nisa.dropout(kept, tile, 0.5)
        return stored(kept)

    program = drawn.trace(floats(8, 16))
    assert assert_agrees(program, [floats(8, 16)], "torch", exact=True, **device) == "in order"


def test_an_index_out_of_bounds_is_reported_at_its_line(device):
    @nki.jit
    def beyond(x, place):
        return stored(loaded(x[nl.ds(register_of(place), 2)]))

    given = [floats(8, 16), np.array([[7]], np.int32)]
    program = beyond.trace(*given)
    assert assert_agrees(program, given, "torch", **device) == "dropped"


def test_an_instruction_without_a_form_runs_on_the_host(device, monkeypatch):
    seen = []
    monkeypatch.setattr(in_order, "warn_copies", lambda instruction, *_: seen.append(instruction.public))
    monkeypatch.delitem(FUNCTIONS, np.flip)

    @nki.jit
    def bounded(ids):
        register_of(ids[0:1, 0:1])
        found = nl.ndarray((1, 2, ids.shape[1]), nl.int32)
        nisa.sequence_bounds(found, loaded(ids))
        return stored(found)

    agrees_in_order(bounded, [np.array([[1, 1, 0, 2, 2, 2]], np.int32)], device)
    assert seen == ["sequence_bounds"]


def test_a_scan_runs_on_the_host_where_each_step_would_be_a_launch(device, monkeypatch):
    seen = []
    monkeypatch.setattr(in_order, "warn_copies", lambda instruction, *_: seen.append(instruction.public))

    @nki.jit
    def scanned(x, ids):
        register_of(ids)
        out = nl.ndarray(x.shape, nl.float32)
        nisa.tensor_tensor_scan(out, loaded(x), loaded(x), 0.5, nl.multiply, nl.add)
        return stored(out)

    agrees_in_order(
        scanned, [np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8), np.array([[1]], np.int32)], device
    )
    assert seen == ["tensor_tensor_scan"]


# ---- calls with tensors --------------------------------------------------------------------------


def run_there(kernel, *tensors):
    call = kernel.prepare(tensors, {})
    return run_on_device(call, [tensor.value for tensor in call.arguments.tensors])


@pytest.mark.parametrize("where", DEVICES)
def test_a_loop_runs_on_the_device_from_the_second_call_on(where):
    nki.cache.clear()
    x, times = torch.ones(8, 16, device=where), torch.tensor([[3]], dtype=torch.int32, device=where)
    assert "compared at the first call" in run_there(doubled, x, times)
    doubled(x.cpu(), times.cpu())
    (found,) = run_there(doubled, x, times)
    assert found.device.type == where and (found == 8).all()
    assert run_there(doubled, x, times + 1) == "an instruction reports something about its values"
    (found,) = run_there(doubled, x, times - 1)
    assert (found == 4).all() and (x == 1).all()


@pytest.mark.parametrize("where", DEVICES)
def test_an_argument_is_written_and_what_was_printed_is_not_printed_again(where, capsys):
    @nki.jit
    def shown(x):
        tile = loaded(x)
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        nl.device_print("x", tile[0:1, 0:1])
        nisa.dma_copy(x, tile)
        return x

    x = torch.zeros(4, 8, device=where)
    for count in range(1, 4):
        (found,) = run_there(shown, x)
        assert found is x and (x == count).all()
    assert capsys.readouterr().out.count("float32[1, 1]") == 3


# ---- ranks ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::nki.NkiWarning")
def test_ranks_of_one_process_exchange_tensors(device, monkeypatch):
    """Random worlds against a model of the specification, as on the host."""
    from nki.ranks import run_ranks
    from random_worlds import check_world

    monkeypatch.setenv("OPEN_NKI_DEVICE", device.get("OPEN_NKI_DEVICE", "torch-cpu"))
    for seed in range(30):
        check_world(seed, run_ranks)


def test_ranks_of_other_processes_get_bytes():

    from nki.backends.torch.lanes import Lanes
    from nki.backends.torch.memory import ReadableDevice
    from nki.collectives.messages import message, unpack

    values = floats(4, 6)
    array = Lanes(torch.from_numpy(values), 0, values.dtype, ReadableDevice(torch, torch.device("cpu")))
    head = {"same": "", "rank": 0, "core": 0, "line": ""}
    (sent,) = unpack(message(head, [array], in_process=False))[1]
    assert sent.tobytes() == values.tobytes()
    (kept,) = unpack(message(head, [array], in_process=True))[1]
    assert isinstance(kept, Lanes) and kept.shape == (24,)
