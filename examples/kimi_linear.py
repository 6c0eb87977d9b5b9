"""Kimi linear attention on library kernels, token by token; compared with the layer of transformers.

python examples/kimi_linear.py [--batch 2 --tokens 5]        compares with the layer, which reads all tokens
python examples/kimi_linear.py --profile                     models a layer of the 48B model on Trainium

The weights are random and nothing is downloaded; the 48B model has only shapes. Its dense layer stands for
all: the experts of the others are in examples/moe_layer.py.
"""

import argparse

import torch
from transformers import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDecoderLayer

import nki
import nki.language as nl
from decoder_layer import Layer, joined
from head_kernels import activated_heads, gated_norm
from modelled import Calls, relative_error
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg
from nkilib.experimental.attention.kda_tkg import kda_tkg
from nkilib.experimental.conv.depthwise_conv1d import depthwise_conv1d_implicit_gemm

BOUND = -100.0  # e^-100 is 0 in float32


@nki.jit
def gate_inputs(g, dt_bias, a_log, bound):
    """x with bound sigmoid(x) = -exp(a_log) softplus(g + dt_bias), which is at least `bound`.

    The kernel's log decays are bound sigmoid(exp(a_log) (x + dt_bias)), the newer gate of the model's
    family; this model has the older one. g and dt_bias are [B, heads, d] and [heads, d], a_log [heads, 1].
    """
    out = nl.ndarray(g.shape, nl.float32, buffer=nl.shared_hbm)
    step = nl.tile_size.pmax
    for start in range(nl.program_id(0) * step, g.shape[0], nl.num_programs(0) * step):  # cores take turns
        rows = slice(start, min(start + step, g.shape[0]))
        count = rows.stop - rows.start
        bias = nl.load(dt_bias.expand_dim(0).broadcast(0, count))
        rate = nl.exp(nl.load(a_log.expand_dim(0).broadcast(0, count)))
        shifted = nl.add(nl.load(g[rows]), bias, dtype=nl.float32)
        decay = nl.multiply(nl.softplus(shifted), rate.broadcast(2, g.shape[2]))
        share = nl.minimum(nl.maximum(nl.multiply(decay, -1.0 / bound), 1e-30), 1.0 - 1e-6)
        nl.store(out[rows], nl.subtract(nl.log(share), nl.log(nl.subtract(1.0, share))))
    return out


@nki.jit
def sigmoids(x):
    """The sigmoids of x [B, N], in float32."""
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    step = nl.tile_size.pmax
    for start in range(nl.program_id(0) * step, x.shape[0], nl.num_programs(0) * step):
        rows = slice(start, min(start + step, x.shape[0]))
        nl.store(out[rows], nl.sigmoid(nl.load(x[rows]), dtype=nl.float32))
    return out


