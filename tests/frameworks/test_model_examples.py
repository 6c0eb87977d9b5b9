"""The models in examples/ agree with those of transformers and of PyTorch, and have modelled times."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Load an example by its name; kernels are those of trn2."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")

    def load(name):
        if name != "video_block":
            pytest.importorskip("transformers", reason="transformers is not installed")
        return runpy.run_path(str(EXAMPLES / f"{name}.py"))

    return load


def shares(said):
    return [float(share) for share in re.findall(r"([\d.]+)%", said)]


def test_qwen_is_as_near_to_float32_as_the_model_in_bfloat16(example):
    steps = example("qwen3_5")["compare"](batch=1, tokens=130, decoded=2)
    assert len(steps) == 2
    for ours, theirs in steps:
        assert ours < 1.2 * theirs < 0.04


def test_kimi_token_by_token_is_as_near_to_float32_as_the_layer_in_bfloat16(example):
    ours, theirs = example("kimi_linear")["compare"](batch=2, tokens=4)
    assert ours < 1.2 * theirs < 0.02


def test_gpt_oss_with_mxfp4_experts_finds_the_tokens_of_the_model(example, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    ours, theirs, hits, drawn = example("gpt_oss")["compare"](tokens=40)
    assert ours < 0.08 and theirs < 0.08 and hits >= 4 and drawn


def test_a_layer_of_deepseek_agrees_where_the_same_keys_are_chosen(example, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    errors, share = example("deepseek_v32")["compare"](tokens=32)
    assert errors["attention"][0] < 0.1 and errors["experts"][0] < 0.15 and share > 0.6


def test_both_directions_of_the_detector_equal_the_model(example):
    errors = example("deformable_detector")["compare"]()
    assert len(errors) == 18 and max(errors.values()) < 1e-5


def test_the_video_network_trains_like_the_one_in_torch(example):
    ours, theirs = example("video_block")["compare"](steps=10)
    assert ours[-1] < ours[0] / 2 and ours == pytest.approx(theirs, rel=1e-5)


def test_a_layer_of_kimi_has_modelled_times(example, capsys):
    kimi = example("kimi_linear")
    sizes = {"hidden_size": 256, "intermediate_size": 256, "linear_head_dim": 32, "linear_num_heads": 4}
    kimi["profile"](2, **sizes)
    said = capsys.readouterr().out
    assert "kda_tkg" in said and sum(shares(said)) == pytest.approx(100, abs=0.6)


def test_a_small_video_and_a_small_image_have_modelled_times(example, capsys):
    example("video_block")["profile"](frames=4, size=8, channels=(3, 4, 8))
    said = capsys.readouterr().out
    assert said.count(" 2 calls") == 4 and sum(shares(said)) == pytest.approx(100, abs=0.6)
    example("deformable_detector")["profile"](((6, 8), (3, 4)), heads=2, size=16, points=2)
    said = capsys.readouterr().out
    assert "60 queries" in said and sum(shares(said)) == pytest.approx(100, abs=0.6)
