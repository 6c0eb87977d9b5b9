"""Every parameter that AWS documents is one of ours, in its place and with its default.

data/documented_kernels.json has the names and defaults of the pages of the Neuron SDK 2.32, and
of mla_sparse_attention_cte_kernel those of 2.33.
"""

import enum
import inspect
import json
from pathlib import Path

import pytest

from nkilib import catalogue

PAGES = json.loads((Path(__file__).parents[1] / "data" / "documented_kernels.json").read_text("utf-8"))
BUILT = {kernel.name: kernel.target for kernel in catalogue.kernels() if kernel.is_built}
OTHERWISE = {  # (kernel, parameter): our default, and why
    ("conv3d_transpose", "filter_shape"): "'KDHW_CI_CO'",  # the page names a private constant
    ("transformer_tkg", "attention_mask"): "None",  # the masks of older releases may take its place
    ("transformer_tkg", "position_ids"): "None",
    ("transformer_tkg", "num_layers"): "0",
}
for step in PAGES:  # None is the SkipMode that skips nothing
    if PAGES[step]["page"] == "bwmm-shard-on-block-v2" and PAGES[step]["parameters"].get("skip_dma"):
        OTHERWISE[step, "skip_dma"] = "None"


def plain(default):
    """Return a default as text, without the module it comes from."""
    return (
        default
        if default is None
        else default.replace("'", '"').removeprefix("nl.").removeprefix("common_types.")
    )


def default_of(parameter):
    default = parameter.default
    if default is inspect.Parameter.empty:
        return None
    named = isinstance(default, enum.Enum)
    return plain(f"{type(default).__name__}.{default.name}" if named else repr(default))


@pytest.mark.parametrize("name", [name for name in PAGES if name in BUILT])
def test_parameters_and_defaults_are_those_of_the_page(name):
    ours, page = inspect.signature(BUILT[name]).parameters, PAGES[name]["parameters"]
    assert [parameter for parameter in page if parameter not in ours] == []
    assert [parameter for parameter in ours if parameter in page] == list(page)
    for parameter, default in page.items():
        assert default_of(ours[parameter]) == plain(OTHERWISE.get((name, parameter), default)), parameter


def test_the_pages_of_older_releases_are_all_compared():
    older = {kernel.name for kernel in catalogue.kernels() if kernel.page.startswith("L") and kernel.is_built}
    assert len(older & PAGES.keys()) >= 70
