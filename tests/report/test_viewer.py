"""nki.show: a page that steps through a kernel, with its values.

The tests of the second half open it in Chromium; they are skipped where it or Playwright is missing.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.testing import first_difference
from report.test_html import OUTSIDE, Opened, decoded, unwound

# kernels that make NaNs on purpose, and an older kind of loop
pytestmark = pytest.mark.filterwarnings("ignore::nki.NkiWarning", "ignore::DeprecationWarning")

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((256, 24)).astype(np.float32)
PART = 8


@nki.jit
def scaled(x):
    """Adds halves of rows, and takes a logarithm."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, x[row : row + 128, :])
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        part = nl.ndarray((128, x.shape[1]), nl.bfloat16, buffer=nl.sbuf)
        for half in range(2):
            nisa.activation(part[:, half * 4 : half * 4 + 4], nl.log, tile[:, half * 4 : half * 4 + 4])
        nisa.tensor_copy(tile[:, :PART], part[:, :PART])
        nisa.dma_copy(out[row : row + 128, :], tile)
    return out


def reference(x):
    """What the first 128 rows of `scaled` are; the others are three times as large."""
    with np.errstate(invalid="ignore"):
        logs = np.log(2 * x[:, :PART]).astype(ml_dtypes.bfloat16).astype(np.float64)
    right = np.concatenate([logs, 2 * x[:, PART:]], axis=1)
    right[128:, PART:] *= 3
    return right


@pytest.fixture(scope="module")
def viewer():
    return nki.show(scaled, reference=reference)(X)


class Columns:
    """The columns of a page, read as its scripts read them."""

    def __init__(self, viewer):
        text = viewer.html().replace('id="run"', 'id="profile"')
        self.table, self.columns = decoded(text)
        self.first = np.concatenate([[0], np.cumsum(self.columns["views"])])

    def summed(self, name):
        return unwound(self.columns[name]).astype(np.int64)

    def operands(self, step):
        """(role, label of the tile, map) of each operand of a step."""
        maps = self.summed("map").astype(np.uint32).view(np.int32)  # -1: none
        rows = range(int(self.first[step]), int(self.first[step + 1]))
        tiles, roles = self.summed("tile"), self.table["roles"]
        labels = [self.table["labels"][self.columns["tile_label"][tiles[row]]] for row in rows]
        return [
            (roles[self.columns["role"][row]], label, int(maps[row]))
            for row, label in zip(rows, labels, strict=True)
        ]


@pytest.fixture(scope="module")
def columns(viewer):
    return Columns(viewer)


# ---- the data ------------------------------------------------------------------------------------


def test_each_instruction_is_a_step_with_its_engine_and_line(columns):
    names = [columns.table["kinds"][kind][:2] for kind in columns.columns["kind"]]
    once = [["dma_copy", "dma"], ["tensor_scalar", "vector"], *[["activation", "scalar"]] * 2]
    assert names == 2 * [*once, ["tensor_copy", "vector"], ["dma_copy", "dma"]]
    file, line = columns.table["kinds"][columns.columns["kind"][1]][2:]
    assert "nisa.tensor_scalar(tile" in columns.table["files"][file]["lines"][line - 1]


def test_operands_have_their_role_and_the_users_names(columns):
    assert [operand[:2] for operand in columns.operands(1)] == [("reads", "tile"), ("writes", "tile")]
    assert [operand[:2] for operand in columns.operands(0)] == [("reads", "x"), ("writes", "tile")]
    assert [operand[:2] for operand in columns.operands(5)] == [
        ("reads", "tile"),
        ("writes", "out"),
        ("expected", "out"),
        ("difference", "out"),
    ]


def test_the_parameters_of_an_instruction_in_place_are_named(columns):
    rows = range(int(columns.first[1]), int(columns.first[2]))
    assert [columns.table["operands"][columns.columns["operand"][row]] for row in rows] == ["data", "dst"]


def test_an_instruction_in_place_shows_its_operand_as_it_was(columns):
    (_, _, before), (_, _, after) = columns.operands(1)
    low = columns.columns["map_low"]
    assert low[before] == X[:128].min() and low[after] == 2 * X[:128].min()


