"""Qwen 3.5 on library kernels: Gated DeltaNet and attention, prefill and decode; compared with the model.

python examples/qwen3_5.py [--tokens 140 --decoded 3]        compares with the model of transformers
python examples/qwen3_5.py --profile [--context 2048]        models two layers of the 9B model on Trainium

The weights are random and nothing is downloaded; the 9B model has only shapes.
"""

import argparse

import torch
from transformers import Qwen3_5TextConfig, Qwen3_5TextModel

from decoder_layer import Layer, joined
from head_kernels import activated_heads, gated, gated_norm, gates
from modelled import Calls, relative_error
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.attention.attention_tkg import AttnTKGConfig, attention_tkg
from nkilib.core.utils.common_types import QKNormConfig, QKVOutputLayout
from nkilib.experimental.conv.depthwise_conv1d import depthwise_conv1d_implicit_gemm
from nkilib.experimental.gdn import gdn_cte, gdn_tkg
from nkilib.experimental.norm import rms_norm

# ---- the layers ----------------------------------------------------------------------------------


def gamma(norm):
    """Return the factors of a norm, [1, H]; Qwen stores their differences from 1."""
    return (1.0 + norm.weight)[None].contiguous()


class QwenLayer(Layer):
    """What both kinds of layers share."""

    def __init__(self, layer, run):
        super().__init__(layer, run, gamma(layer.input_layernorm), gamma(layer.post_attention_layernorm))


class DeltaLayer(QwenLayer):
    """Gated DeltaNet: its weights, the last inputs of its convolution, and its state."""

    def __init__(self, layer, run):
        super().__init__(layer, run)
        self.net = net = layer.linear_attn
        self.into = joined(net.in_proj_qkv, net.in_proj_z, net.in_proj_b, net.in_proj_a)
        self.taps = net.conv1d.weight[:, None].contiguous()
        self.out, self.weight = joined(net.out_proj), net.norm.weight.data
        self.inputs = self.state = None

    def project_heads(self, x):
        """Return mixed q, k and v [B, channels, 1, S]; z [B, S, heads, d]; b and a [B S, heads]."""
        n = self.net
        sizes = (n.conv_dim, n.value_dim, n.num_v_heads, n.num_v_heads)
        mixed, z, b, a = self.project(x, self.into).split(sizes, -1)
        z = z.unflatten(-1, (n.num_v_heads, n.head_v_dim)).contiguous()
        return (
            mixed.transpose(1, 2)[:, :, None].contiguous(),
            z,
            *(t.flatten(0, 1).contiguous() for t in (b, a)),
        )

    def heads(self, mixed, normalize):
        """Return q, k and v [B, S, heads, d] of mixed inputs behind the convolution."""
        n = self.net
        rows = mixed[:, :, 0].transpose(1, 2)
        parts = rows.split((n.key_dim, n.key_dim, n.value_dim), -1)
        sizes = ((n.num_k_heads, n.head_k_dim),) * 2 + ((n.num_v_heads, n.head_v_dim),)
        found = []
        for part, size, normal in zip(parts, sizes, (normalize, normalize, False), strict=True):
            tokens = part.flatten(0, 1).unflatten(-1, size).contiguous()
            found.append(self.run(activated_heads, tokens, normal).unflatten(0, rows.shape[:2]))
        return found

    def prefill(self, x, angles):
        """x [B, S, H]; positions do not matter."""
        n, taps = self.net, self.net.conv_kernel_size
        mixed, z, b, a = self.project_heads(x)
        self.inputs = mixed[..., 1 - taps :]
        padding = ((0, 0), (taps - 1, 0))
        mixed = self.run(depthwise_conv1d_implicit_gemm, mixed, self.taps, padding)
        q, k, v = (t.transpose(1, 2).contiguous() for t in self.heads(mixed, True))
        decays = self.run(gates, a, b, n.A_log[None], n.dt_bias[None])
        g, beta = (t.unflatten(0, x.shape[:2]).transpose(1, 2).contiguous() for t in decays)
        y, self.state = self.run(gdn_cte, q, k, v, g, beta, scale=n.head_k_dim**-0.5)
        y = y.transpose(1, 2).contiguous()
        y = self.run(gated_norm, y.flatten(0, 1), z.flatten(0, 1), self.weight, True).reshape(y.shape)
        return self.finish(x, y, self.out)

    def decode(self, x, position):
        """x [B, 1, H]: one token of each sequence."""
        n = self.net
        mixed, z, b, a = self.project_heads(x)
        inputs = torch.cat([self.inputs, mixed], -1)
        self.inputs = inputs[..., 1:]
        mixed = self.run(depthwise_conv1d_implicit_gemm, inputs, self.taps)
        q, k, v = self.heads(mixed, False)
        group = n.num_v_heads // n.num_k_heads
        q, k = (t.repeat_interleave(group, 2) for t in (q, k))
        rows = [t.flatten(0, 2).contiguous() for t in (q, k, v)]
        numbers = (b.flatten(), a.flatten(), n.A_log.data, n.dt_bias.data)
        y, state = self.run(gdn_tkg, *rows, *numbers, z.flatten(0, 2), self.weight, self.state.flatten(0, 1))
        self.state = state.reshape(self.state.shape)
        return self.finish(x, y.reshape(z.shape), self.out)


