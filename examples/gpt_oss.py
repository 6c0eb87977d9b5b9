"""GPT-OSS on library kernels: sliding window, sinks, MXFP4 experts, sampling tail; compared with the model.

export NEURON_PLATFORM_TARGET_OVERRIDE=trn3         MX needs trn3
python examples/gpt_oss.py [--tokens 48]            compares with the model of transformers
python examples/gpt_oss.py --profile                models a step of the 20B model

The weights are random and nothing is downloaded; the 20B model has only shapes.
"""

import argparse

import numpy as np
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from modelled import Calls, relative_error
from nki import mx
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.qkv.qkv_cte import qkv_cte
from nkilib.core.utils.common_types import (
    ActFnType,
    ExpertAffinityScaleMode,
    NormType,
    QKVOutputLayout,
    RouterActFnType,
)
from nkilib.experimental.foreach.foreach_elementwise import add_tensor_kernel
from nkilib.experimental.gpt_oss_tail import gpt_oss_tail_chunked_megakernel
from nkilib.experimental.moe_block.mx_moe_block_tkg_wrapper import mx_moe_block_tkg_wrapper

# ---- MXFP4 weights in the layout of the kernel ---------------------------------------------------


def rows_of_words(size):
    """Return the row of a weight [size, N] in each tile, partition and lane: [tiles, 128, 4]."""
    t, p, q = np.ogrid[: size // 512, :128, :4]
    return q * (size // 4) + t * 128 + p


def columns_of_words(size):
    """Return the same of the down projection, whose last tile may be short: [tiles, partitions, 4]."""
    tiles = []
    for start in range(0, size, 512):
        width = min(512, size - start) // 4
        p, q = np.ogrid[: min(128, size // 4), :4]
        tiles.append(np.where(p < width, start + width * q + p, -1))
    return np.stack(tiles)


def lanes(weight, places):
    """Return the elements [tiles, partitions, N, 4] of a weight [rows, N]; 0 where there is none."""
    return np.where((places >= 0)[..., None], weight[places], 0).transpose(0, 1, 3, 2)


def in_mxfp4(weight, places):
    """Return words [partitions, tiles, N], their scales, and the weight that they stand for."""
    tiles, rows, _ = places.shape
    flat = np.ascontiguousarray(lanes(weight, places)).reshape(tiles * rows, -1).astype(np.float32)
    data, scales = mx.quantize_lanes(flat, "float4_e2m1fn", "ocp")
    values = mx.dequantize_lanes(data, scales).reshape(tiles, rows, -1, 4).transpose(0, 1, 3, 2)
    seen = np.zeros(weight.shape, np.float32)
    seen[places[places >= 0]] = values[places >= 0]
    words = mx.pack_x4(data).view(np.uint16).reshape(tiles, rows, -1).swapaxes(0, 1)
    return words, scales.reshape(tiles, rows // 8, -1).swapaxes(0, 1), seen


class Experts:
    """The experts of a layer: MXFP4 words, scales and biases. It rounds the model's weights to MXFP4 too."""

    def __init__(self, experts):
        hidden, inner = experts.hidden_size, experts.intermediate_size
        rows, columns = rows_of_words(hidden), columns_of_words(inner)
        self.given: dict = {}
        if experts.gate_up_proj.is_meta:
            self.shapes(experts.num_experts, hidden, inner, columns)
            return
        found = []
        for gate_up, down in zip(experts.gate_up_proj, experts.down_proj, strict=True):
            wide = gate_up.float().numpy()
            parts = [in_mxfp4(wide[:, i::2], rows) for i in (0, 1)]
            last = in_mxfp4(down.float().numpy(), columns)
            for i in (0, 1):
                gate_up[:, i::2] = torch.from_numpy(parts[i][2])
            down.copy_(torch.from_numpy(last[2]))
            found.append([np.stack([part[i] for part in parts], 1) for i in (0, 1)] + [last[0], last[1]])
        names = ("gate_up_weights", "gate_up_weights_scale", "down_weights", "down_weights_scale")
        for i, name in enumerate(names):
            self.given[f"expert_{name}"] = torch.from_numpy(np.stack([one[i] for one in found]))
        bias = experts.gate_up_proj_bias.detach().clone()
        bias[:, 1::2] += 1.0  # the model multiplies by up + 1; the limits of up move with it
        pairs = np.stack([lanes(bias[:, i::2].T.float().numpy(), columns) for i in (0, 1)])
        self.given["expert_gate_up_bias"] = torch.from_numpy(
            np.ascontiguousarray(pairs.transpose(3, 2, 0, 1, 4))
        ).to(bias.dtype)
        self.given["expert_down_bias"] = experts.down_proj_bias.detach()

    def shapes(self, count, hidden, inner, columns):
        """Fill in tensors without data."""
        tiles, rows, _ = columns.shape

        def meta(*shape, dtype=torch.bfloat16):
            return torch.empty(count, *shape, dtype=dtype, device="meta")

        self.given = {
            "expert_gate_up_weights": meta(128, 2, hidden // 512, inner, dtype=torch.uint16),
            "expert_gate_up_weights_scale": meta(16, 2, hidden // 512, inner, dtype=torch.uint8),
            "expert_down_weights": meta(rows, tiles, hidden, dtype=torch.uint16),
            "expert_down_weights_scale": meta(rows // 8, tiles, hidden, dtype=torch.uint8),
            "expert_gate_up_bias": meta(rows, 2, tiles, 4),
            "expert_down_bias": meta(hidden),
        }


# ---- the model -----------------------------------------------------------------------------------


class Layer:
    """The weights of a decoder layer in the layouts of the kernels."""

    def __init__(self, layer, config, run):
        net, self.run, self.config = layer.self_attn, run, config
        self.heads, self.kv_heads, self.depth = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.window, self.sinks = net.sliding_window, net.sinks.detach()
        scale = self.depth**-0.5  # attention with a window takes scaled queries
        weights = (scale * net.q_proj.weight, net.k_proj.weight, net.v_proj.weight)
        biases = (scale * net.q_proj.bias, net.k_proj.bias, net.v_proj.bias)
        self.qkv, self.bias = torch.cat(weights).T.contiguous(), torch.cat(biases)[None]
        self.out, self.out_bias = net.o_proj.weight.T.contiguous(), net.o_proj.bias[None]
        self.gamma, self.gamma_moe = (
            layer.input_layernorm.weight[None],
            layer.post_attention_layernorm.weight[None],
        )
        self.router, self.router_bias = layer.mlp.router.weight.T.contiguous(), layer.mlp.router.bias[None]
        self.experts = Experts(layer.mlp.experts)

    def attended(self, x, tables):
        """Return the attention of x [B, S, H] behind its norm and projection."""
        batch, tokens, _ = x.shape
        qkv = self.run(
            qkv_cte,
            x,
            self.qkv,
            QKVOutputLayout.NBSd,
            bias=self.bias,
            fused_norm_type=NormType.RMS_NORM,
            gamma_norm_weights=self.gamma,
            norm_eps=self.config.rms_norm_eps,
            fused_rope=True,
            **tables,
            d_head=self.depth,
            num_q_heads=self.heads,
            num_kv_heads=self.kv_heads,
        ).to(x.dtype)
        q, k, v = qkv.transpose(0, 1).split((self.heads, self.kv_heads, self.kv_heads), 1)
        q, k, v = (t.flatten(0, 1).contiguous() for t in (q, k, v))
        sinks = self.sinks.repeat(batch)[:, None].float()
        y = self.run(attention_cte, q, k, v, sink=sinks, sliding_window=self.window, tp_k=True, tp_out=True)
        y = y.reshape(batch, self.heads, self.depth, tokens)
        return self.run(output_projection_cte, y, self.out, self.out_bias)

    def forward(self, x, tables):
        """Return the layer of x [B, S, H], up to 128 tokens; each token goes to its chosen experts."""
        update = self.attended(x, tables)
        limit = getattr(self.config, "swiglu_limit", 7.0)  # older configurations do not name it
        out, total = self.run(
            mx_moe_block_tkg_wrapper,
            x,
            self.gamma_moe,
            self.router,
            **self.experts.given,
            router_bias=self.router_bias,
            eps=self.config.rms_norm_eps,
            top_k=self.config.num_experts_per_tok,
            router_act_fn=RouterActFnType.SOFTMAX,
            router_pre_norm=False,  # the softmax is that of the chosen logits
            expert_affinities_scaling_mode=ExpertAffinityScaleMode.POST_SCALE,
            hidden_act_fn=ActFnType.Swish,
            gate_clamp_upper_limit=limit,
            up_clamp_upper_limit=limit + 1.0,
            up_clamp_lower_limit=1.0 - limit,
            skip_router_logits=True,
            residual=update,
        )
        one = torch.ones(128, 1, device=x.device)
        return self.run(add_tensor_kernel, total, out, one, x.numel()).reshape(x.shape)


class GptOss:
    """Layers, head and choice of candidates of a GptOssForCausalLM; it looks up the embeddings."""

    def __init__(self, model, run):
        self.model, self.run, self.config = model.model, run, model.config
        self.layers = [Layer(layer, model.config, run) for layer in model.model.layers]
        self.gamma, self.head = model.model.norm.weight[None], model.lm_head.weight.T.contiguous()

    def tables(self, x):
        """Return the cosines and sines of all positions, [B, S, d]."""
        positions = torch.arange(x.shape[1], device=x.device)[None].expand(x.shape[:2])
        cos, sin = self.model.rotary_emb(x, positions)
        return {"cos_cache": torch.cat([cos, cos], -1), "sin_cache": torch.cat([sin, sin], -1)}

    def hidden(self, tokens):
        """Return the hidden states of tokens [B, S] behind the last layer."""
        x = self.model.embed_tokens(tokens)
        tables = self.tables(x)
        for layer in self.layers:
            x = layer.forward(x, tables)
        return x

    def sample(self, x, k, top_p=0.9, temperature=0.7, size=None):
        """Return a next token of each sequence, [B, 1], and its k candidates, likely ones first, [B, k]."""
        last = x[:, -1].contiguous()
        params = torch.tensor([[0.0, top_p, temperature]]).repeat(len(x), 1).to(x.device)
        token, _, candidates = self.run(
            gpt_oss_tail_chunked_megakernel,
            last,
            self.gamma,
            self.head,
            self.config.rms_norm_eps,
            hidden_actual=size,
            k=k,
            sampling_params=params,
            emit_logits=False,
        )
        return token, candidates


# ---- comparison and modelled times ---------------------------------------------------------------


def random_model():
    """A small model with a layer of each kind, in float32; its norms are not those of a fresh model."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.05,
        attn_implementation="eager",
    )
    model = GptOssForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif parameter.dim() == 1 or name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def compare(tokens, k=5):
    """Return the distances of our hidden states and the bfloat16 model's from float32, hits in k, the token.

    Hits are those of the k most likely tokens of the float32 model that the kernels find; the token is drawn
    from ours.
    """
    model = random_model()
    for layer in model.model.layers:
        Experts(layer.mlp.experts)  # both models have the weights that MXFP4 can hold
    text = torch.randint(0, model.config.vocab_size, (1, tokens))
    norm, keep = model.model.norm, {}
    hook = norm.register_forward_pre_hook(lambda _, inputs: keep.update(x=inputs[0]))
    logits = model(text).logits[:, -1]
    exact = keep["x"]
    model = model.to(torch.bfloat16)
    model(text)
    theirs = keep["x"]
    hook.remove()
    oss = GptOss(model, Calls())
    x = oss.hidden(text)
    token, found = oss.sample(x, k)
    likely = logits[0].topk(k).indices.tolist()
    common = len(set(found[0].tolist()) & set(likely))
    return relative_error(x, exact), relative_error(theirs, exact), common, token.item() in found[0].tolist()


@torch.no_grad()
def profile(config, tokens):
    """Print the modelled times of a layer of each kind, of the tail and of all layers, on two cores."""
    total = 0.0
    with torch.device("meta"):
        model = GptOssForCausalLM(config).to(torch.bfloat16)
        oss = GptOss(model, None)
        x = torch.empty(1, tokens, config.hidden_size, dtype=torch.bfloat16)
        for kind, layer in zip(config.layer_types, oss.layers, strict=True):
            layer.run = Calls()
            layer.forward(x, oss.tables(x))
            print(layer.run.table(f"{kind}, {tokens} tokens"), flush=True)
            total += LAYERS // 2 * sum(layer.run.us.values())
        oss.run = Calls()
        oss.sample(x.transpose(0, 1), 64, size=HIDDEN)
        print(oss.run.table("norm, head and sampling"))
    total += sum(oss.run.us.values())
    print(f"{LAYERS} layers and the tail, {tokens} tokens: {total / 1e3:,.1f} ms")


LAYERS, HIDDEN = 24, 2880  # of the 20B model


def twenty_billion():
    """The sizes of the 20B model, whose channels are padded to 3072: MX weights have tiles of 512."""
    return GptOssConfig(
        hidden_size=3072,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_local_experts=32,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=201088,
        layer_types=["sliding_attention", "full_attention"],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--profile", action="store_true", help="a step of the 20B model on the timing model")
    options = parser.parse_args()
    if options.profile:
        profile(twenty_billion(), options.tokens or 4)
        return
    ours, theirs, common, _ = compare(options.tokens or 48)
    print(f"hidden states off the float32 model by {ours:.4f}, the bfloat16 model by {theirs:.4f}")
    print(f"{common} of the 5 most likely tokens are those of the float32 model")


if __name__ == "__main__":
    main()