def test_figures_of_every_step_are_numpys(columns):
    *_, (_, _, written) = columns.operands(2)  # the logarithm of four columns
    with np.errstate(invalid="ignore"):
        logs = np.log(2 * X[:128, :4]).astype(ml_dtypes.bfloat16).astype(np.float32)
    found = {name: columns.columns[f"map_{name}"][written] for name in ("low", "high", "mean", "nans")}
    assert found["low"] == np.nanmin(logs) and found["high"] == np.nanmax(logs)
    assert found["mean"] == pytest.approx(np.nanmean(logs.astype(float)))
    assert found["nans"] == np.isnan(logs).sum() > 0


def test_what_a_step_reads_and_wrote_before_is_one_map(columns):
    assert columns.operands(0)[1][2] == columns.operands(1)[0][2]


def test_shapes_alone_show_no_values():
    shown = Columns(nki.show(scaled)(nki.TensorSpec((256, 24), "float32")))
    assert len(shown.columns["kind"]) == 12 and len(shown.columns["map_low"]) == 0
    assert shown.table["loops"] and not shown.table["has_values"]


def test_the_first_difference_is_the_one_that_debug_finds(columns):
    found = first_difference(scaled, reference, [X])
    assert found is not None and found.writer is not None
    errors = columns.columns["error"]
    assert found.writer.number - 1 == np.argmax(errors > 1) == 11
    assert columns.table["agreements"] == [[found.wrong, found.elements]]


def test_a_window_of_steps_has_the_values_and_all_have_figures():
    shown = Columns(nki.show(scaled, steps=range(2, 4))(X))
    chunks = shown.columns["map_chunk"]
    with_cells = {step for step in range(12) for *_, n in shown.operands(step) if n >= 0 and chunks[n]}
    assert with_cells >= {2, 3} and 9 not in with_cells
    written = [number for step in range(12) for role, _, number in shown.operands(step) if role == "writes"]
    assert np.isfinite(shown.columns["map_low"][written]).all()


def test_a_long_run_names_what_its_page_holds():
    shown = nki.show(scaled, megabytes=0.002)(X)
    assert "12 steps · values of one step in" in shown.recording.summary()
    assert shown.recording.summary().split(" · ")[1] in shown.html()