class AttentionLayer(QwenLayer):
    """Attention with gates: its weights, keys and values.

    Qwen rotates the first r of d channels of a head, channel i with i + r / 2; the kernels rotate all, i with
    i + d / 2. So the channels are put into another order, the same for q and k, and the others have angle 0.
    """

    def __init__(self, layer, run, config, rotary, batch, capacity):
        super().__init__(layer, run)
        net, self.depth = layer.self_attn, config.head_dim
        self.count, self.kv_count = config.num_attention_heads, config.num_key_value_heads
        half = len(rotary.inv_freq)
        order = torch.arange(self.depth).reshape(-1, half)
        order = torch.cat([order[0], order[2::2].flatten(), order[1], order[3::2].flatten()])
        q, gate = net.q_proj.weight.unflatten(0, (self.count, 2, self.depth)).unbind(1)
        q = q[:, order].flatten(0, 1)
        k = net.k_proj.weight.unflatten(0, (self.kv_count, self.depth))[:, order].flatten(0, 1)
        self.qkv = torch.cat([q, k, net.v_proj.weight]).T.contiguous()
        self.gate, self.out = gate.flatten(0, 1).T.contiguous(), joined(net.o_proj)
        self.gammas = [gamma(norm)[:, order].contiguous() for norm in (net.q_norm, net.k_norm)]
        self.inv_freq = torch.zeros(self.depth // 2, 1, device=q.device)
        self.inv_freq[:half, 0] = rotary.inv_freq
        shape = (batch * self.kv_count, 1, self.depth, capacity)
        self.keys = torch.zeros(shape, dtype=q.dtype, device=q.device)
        self.values = torch.zeros_like(self.keys).transpose(2, 3).contiguous()

    def gated(self, x, y):
        """Return y [B, S, heads, d] times the sigmoid of its gate."""
        rows = (t.reshape(-1, self.count * self.depth) for t in (y, self.project(x, self.gate)))
        return self.run(gated, *rows).reshape(y.shape)

    def prefill(self, x, angles):
        """x [B, S, H], angles [S]."""
        batch, tokens, _ = x.shape
        angle = (angles[None, :, None].float() * self.inv_freq[:, 0]).repeat(batch, 1, 2)
        tables = {"cos_cache": angle.cos().to(x.dtype), "sin_cache": angle.sin().to(x.dtype)}
        sizes = {"d_head": self.depth, "num_q_heads": self.count, "num_kv_heads": self.kv_count}
        norms = dict(zip(("qk_norm_pre_rope_q_gamma", "qk_norm_pre_rope_k_gamma"), self.gammas, strict=True))
        options = {"fused_rope": True, "qk_norm_pre_rope": QKNormConfig(), **tables, **sizes, **norms}
        qkv = self.project(x, self.qkv, output_layout=QKVOutputLayout.NBSd, **options).transpose(0, 1)
        q, k, v = qkv.split((self.count, self.kv_count, self.kv_count), 1)
        q, k, v = (t.flatten(0, 1).contiguous() for t in (q, k, v))
        self.keys[:, 0, :, :tokens], self.values[:, 0, :tokens] = k.transpose(1, 2), v
        y = self.run(attention_cte, q, k, v, scale=self.depth**-0.5, tp_k=True)
        y = y.reshape(batch, -1, tokens, self.depth).transpose(1, 2)
        return self.finish(x, self.gated(x, y), self.out)

    def decode(self, x, position):
        """x [B, 1, H], the token at a position. A kv head with its queries is a batch entry of attention."""
        batch, caches = len(x), len(self.keys)
        group, capacity = self.count // self.kv_count, self.keys.shape[-1]
        qkv = self.project(x, self.qkv).reshape(batch, -1, self.depth)
        q, k, v = qkv.split((self.count, self.kv_count, self.kv_count), 1)
        q, k = (
            self.run(rms_norm, t.flatten(0, 1).contiguous(), weight[0])
            for t, weight in zip((q, k), self.gammas, strict=True)
        )
        q, k, v = (t.reshape(caches, -1, 1, self.depth) for t in (q, k, v.contiguous()))
        y, key = self.run(
            attention_tkg,
            *(q, k, v, self.keys, self.values),
            torch.ones(1, caches, group, 1, dtype=torch.uint8, device=x.device),
            torch.empty(caches, group, self.depth, 1, dtype=x.dtype, device=x.device),
            AttnTKGConfig(caches, group, 1, capacity, capacity, self.depth, fuse_rope=True, use_pos_id=True),
            None,
            inv_freqs=self.inv_freq,
            rope_pos_ids=torch.full((caches, 1), float(position), device=x.device),
            k_out=torch.empty(caches, 1, self.depth, 1, dtype=x.dtype, device=x.device),
        )
        self.keys[..., position], self.values[:, :, position] = key[..., 0], v[:, :, 0]
        y = y.reshape(batch, 1, self.count, self.depth)
        return self.finish(x, self.gated(x, y), self.out)


class Qwen:
    """The layers of a Qwen3_5TextModel on kernels; the model looks up the embeddings."""

    def __init__(self, model, run, batch, capacity):
        self.model, self.run, self.gamma = model, run, gamma(model.norm)[0]
        shared = (model.config, model.rotary_emb, batch, capacity)
        self.layers = [
            AttentionLayer(layer, run, *shared)
            if layer.block_type == "full_attention"
            else DeltaLayer(layer, run)
            for layer in model.layers
        ]

    def finished(self, x):
        return self.run(rms_norm, x.flatten(0, 1), self.gamma).reshape(x.shape)

    def prefill(self, tokens):
        """Return the last hidden states of tokens [B, S]."""
        x, positions = self.model.embed_tokens(tokens), torch.arange(tokens.shape[1])
        for layer in self.layers:
            x = layer.prefill(x, positions)
        return self.finished(x)

    def decode(self, tokens, position):
        """Return that of the token at a position of each sequence, tokens [B, 1]."""
        x = self.model.embed_tokens(tokens)
        for layer in self.layers:
            x = layer.decode(x, position)
        return self.finished(x)


# ---- comparison and modelled times ---------------------------------------------------------------


def random_model():
    """A model in bfloat16 with a layer of each kind; its norms are not those of a fresh model."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    config = Qwen3_5TextConfig(
        vocab_size=128,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        layer_types=["linear_attention", "full_attention"],
        rope_parameters=rope | {"mrope_section": [3, 3, 2]},
        initializer_range=0.1,
    )
    model = Qwen3_5TextModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(torch.bfloat16)


@torch.no_grad()
def compare(batch, tokens, decoded):
    """Return the distances of our hidden states and of the bfloat16 model's from the float32 model's."""
    model = random_model()
    text = torch.randint(0, model.config.vocab_size, (batch, tokens + decoded))
    qwen = Qwen(model, Calls(), batch, -(-(tokens + decoded) // 128) * 128)
    found = [qwen.prefill(text[:, :tokens])]
    found += [qwen.decode(text[:, i : i + 1], i) for i in range(tokens, tokens + decoded)]
    theirs = model(text).last_hidden_state
    exact = model.float()(text).last_hidden_state
    ours = torch.cat(found, 1)
    return [
        (relative_error(ours[:, part], exact[:, part]), relative_error(theirs[:, part], exact[:, part]))
        for part in (slice(tokens), slice(tokens, None))
    ]


def nine_billion(kinds):
    """The sizes of the 9B model. It has 16 heads of 256; the attention kernels take up to 128.

    32 heads of 128 have the same projections and products and twice the softmax: no less time.
    """
    return Qwen3_5TextConfig(
        num_hidden_layers=len(kinds),
        layer_types=kinds,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
    )


@torch.no_grad()
def profile(config, context):
    """Print the modelled times of a layer of each kind, prefill and decode, on two cores."""
    with torch.device("meta"):
        model = Qwen3_5TextModel(config).to(torch.bfloat16)
        qwen = Qwen(model, None, 1, context)
        for kind, layer in zip(config.layer_types, qwen.layers, strict=True):
            for step, tokens in (("prefill", context), ("decode", 1)):
                layer.run = Calls()
                x = torch.empty(1, tokens, config.hidden_size, dtype=torch.bfloat16)
                if step == "prefill":
                    layer.prefill(x, torch.arange(tokens))
                else:
                    layer.decode(x, context - 1)
                print(layer.run.table(f"{kind}, {step}"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 2), ("tokens", 140), ("decoded", 3), ("context", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", action="store_true", help="layers of the 9B model on the timing model")
    options = parser.parse_args()
    if options.profile:
        profile(nine_billion(["linear_attention", "full_attention"]), options.context)
        return
    for step, errors in zip(
        ("prefill", "decode"), compare(options.batch, options.tokens, options.decoded), strict=True
    ):
        ours, theirs = errors
        print(f"{step}: off the float32 model by {ours:.5f}, the bfloat16 model by {theirs:.5f}")


if __name__ == "__main__":
    main()
