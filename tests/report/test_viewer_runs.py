"""The viewer of runs on two cores, of kernels that raise, and of long ones that a server shows."""

from __future__ import annotations

import http.client
import threading

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.cli import main
from nki.cli.serving import server
from report.test_viewer import at, press, scaled

pytestmark = pytest.mark.filterwarnings("ignore::nki.NkiWarning")
X = np.random.default_rng(0).standard_normal((256, 24)).astype(np.float32)


@nki.jit
def halves(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    row = nl.program_id(0) * 128
    mine = nl.ndarray((128, x.shape[1]), x.dtype)
    nisa.dma_copy(mine, x[row : row + 128, :])
    nisa.tensor_scalar(mine, mine, nl.multiply, 2.0 + nl.program_id(0))
    nisa.dma_copy(out[row : row + 128, :], mine)
    nisa.core_barrier(out, (0, 1))
    return out


def test_the_steps_of_both_cores_are_shown_with_their_core(page_of):
    shown = page_of(nki.show(halves[2], reference=lambda x: x * np.repeat([[2.0], [3.0]], 128, axis=0))(X))
    header = shown.page.inner_text("header")
    assert "8 steps · 2 cores" in header and "agrees" in header
    assert "Never written" not in header  # a barrier reads nothing of the tensor that it names
    assert shown.page.locator("#loops b").all_inner_texts() == ["core = 0"]
    shown.page.click("[aria-label='next core']")
    assert at(shown) == 4 and "of core 1" in shown.page.inner_text("#sbuf-text")
    assert press(shown, "ArrowRight") == 5
    assert shown.ask("viewer.maps[1].text(7, 3)") == f"[7, 3] = {np.float32(3) * X[135, 3]!s}"
    shown.page.locator("#search").fill("core=1 dma")
    assert shown.ask("viewer.hits.map((step) => step + 1)") == [4, 6]


def test_each_core_has_an_sbuf_of_its_own(page_of):
    shown = page_of(nki.show(halves[2])(X))
    tiles = "[viewer.memories.panels[1].shown.length, ...new Set(viewer.run.tile_at)]"
    assert shown.ask(tiles) == [1, 0]


@nki.jit
def mismatched(x):
    tile, small = nl.ndarray((128, 24), x.dtype), nl.ndarray((128, 3), x.dtype)
    nisa.dma_copy(tile, x[:128, :])
    nisa.tensor_copy(small, tile)
    return x


@nki.jit
def outside(x, row):
    tile, index = nl.ndarray((1, 24), x.dtype), nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(index, row)
    nisa.dma_copy(tile, x.ap([[24, 1], [1, 24]], scalar_offset=index, indirect_dim=0))
    return x


@nki.jit
def mistaken(x):
    tile = nl.ndarray((128, 24), x.dtype)
    nisa.dma_copy(tile, x[:128, :])
    return tile.no_such_method()


@pytest.mark.parametrize(
    "kernel, arguments, kind, line",
    [
        (mismatched, (), "shape", "nisa.tensor_copy(small, tile)"),
        (outside, (np.full((1, 1), 10**6, np.int32),), "index", "nisa.dma_copy(tile, x.ap("),
        (mistaken, (), "AttributeError", "tile.no_such_method()"),
    ],
)
def test_a_kernel_that_raises_has_a_page_up_to_the_error(page_of, kernel, arguments, kind, line):
    viewer = nki.show(kernel)(X, *arguments)
    assert kind in repr(viewer) and kind in repr(type(viewer.error)) and viewer.finished == viewer.count - 1
    shown = page_of(viewer)
    assert shown.page.locator("#error").is_hidden()
    shown.page.get_by_role("button", name=f"step {viewer.count}").click()
    assert at(shown) == viewer.count and kind in shown.page.inner_text("#error")
    assert line in shown.page.locator(".row.marked").inner_text()
    assert press(shown, "Home", "n") == viewer.count  # the error is a breakpoint


def test_the_operands_of_the_step_that_raised_are_shown(page_of):
    shown = page_of(nki.show(outside)(X, np.full((1, 1), 10**6, np.int32)))
    press(shown, "End")
    operands = shown.page.inner_text("#operands")
    assert "max 1000000" in operands and "not written: the step failed" in operands


def test_a_traced_kernel_that_raises_has_a_page_too(page_of):
    shown = page_of(nki.show(mismatched)(nki.TensorSpec((256, 24), "float32")))
    assert press(shown, "End") == 2 and "[shape]" in shown.page.inner_text("#error")


def test_the_command_writes_the_page_and_reports_the_error(tmp_path, capsys):
    page = tmp_path / "page.html"
    code = main(["show", f"{__file__}:mismatched", "--arg", "x=float32[128,24]", "-o", str(page)])
    assert code == 1 and "2 steps · raises an error" in page.read_text(encoding="utf-8")
    assert "tensor_copy: dst has 3 elements" in capsys.readouterr().err


@pytest.fixture
def served():
    """A server of a run whose page holds coarse maps of some steps only."""
    viewer = nki.show(scaled, megabytes=0.0005)(X)
    with server(viewer) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_served_page_shows_the_values_of_every_step_in_full(chromium, served):
    page = chromium.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(f"http://127.0.0.1:{served.server_port}/#2")
    page.wait_for_selector("html[data-ready=yes]")
    assert page.evaluate("viewer.run.every") > 1  # the page itself holds no map of step 2
    while not page.evaluate("viewer.run.answers.size"):
        page.wait_for_timeout(20)
    page.evaluate("viewer.drawNow()")
    assert page.evaluate("viewer.maps[0].text(77, 17)") == f"[77, 17] = {X[77, 17]!s}"
    assert page.evaluate("viewer.maps[1].text(77, 17)") == f"[77, 17] = {2 * X[77, 17]!s}"
    page.close()
    assert complaints == []


@pytest.mark.parametrize(
    "path, host, status",
    [
        ("/values/3", None, 200),
        ("/values/0", None, 404),
        ("/values/99", None, 404),
        ("/../setup.py", None, 404),
        ("/", "example.org", 403),
    ],
)
def test_a_server_answers_this_machine_and_its_own_steps(served, path, host, status):
    connection = http.client.HTTPConnection("127.0.0.1", served.server_port)
    connection.request("GET", path, headers={"Host": host} if host else {})
    assert connection.getresponse().status == status
    connection.close()
