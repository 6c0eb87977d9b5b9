"""The deformable attention of a detector of Hugging Face on library kernels, compared with the model.

python examples/deformable_detector.py             an encoder layer and all its gradients
python examples/deformable_detector.py --profile   models both directions at the size of an 800 x 1066 image

Deformable attention and both layer norms are kernels in both directions; PyTorch does the projections. The
weights are random and nothing is downloaded.
"""

import argparse

import torch
from torch import nn
from transformers import DeformableDetrConfig
from transformers.models.deformable_detr.modeling_deformable_detr import DeformableDetrEncoderLayer

from modelled import Calls, relative_error
from nkilib import autograd
from nkilib.experimental.deformable_attention import ms_deformable_attention, ms_deformable_attention_bwd
from nkilib.experimental.norm import layer_norm, layer_norm_bwd

LEVELS = ((9, 13), (5, 7), (3, 4))  # the feature maps of a small image
FULL_LEVELS = ((100, 134), (50, 67), (25, 34), (13, 17))  # strides 8 to 64 of 800 x 1066

LAYERS = 6  # of the encoder


def starts(levels):
    """Return the first cell of each level."""
    return tuple(sum(h * w for h, w in levels[:i]) for i in range(len(levels)))


class KernelAttention(nn.Module):
    """Takes the place of MultiScaleDeformableAttention."""

    def forward(self, value, _shapes, shapes, _starts, locations, weights, _step):
        return autograd.ms_deformable_attention(
            value.contiguous(), tuple(shapes), starts(shapes), locations.contiguous(), weights.contiguous()
        )


class KernelNorm(nn.Module):
    """Takes the place of LayerNorm, with its parameters."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x):
        return autograd.layer_norm(x.flatten(0, 1), self.weight, self.bias, self.eps).reshape(x.shape)


def on_kernels(layer):
    """Replace deformable attention and norms of an encoder layer."""
    layer.self_attn.attn = KernelAttention()
    layer.self_attn_layer_norm = KernelNorm(layer.self_attn_layer_norm)
    layer.final_layer_norm = KernelNorm(layer.final_layer_norm)
    return layer


def random_layer():
    """A small layer whose points and weights differ between queries, unlike those of a fresh one."""
    torch.manual_seed(0)
    config = DeformableDetrConfig(
        d_model=64, encoder_attention_heads=4, encoder_ffn_dim=128, num_feature_levels=3, encoder_n_points=2
    )
    layer = DeformableDetrEncoderLayer(config).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def centres(levels, dtype):
    """Return the centre of every cell as (x, y) for each level it looks at, [1, cells, levels, 2]."""
    found = []
    for height, width in levels:
        y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        found.append(torch.stack([x.flatten() / width, y.flatten() / height], -1))
    return torch.cat(found)[None, :, None].repeat(1, 1, len(levels), 1).to(dtype)


def gradients(layer, x, positions):
    """Return the output of a layer, and the gradients of its input and parameters."""
    x = x.clone().requires_grad_()
    y = layer(
        x,
        None,
        spatial_position_embeddings=positions,
        reference_points=centres(LEVELS, x.dtype),
        spatial_shapes=torch.tensor(LEVELS),
        spatial_shapes_list=list(LEVELS),
        level_start_index=torch.tensor(starts(LEVELS)),
    )
    weight = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)  # their sum is not 0
    (y * weight).sum().backward()
    return {"output": y, "input": x.grad} | {name: p.grad for name, p in layer.named_parameters()}


def compare():
    """Return the relative errors of the output and of every gradient against the model in float64."""
    cells = sum(h * w for h, w in LEVELS)
    layer = random_layer()
    x, positions = torch.randn(2, cells, 64), 0.1 * torch.randn(1, cells, 64)
    exact = gradients(random_layer().double(), x.double(), positions.double())
    ours = gradients(on_kernels(layer), x, positions)
    return {name: relative_error(ours[name], exact[name]) for name in exact}


def profile(levels=FULL_LEVELS, heads=8, size=32, points=4):
    """Print the modelled times of a layer's kernels for an image in float32, as the model has them."""
    cells, run = sum(h * w for h, w in levels), Calls()

    def meta(*shape):
        return torch.empty(shape, device="meta")

    value, vector = meta(1, cells, heads, size), meta(heads * size)
    locations = meta(1, cells, heads, len(levels), points, 2)
    y = run(ms_deformable_attention, value, levels, starts(levels), locations, locations[..., 0])
    run(ms_deformable_attention_bwd, y, value, levels, starts(levels), locations, locations[..., 0])
    rows = meta(cells, heads * size)
    for _ in range(2):
        run(layer_norm, rows, vector, vector)
        run(layer_norm_bwd, rows, rows, vector)
    print(run.table(f"both directions of an encoder layer, {cells} queries in {len(levels)} levels"))
    print(f"{LAYERS} layers: {LAYERS * sum(run.us.values()) / 1e3:,.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="an encoder layer on the timing model")
    if parser.parse_args().profile:
        profile()
        return
    errors = compare()
    worst = max(errors, key=errors.get)
    print(f"output off the float64 model by {errors['output']:.1e}")
    print(f"{len(errors) - 1} gradients off by at most {errors[worst]:.1e}, that of {worst}")


if __name__ == "__main__":
    main()
