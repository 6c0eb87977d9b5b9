"""The encoder of a Whisper model of Hugging Face on library kernels, compared with the model itself.

python examples/whisper_encoder.py [--frames 3000 --width 384 --heads 6 --layers 4]

The weights are random; nothing is downloaded. One kernel is defined here: the library has no separate layer
norm.
"""

import argparse

import torch
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

import nki
import nki.language as nl
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.mlp.mlp import mlp
from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.utils.common_types import ActFnType, NormType
from nkilib.experimental.conv.conv1d import conv1d

LNC = 2  # physical cores of a logical one
EPS = 1e-5


@nki.jit
def add_layer_norm(x, y, gamma, beta):
    """x + y, and its layer norm; x and y [B, S, H], gamma and beta [1, H]."""
    total = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    normed = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    batches, tokens, width = x.shape
    for batch in range(nl.program_id(0), batches, nl.num_programs(0)):  # cores take turns
        for start in range(0, tokens, nl.tile_size.pmax):
            rows = slice(start, min(start + nl.tile_size.pmax, tokens))
            count = rows.stop - rows.start
            scale = nl.load(gamma.broadcast(0, count))
            shift = nl.load(beta.broadcast(0, count))
            s = nl.add(nl.load(x[batch, rows]), nl.load(y[batch, rows]))
            centred = nl.subtract(s, nl.mean(s, axis=1, dtype=nl.float32), dtype=nl.float32)
            variance = nl.mean(nl.square(centred), axis=1)
            unit = nl.multiply(centred, nl.rsqrt(nl.add(variance, EPS)))
            nl.store(total[batch, rows], s)
            nl.store(normed[batch, rows], nl.add(nl.multiply(unit, scale), shift))
    return total, normed


def row(vector):
    return vector[None].contiguous()


def convolved(x, conv):
    """[B, C_in, L]; the kernel takes its filters as [K, C_in, C_out]."""
    filters = conv.weight.permute(2, 1, 0).contiguous()
    padding, stride = (conv.padding[0], conv.padding[0]), conv.stride[0]
    return conv1d[LNC](x, filters, conv.bias, stride, padding, activation_fn=ActFnType.GELU, lnc_shard=True)


def attended(normed, attention):
    """Self-attention of normalised tokens [B, S, H]. The projections contract N heads of D features."""
    batches, tokens, width = normed.shape
    heads, depth = attention.num_heads, attention.head_dim
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = torch.cat([p.weight for p in projections]).T.contiguous()
    bias = torch.cat([torch.zeros(width).to(weight) if p.bias is None else p.bias for p in projections])
    features = normed.transpose(1, 2).reshape(batches, heads, depth, tokens)
    qkv = output_projection_cte[LNC](features, weight, row(bias))
    by_head = qkv.reshape(batches, tokens, 3, heads, depth).permute(2, 0, 3, 1, 4)
    q, k, v = by_head.reshape(3, batches * heads, tokens, depth)
    out = attention_cte[LNC](q, k, v, scale=depth**-0.5, causal_mask=False, tp_k=True, tp_out=True)
    merged = attention.out_proj
    out = out.reshape(batches, heads, depth, tokens)
    return output_projection_cte[LNC](out, merged.weight.T.contiguous(), row(merged.bias))


def encoded(encoder, features):
    """Return what encoder(features) returns: [B, S, H] for features [B, mels, 2 S]."""
    x = convolved(convolved(features, encoder.conv1), encoder.conv2).transpose(1, 2).contiguous()
    update = encoder.embed_positions.weight[None].expand_as(x).contiguous()
    norms = [layer.self_attn_layer_norm for layer in encoder.layers] + [encoder.layer_norm]
    for layer, norm in zip(encoder.layers, norms, strict=False):
        x, normed = add_layer_norm[LNC](x, update, row(norm.weight), row(norm.bias))
        update, x = mlp[LNC](
            hidden_tensor=attended(normed, layer.self_attn),
            fused_add_tensor=x,
            store_fused_add_result=True,
            normalization_type=NormType.LAYER_NORM,
            normalization_weights_tensor=row(layer.final_layer_norm.weight),
            normalization_bias_tensor=row(layer.final_layer_norm.bias),
            eps=EPS,
            gate_proj_weights_tensor=None,
            skip_gate_proj=True,
            up_proj_weights_tensor=layer.fc1.weight.T.contiguous(),
            up_proj_bias_tensor=row(layer.fc1.bias),
            down_proj_weights_tensor=layer.fc2.weight.T.contiguous(),
            down_proj_bias_tensor=row(layer.fc2.bias),
            activation_fn=ActFnType.GELU,
        )
    return add_layer_norm[LNC](x, update, row(norms[-1].weight), row(norms[-1].bias))[1]


def random_encoder(frames, width, heads, layers):
    """An encoder in bfloat16 whose norms and biases are not those of a fresh model, 1 and 0."""
    torch.manual_seed(0)
    config = WhisperConfig(
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        max_source_positions=frames // 2,
    )
    encoder = WhisperEncoder(config).eval()
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "embed" not in name:
                parameter.copy_(torch.randn_like(parameter) / parameter[0].numel() ** 0.5)
    return encoder.to(torch.bfloat16)


def relative_error(found, exact):
    return ((found.float() - exact).norm() / exact.norm()).item()


@torch.no_grad()
def compare(batches, frames, width, heads, layers):
    """Return the distances of our encoder and of the bfloat16 model from the float32 model."""
    encoder = random_encoder(frames, width, heads, layers)
    features = torch.randn(batches, encoder.config.num_mel_bins, frames).to(torch.bfloat16)
    ours, theirs = encoded(encoder, features), encoder(features).last_hidden_state
    exact = encoder.float()(features.float()).last_hidden_state
    return relative_error(ours, exact), relative_error(theirs, exact)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batches", 2), ("frames", 300), ("width", 128), ("heads", 2), ("layers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    ours, theirs = compare(**options)
    sizes = ", ".join(f"{name} {size}" for name, size in options.items())
    print(f"{sizes}: off the float32 model by {ours:.5f}, the bfloat16 model by {theirs:.5f}")


if __name__ == "__main__":
    main()