@nki.jit
def swapped(x, index):
    """Reads a row whose number is known at run time, and a tile at an address of its own."""
    out = nl.ndarray((1, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    rows = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(rows, index)
    tile = nl.ndarray((1, x.shape[1]), x.dtype, buffer=nl.sbuf, address=(0, 1024))
    nisa.dma_copy(tile, x.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=rows, indirect_dim=0))
    nisa.dma_copy(out, tile)
    return out


def test_run_time_addresses_and_chosen_ones_are_shown():
    shown = Columns(nki.show(swapped)(X, np.full((1, 1), 3, np.int32)))
    assert any(indirect for *_, indirect in shown.table["shapes"])
    tile = shown.table["labels"].index("tile")
    at = shown.columns["tile_at"][np.flatnonzero(shown.columns["tile_label"] == tile)]
    assert at.tolist() == [1024]


@nki.jit
def racing(x):
    """Both cores write the whole result: the call runs twice."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    for _ in nl.dynamic_range(0, 3):
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    nisa.dma_copy(out, tile)
    return out


def test_a_call_that_starts_again_and_its_dynamic_loop_are_recorded_once():
    shown = nki.show(racing[2], reference=lambda x: x + 3)(X[:128])
    names = [
        columns.table["kinds"][kind][0] for columns in [Columns(shown)] for kind in columns.columns["kind"]
    ]
    assert names.count("tensor_scalar") == 6 and names.count("dma_copy") == 4
    assert shown.recording.agreements == [(0, X[:128].size)]
    assert "2 cores" in shown.recording.summary()


@nki.jit
def nothing(x):
    return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)


def test_a_run_is_not_changed_by_being_shown():
    x = X.copy()
    nki.show(scaled)(x)
    assert np.array_equal(x, X)
    assert np.array_equal(scaled(x)[:, PART:], 2 * X[:, PART:])


def test_the_page_refers_to_nothing_outside_itself(viewer):
    text = viewer.html()
    assert OUTSIDE.findall(text) == [] and "default-src 'none'" in text


# ---- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def viewer_file(viewer, tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "scaled.html"
    viewer.save(path)
    return path


@pytest.fixture
def opened(chromium, viewer_file):
    shown = Opened(chromium, viewer_file)
    yield shown
    shown.page.close()
    assert shown.complaints == [] and shown.requests[0] == f"file://{viewer_file}"
    assert {request.partition("#")[0] for request in shown.requests} == {f"file://{viewer_file}"}


def at(shown):
    """The step that is shown, counted from 1, when its heat maps are painted."""
    shown.ask("viewer.drawNow()")
    return int(shown.page.inner_text("#count").split(" / ")[0])


def press(shown, *keys):
    for key in keys:
        shown.page.keyboard.press(key)
    return at(shown)


def test_keys_buttons_and_the_slider_step(opened):
    assert at(opened) == 1
    assert press(opened, "ArrowRight", "ArrowRight") == 3
    assert press(opened, "ArrowLeft") == 2
    assert press(opened, "End") == 12 and press(opened, "ArrowRight") == 12
    assert press(opened, "Home") == 1 and press(opened, "ArrowLeft") == 1
    opened.page.click("#next")
    assert at(opened) == 2
    opened.page.locator("#at").fill("6")
    assert at(opened) == 7
    assert "nisa.dma_copy" in opened.page.inner_text("#what")


def test_an_address_names_a_step(opened, viewer_file):
    opened.page.goto(f"file://{viewer_file}#5")
    assert at(opened) == 5


def test_loop_counters_are_shown_and_step(opened):
    press(opened, "ArrowRight", "ArrowRight")
    assert opened.page.locator("#loops b").all_inner_texts() == ["row = 0", "half = 0"]
    opened.page.click("[aria-label='next row']")
    assert at(opened) == 7
    opened.page.click("[aria-label='previous row']")
    assert at(opened) == 1


def test_a_click_on_a_line_shows_its_steps(opened):
    opened.page.locator(".row.stepped", has_text="nisa.activation").locator("code").click()
    assert at(opened) == 3
    assert "4 steps" in opened.page.inner_text("#hits-title")
    listed = [text.split("\n")[:2] for text in opened.page.locator("#hits-list li").all_inner_texts()]
    turns = [f"row={row} half={half}" for row in (0, 128) for half in (0, 1)]
    assert listed == [[number, turn] for number, turn in zip(["3", "4", "9", "10"], turns, strict=True)]
    opened.page.locator("#hits-list button").nth(2).click()
    assert at(opened) == 9


def test_a_line_number_is_a_breakpoint(opened):
    opened.page.click("#on-nan")
    opened.page.click("#on-difference")
    opened.page.click("#on-unwritten")
    number = opened.page.locator(".row.stepped", has_text="nisa.tensor_scalar").locator(".lineno")
    number.click()
    assert number.get_attribute("aria-pressed") == "true"
    assert press(opened, "n") == 2 and press(opened, "n") == 8 and press(opened, "n") == 8
    assert "no breakpoint after" in opened.page.inner_text("#found")
    assert press(opened, "p") == 2
    assert press(opened, "b", "Home", "n") == 1  # the key takes it away again


def test_the_first_nan_and_the_first_difference_are_breakpoints(opened):
    assert press(opened, "n") == 3 and "NaN" in opened.page.inner_text("#count")
    opened.page.click("#on-nan")
    assert press(opened, "Home", "n") == 12 and "difference" in opened.page.inner_text("#count")
    opened.page.locator("#tolerance").fill("1e30")
    opened.page.locator("#what").click()
    assert press(opened, "Home", "n") == 1
    opened.page.get_by_role("button", name="step 12").click()
    assert at(opened) == 12


def test_search_finds_instructions_tiles_and_iterations(opened):
    hits = "viewer.hits.map((step) => step + 1)"
    for text, steps in {
        "tensor_copy": [5, 11],
        "part row=128": [9, 10, 11],
        "scalar half=1": [4, 10],
        "test_viewer.py": list(range(1, 13)),
        "no such": [],
    }.items():
        opened.page.locator("#search").fill(text)
        assert opened.ask(hits) == steps, text
    opened.ask("viewer.go(0)")
    opened.page.locator("#search").fill("dma")
    opened.page.keyboard.press("Enter")
    assert at(opened) == 6


def hovered(shown, number, row, column):
    """What the tooltip says over an element of the heat map of an operand."""
    box = shown.page.locator(".map").nth(number).bounding_box()
    down, across = shown.ask(f"[viewer.maps[{number}].down, viewer.maps[{number}].across]")
    x, y = (column + 0.5) / across * box["width"], (row + 0.5) / down * box["height"]
    shown.page.mouse.move(box["x"] + x, box["y"] + y)
    return shown.page.inner_text("#tooltip")


def test_the_value_under_the_pointer_is_numpys(opened):
    press(opened, "ArrowRight")
    for row, column in [(0, 0), (3, 17), (127, 23)]:
        assert hovered(opened, 0, row, column) == f"[{row}, {column}] = {X[row, column]!s}"
        assert hovered(opened, 1, row, column) == f"[{row}, {column}] = {2 * X[row, column]!s}"


def test_arrow_keys_show_the_values_of_a_focused_map(opened):
    press(opened, "ArrowRight")
    opened.page.locator(".map").first.focus()
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowDown")
    assert opened.page.inner_text("#tooltip") == f"[1, 0] = {X[1, 0]!s}"
    assert at(opened) == 2


@nki.jit
def half_written(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile[:, :4], x[:, :4])
    nisa.dma_copy(out, tile)
    return out


def test_never_written_elements_are_marked(page_of):
    shown = page_of(nki.show(half_written)(X[:128, :8].copy()))
    assert press(shown, "n") == 2 and "never written" in shown.page.inner_text("#count")
    assert "512 never written" in shown.page.inner_text("#operands")
    assert hovered(shown, 0, 5, 6) == "[5, 6] never written"
    assert hovered(shown, 0, 5, 3) == f"[5, 3] = {X[5, 3]!s}"
    pixels = "[...viewer.maps[0].canvas.getContext('2d').getImageData(0, 0, 8, 1).data]"
    assert shown.ask(pixels)[3::4] == 4 * [255] + 4 * [0]  # the hatching behind the map shows


@nki.jit
def wide(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.dma_copy(out, tile)
    return out


def test_a_large_map_shows_the_means_of_blocks(page_of):
    x = RANDOM.standard_normal((128, 1024)).astype(np.float32)
    shown = page_of(nki.show(wide)(x))
    at(shown)
    place, _, mean = hovered(shown, 0, 1, 2).partition(" mean ")
    assert place == "[2:4, 32:48]"
    assert float(mean) == pytest.approx(x[2:4, 32:48].mean(), rel=2**-7)


def test_a_large_map_of_steps_that_were_asked_for_has_every_value(page_of):
    x = RANDOM.standard_normal((128, 1024)).astype(np.float32)
    shown = page_of(nki.show(wide, steps=range(1, 2))(x))
    assert press(shown, "ArrowRight") == 2
    for row, column in [(0, 0), (77, 801), (127, 1023)]:
        text = shown.ask(f"viewer.maps[0].text({row}, {column})")
        assert text == f"[{row}, {column}] = {x[row, column]!s}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows_light_or_dark_at_any_width(page_of, viewer, scheme, width):
    shown = page_of(viewer, color_scheme=scheme)
    shown.page.set_viewport_size({"width": width, "height": 844})
    press(shown, "End")
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert shown.ask(overflow) == 0
    ground = shown.ask("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(243, 245, 248)") == (scheme == "light")


def test_a_step_without_maps_has_its_figures_and_names_the_command_for_more(page_of):
    shown = page_of(nki.show(scaled, megabytes=0.002)(X))
    every = shown.ask("viewer.run.every")
    assert every > 1 and press(shown, "ArrowRight") == 2
    assert f"one step in {every}" in shown.page.inner_text("#sampled")
    assert "--steps 1:12" in shown.page.inner_text("#sampled")
    assert "its values are not in this file" in shown.page.inner_text("#operands")
    assert f"max {float(2 * X[:128].max()):.4g}" in shown.page.inner_text("#operands")
    assert press(shown, "Home", "n") == 3  # breakpoints on values are exact


def test_pages_without_values_or_steps_open_too(page_of):
    shown = page_of(nki.show(scaled)(nki.TensorSpec((256, 24), "float32")))
    assert press(shown, "End") == 12 and "no values" in shown.page.inner_text("#operands")
    with pytest.warns(nki.NkiWarning):
        empty = nki.show(nothing)(X)
    assert "no instruction" in page_of(empty).page.inner_text("#what")


def test_a_notebook_shows_the_page_in_a_frame(viewer, chromium):
    page = chromium.new_page()
    page.set_content(viewer._repr_html_())
    page.frame_locator("iframe").locator("html[data-ready=yes]").wait_for(state="attached")
    assert "1 / 12" in page.frame_locator("iframe").locator("#count").inner_text()
    page.close()
