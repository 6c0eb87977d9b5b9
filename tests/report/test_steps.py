"""nki.show: a page that steps through a kernel."""

from __future__ import annotations

import json
import re

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def halves(x):
    """Doubles the right half of x."""
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    half = x.shape[1] // 2
    nisa.tensor_scalar(tile[:, half:], tile[:, half:], op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def data_of(steps):
    text = steps.html()
    return json.loads(re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL)[1])


def test_each_instruction_is_a_step_with_its_line():
    shown = data_of(nki.show(halves)(X))
    assert [step["name"] for step in shown["steps"]] == ["dma_copy", "tensor_scalar", "dma_copy"]
    assert [step["engine"] for step in shown["steps"]] == ["dma", "vector", "dma"]
    source = shown["sources"][__file__]
    lines = [source["lines"][step["line"] - source["first"]].strip() for step in shown["steps"]]
    assert lines[1].startswith("nisa.tensor_scalar(tile[:, half:]")


def test_tiles_have_their_memory_and_the_users_name():
    shown = data_of(nki.show(halves)(X))
    assert [(t["memory"], t["label"]) for t in shown["tiles"]] == [
        ("hbm", "x"),
        ("sbuf", "tile"),
        ("hbm", "out"),
    ]


def test_the_box_of_a_view_is_where_the_view_lies():
    step = data_of(nki.show(halves)(X))["steps"][1]
    assert {tuple(v["box"]) for v in step["views"]} == {(0.0, 1.0, 0.5, 1.0)}
    assert [v["role"] for v in step["views"]] == ["reads", "writes"]


def test_values_are_those_after_the_step():
    step = data_of(nki.show(halves)(X))["steps"][1]
    assert step["views"][1]["values"] == ["4", "6", "12", "14"]


def test_shapes_alone_show_no_values():
    steps = nki.show(halves)(nki.TensorSpec((2, 4), "float32"))
    assert all("values" not in v for step in data_of(steps)["steps"] for v in step["views"])
    assert steps.count == 3


def test_a_long_kernel_reports_how_many_steps_are_left_out(monkeypatch):
    monkeypatch.setattr("nki.report.steps.MOST_STEPS", 2)
    assert data_of(nki.show(halves)(X))["left_out"] == 1


def test_the_page_is_whole_and_shows_itself_in_a_notebook():
    steps = nki.show(halves)(X)
    assert "http:" not in re.sub(r'"application/json">.*?</script>', "", steps.html(), flags=re.DOTALL)
    assert steps._repr_html_().startswith("<iframe")


def test_a_run_is_not_changed_by_being_shown():
    x = X.copy()
    nki.show(halves)(x)
    assert np.array_equal(x, X)
    assert np.array_equal(halves(x)[:, 2:], 2 * X[:, 2:])