class KimiLayer(Layer):
    """A layer with Kimi Delta Attention: its weights, the last inputs of its convolution, and its state."""

    def __init__(self, layer, run, batch):
        gammas = (layer.input_layernorm.weight[None], layer.post_attention_layernorm.weight[None])
        super().__init__(layer, run, *gammas, eps=layer.input_layernorm.variance_epsilon)
        self.net, forget = layer.self_attn, layer.self_attn.forget_gate
        n = self.net
        self.into = joined(n.q_proj, n.k_proj, n.v_proj, n.b_proj, forget.f_a_proj, n.g_a_proj)
        self.inner = [joined(linear) for linear in (forget.f_b_proj, n.g_b_proj)]
        self.taps, self.out = n.conv1d.weight[:, None].contiguous(), joined(n.o_proj)
        self.dt_bias = forget.dt_bias.float().reshape(n.num_heads, n.head_dim)
        self.a_log = forget.A_log.float().reshape(n.num_heads, 1)
        self.inputs = torch.zeros(batch, n.conv_dim, 1, n.conv_kernel_size - 1, dtype=self.taps.dtype)
        self.state = torch.zeros(batch, n.num_heads, n.head_dim, n.head_dim)

    def decode(self, x):
        """Return the layer's output for the next token of each sequence, x [B, 1, H]."""
        n, batch = self.net, len(x)
        sizes = (n.conv_dim, n.num_heads, n.head_dim, n.head_dim)
        mixed, b, forget, gate = self.project(x, self.into)[:, 0].split(sizes, -1)
        forget, gate = (
            self.run(output_projection_tkg, small.T[:, :, None, None].contiguous(), weight)
            for small, weight in zip((forget, gate), self.inner, strict=True)
        )
        forget, gate = (t.reshape(batch, n.num_heads, n.head_dim) for t in (forget, gate))
        inputs = torch.cat([self.inputs, mixed[:, :, None, None]], -1)
        self.inputs = inputs[..., 1:]
        mixed = self.run(depthwise_conv1d_implicit_gemm, inputs, self.taps)
        heads = self.run(activated_heads, mixed.reshape(batch, 3 * n.num_heads, n.head_dim), False)
        q, k, v = heads.float().split(n.num_heads, 1)
        g = self.run(gate_inputs, forget, self.dt_bias, self.a_log, BOUND)
        q, k, g = (t.transpose(1, 2).contiguous() for t in (q, k, g))
        nothing = torch.zeros(n.num_heads, device=x.device)
        y, self.state = self.run(
            kda_tkg,
            *(q, k, v.contiguous(), g, self.run(sigmoids, b.contiguous())),
            nothing,
            torch.zeros(n.head_dim, n.num_heads, device=x.device),
            torch.zeros(batch, n.num_heads, n.head_dim, device=x.device),
            self.state,
            torch.full((1, 1), n.head_dim**-0.5, device=x.device),
            torch.full((1, 1), BOUND, device=x.device),
        )
        y = self.run(gated_norm, y, gate, n.o_norm.weight.data, False, self.eps)
        return self.finish(x, y[:, None], self.out)


# ---- comparison and modelled times ---------------------------------------------------------------


def config_of(**sizes):
    """One dense layer with Kimi Delta Attention."""
    kinds = {"layer_types": ["linear_attention"], "mlp_layer_types": ["dense"]}
    return KimiLinearConfig(num_hidden_layers=1, **kinds, **sizes)


def random_layer():
    """A small layer in bfloat16 whose norms are not those of a fresh model."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "linear_head_dim": 32, "linear_num_heads": 4}
    layer = KimiLinearDecoderLayer(config_of(**sizes), 0).eval()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(0.0, 2.0)
            elif parameter.dim() == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter[0].numel() ** 0.5)
    return layer.to(torch.bfloat16)


@torch.no_grad()
def compare(batch, tokens):
    """Return the distances of our outputs and of the bfloat16 layer's from the float32 layer's."""
    layer = random_layer()
    x = torch.randn(batch, tokens, layer.hidden_size).to(torch.bfloat16)
    kimi = KimiLayer(layer, Calls(), batch)
    ours = torch.cat([kimi.decode(x[:, i : i + 1].contiguous()) for i in range(tokens)], 1)
    theirs, exact = layer(x), layer.float()(x.float())
    return relative_error(ours - x, exact - x), relative_error(theirs - x, exact - x)


@torch.no_grad()
def profile(batch, **sizes):
    """Print the modelled times of a layer, by default of the 48B model, for one token of each sequence."""
    with torch.device("meta"):
        config = config_of(**sizes)
        kimi = KimiLayer(KimiLinearDecoderLayer(config, 0).to(torch.bfloat16), Calls(), batch)
        kimi.decode(torch.empty(batch, 1, config.hidden_size, dtype=torch.bfloat16))
    print(kimi.run.table(f"Kimi Delta Attention and a dense MLP, a token of {batch} sequences"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 2), ("tokens", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", action="store_true", help="a layer of the 48B model on the timing model")
    options = parser.parse_args()
    if options.profile:
        profile(options.batch)
        return
    ours, theirs = compare(options.batch, options.tokens)
    print(f"off the float32 layer by {ours:.5f}, the bfloat16 layer by {theirs:.5f}")


if __name__ == "__main__":
    main()
