"""A layer of DeepSeek V3.2 on library kernels: latent attention, sparse indexer, experts; against the model.

export NEURON_PLATFORM_TARGET_OVERRIDE=trn3         MX needs trn3
python examples/deepseek_v32.py [--tokens 48]       compares with the layer of transformers
python examples/deepseek_v32.py --profile           models a layer of the full model

The weights are random and nothing is downloaded; the full model has only shapes.
"""

import argparse

import ml_dtypes
import numpy as np
import torch
from torch import nn
from transformers import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import (
    DeepseekV32DecoderLayer,
    DeepseekV32RotaryEmbedding,
)

from modelled import Calls, relative_error
from nkilib.core.mlp.mlp import mlp
from nkilib.core.moe.moe_tkg.moe_tkg import moe_tkg
from nkilib.core.rmsnorm.rmsnorm_mx_prefill import rmsnorm_mx_prefill
from nkilib.core.utils.common_types import ExpertAffinityScaleMode
from nkilib.experimental.deepseek_v32.deepseek_v3_router import deepseek_v3_router
from nkilib.experimental.foreach.foreach_elementwise import add_tensor_kernel
from nkilib.experimental.mla.deepseek.mla_qkv_cte import mla_qkv_cte_kernel
from nkilib.experimental.mla.deepseek.mla_sparse_attention_cte import mla_sparse_attention_cte_kernel
from nkilib.experimental.mla.deepseek.mla_vup_oproj_cte import mla_vupmx_oproj_cte_kernel
from nkilib.experimental.sparse_attention_indexer.sparse_attention_indexer_mx_bf16score import (
    sparse_attention_indexer_mx_bf16score,
)

# ---- FP8 weights in the layouts of the kernels ---------------------------------------------------


def packed(matrix, rows, columns):
    """Return words [K / 4, N] of a matrix [K, N], and the exponents of blocks of so many rows and columns.

    A scale is a power of two; the matrix itself becomes what the words stand for.
    """
    k, n = matrix.shape
    if matrix.is_meta:
        scales = torch.empty(k // rows, -(-n // columns), dtype=torch.uint8)
        return torch.empty(k // 4, n, dtype=torch.uint32), scales
    wide = np.zeros((k, -(-n // columns) * columns), np.float32)
    wide[:, :n] = matrix.float().numpy()
    blocks = wide.reshape(k // rows, rows, -1, columns)
    largest = np.abs(blocks).max((1, 3), keepdims=True)
    exponents = np.floor(np.log2(np.maximum(largest, 1e-20))) - 7  # the largest number is 448
    data = (blocks / 2.0**exponents).astype(ml_dtypes.float8_e4m3fn)
    seen = (data.astype(np.float32) * 2.0**exponents).reshape(wide.shape)[:, :n]
    matrix.copy_(torch.from_numpy(np.ascontiguousarray(seen)))
    lanes = data.reshape(wide.shape)[:, :n].view(np.uint8).reshape(k // 4, 4, n).swapaxes(1, 2)
    words = np.ascontiguousarray(lanes).view(np.uint32)[..., 0]
    return torch.from_numpy(words), torch.from_numpy((exponents + 127).astype(np.uint8)[:, 0, :, 0])


def halves(size):
    """Return the order that puts pairs of neighbours into two halves, as the kernels rotate them."""
    return torch.arange(size).reshape(-1, 2).T.flatten()


class Weights:
    """The attention of a layer in the layouts of the kernels. It rounds the layer's weights to FP8 too."""

    def __init__(self, net):
        self.heads, self.nope, self.rope = net.num_heads, net.qk_nope_head_dim, net.qk_rope_head_dim
        order, head = halves(self.rope), net.num_heads
        a = torch.cat([net.q_a_proj.weight, net.kv_a_proj_with_mqa.weight]).T.clone()
        a[:, -self.rope :] = a[:, -self.rope :][:, order]
        self.a = packed(a, 128, 128)
        back = a[:, -self.rope :][:, order.argsort()]
        net.q_a_proj.weight.copy_(a[:, : net.q_lora_rank].T)
        latents = a[:, net.q_lora_rank : -self.rope]
        net.kv_a_proj_with_mqa.weight.copy_(torch.cat([latents, back], 1).T)
        b = net.q_b_proj.weight.T.unflatten(1, (head, -1)).clone()
        b[..., self.nope :] = b[..., self.nope :][..., order]
        flat = b.flatten(1)
        self.b = packed(flat, 128, 128)
        b = flat.unflatten(1, (head, -1)).clone()
        b[..., self.nope :] = b[..., self.nope :][..., order.argsort()]
        net.q_b_proj.weight.copy_(b.flatten(1).T)
        up = net.kv_b_proj.weight.unflatten(0, (head, -1))  # [heads, nope + v, latents]
        self.wuk = up[:, : self.nope].permute(1, 0, 2).flatten(1).to(torch.bfloat16)
        values = up[:, self.nope :].transpose(1, 2).flatten(0, 1).clone()
        self.wuv = packed(values, 128, 128)
        up[:, self.nope :] = values.unflatten(0, (head, -1)).transpose(1, 2)
        out = net.o_proj.weight.T.clone()
        self.out = packed(out, 128, 128)
        net.o_proj.weight.copy_(out.T)
        indexer = net.indexer
        self.index = []
        for linear in (indexer.wq_b, indexer.wk):
            matrix = linear.weight.T.clone()
            self.index.append(packed(matrix, 32, 1))
            linear.weight.copy_(matrix.T)


# ---- the layer -----------------------------------------------------------------------------------


class Layer:
    """A decoder layer with experts on kernels; up to 128 tokens of one sequence."""

    def __init__(self, layer, config, run):
        self.layer, self.config, self.run = layer, config, run
        self.weights = Weights(layer.self_attn)
        self.experts = (
            layer.mlp.experts.gate_up_proj.unflatten(1, (2, -1)).permute(0, 3, 1, 2),  # [E, H, 2, I]
            layer.mlp.experts.down_proj.transpose(1, 2),
        )

    def attended(self, x, cos, sin, earlier=None):
        """Return the attention of x [1, S, H] and the keys of each query, [S, topk]; -1: none.

        `earlier` has what stands in the caches before: latents [1, N, L], keys [1, N, R], the indexer's keys
        [1, 128, N + S], in which there is room for those of x.
        """
        c, w, net = self.config, self.weights, self.layer.self_attn
        tokens, half = x.shape[1], self.weights.rope // 2
        mx, normal = self.run(rmsnorm_mx_prefill, x, row(self.layer.input_layernorm), emit_norm_bf16=True)
        tiles = (-(-tokens // 128), 128, c.q_lora_rank // 512, 128)
        latents = {
            "qr_qtz_hbm": torch.zeros(tiles, dtype=torch.int32).view(torch.uint32),
            "qr_scale_hbm": torch.zeros(tiles, dtype=torch.uint8),
        }
        q_lift, q_pe, c_kv, k_pe = self.run(
            mla_qkv_cte_kernel,
            mx[None],
            *(*w.a, *w.b, row(net.q_a_layernorm), row(net.kv_a_layernorm), w.wuk, cos, sin),
            *(w.heads, w.nope, w.rope, c.kv_lora_rank, c.q_lora_rank),
            **latents,
        )
        start, index_keys = 0, torch.zeros(1, 128, tokens, dtype=torch.bfloat16)
        if earlier is not None:
            start, index_keys = earlier[0].shape[1], earlier[2]
            c_kv, k_pe = torch.cat([earlier[0], c_kv], 1), torch.cat([earlier[1], k_pe], 1)
        later = torch.ones(tokens, start + tokens, dtype=torch.bool).triu(start + 1)
        (index_q, scale_q), (index_k, scale_k) = w.index
        places = self.run(
            sparse_attention_indexer_mx_bf16score,
            normal,
            *(index_q, index_k, net.indexer.k_norm.weight.float(), net.indexer.k_norm.bias.float()),
            net.indexer.weights_proj.weight.to(torch.bfloat16),
            *(table[0, :, :half].float().contiguous() for table in (cos, sin)),
            *(index_keys, torch.where(later, -1e30, 0.0)),
            *(c.index_n_heads, c.index_head_dim, w.rope, c.index_topk, start),
            wq_b_scale=scale_q,
            wk_scale=scale_k,
            **latents,
            emit_flat_topk=True,
        )[1]
        chosen = torch.where(places > start + torch.arange(tokens)[:, None], -1, places)
        padded = nn.functional.pad(chosen, (0, -c.index_topk % 128), value=-1)[None]
        y = self.run(mla_sparse_attention_cte_kernel, q_lift, q_pe, c_kv, k_pe, net.scaling, padded)
        return self.run(mla_vupmx_oproj_cte_kernel, y, *w.wuv, *w.out), chosen

    def added(self, x, y):
        one = torch.ones(128, 1)
        return self.run(add_tensor_kernel, x, y, one, x.numel()).reshape(x.shape)

    def mixture(self, x):
        """Return the experts of x [1, S, H], routed and shared."""
        c, block = self.config, self.layer.mlp
        norm = row(self.layer.post_attention_layernorm)
        normal = self.run(rmsnorm_mx_prefill, x, norm, emit_norm_bf16=True)[1].reshape(x.shape[1:])
        gate = block.gate
        affinities = self.run(
            deepseek_v3_router,
            *(normal, gate.weight.to(x.dtype), gate.e_score_correction_bias),
            *(c.n_group, c.topk_group, c.num_experts_per_tok, c.routed_scaling_factor),
        )
        gate_up, down = (weight.contiguous() for weight in self.experts)
        routed = self.run(
            moe_tkg,
            *(normal, gate_up, down, affinities, None, True),
            rank_id=torch.zeros(1, 1, dtype=torch.int32),
            expert_affinities_scaling_mode=ExpertAffinityScaleMode.POST_SCALE,
        )
        shared = block.shared_experts
        weights = [
            linear.weight.T.contiguous() for linear in (shared.gate_proj, shared.up_proj, shared.down_proj)
        ]
        always = self.run(mlp, normal[None], *weights)[0]
        return self.added(routed.reshape(x.shape), always)

    def forward(self, x, cos, sin, earlier=None):
        update, chosen = self.attended(x, cos, sin, earlier)
        x = self.added(x, update)
        return self.added(x, self.mixture(x)), chosen


def row(norm):
    return norm.weight[None].to(torch.bfloat16)


# ---- comparison and modelled times ---------------------------------------------------------------


def small_config():
    return DeepseekV32Config(
        hidden_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=16,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=4,
        q_lora_rank=512,
        index_topk=16,
        index_n_heads=4,
        mlp_layer_types=["sparse"],
        attn_implementation="eager",
    )


def random_layer(config):
    """A layer in float32; its norms are not those of a fresh one."""
    torch.manual_seed(0)
    layer = DeepseekV32DecoderLayer(config, 0).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        layer.mlp.gate.e_score_correction_bias.copy_(0.1 * torch.randn(config.n_routed_experts))
    return layer


def rotation(config, tokens):
    """Return cosines and sines [1, S, rope] of all positions."""
    rotary = DeepseekV32RotaryEmbedding(config)
    return rotary(torch.zeros(1), torch.arange(tokens)[None])


def parts(layer, x, tables, mask):
    """Return what the layer's attention and experts give, the input of the experts' norm, and the keys."""
    keep = {}
    net = layer.self_attn
    hooks = [
        net.register_forward_hook(lambda _, __, found: keep.update(attention=found[0])),
        net.indexer.register_forward_hook(lambda _, __, found: keep.update(keys=found[0])),
        layer.post_attention_layernorm.register_forward_pre_hook(lambda _, given: keep.update(x=given[0])),
        layer.mlp.register_forward_hook(lambda _, __, found: keep.update(experts=found)),
    ]
    layer(x, position_embeddings=tables, attention_mask=mask)
    for hook in hooks:
        hook.remove()
    return keep


@torch.no_grad()
def compare(tokens):
    """Return the distances of attention and experts, ours and the bfloat16 layer's, from the float32 layer's.

    A query with other keys has another result, so attention is compared for queries whose keys are the same;
    their share is returned too. The experts get the float32 layer's tokens.
    """
    config = small_config()
    layer = random_layer(config)
    Weights(layer.self_attn)  # both have the weights that FP8 can hold
    x = torch.randn(1, tokens, config.hidden_size).to(torch.bfloat16)
    mask = torch.full((tokens, tokens), torch.finfo(torch.float32).min).triu(1)[None, None]
    tables = rotation(config, tokens)
    exact = parts(layer, x.float(), tables, mask)
    layer = layer.to(torch.bfloat16)
    tables = [table.to(torch.bfloat16) for table in tables]
    theirs = parts(layer, x, tables, mask.to(torch.bfloat16))
    ours = Layer(layer, config, Calls())
    update, chosen = ours.attended(x, *tables)
    keys = [set(exact["keys"][i].tolist()) & set(range(i + 1)) for i in range(tokens)]
    same = [i for i in range(tokens) if keys[i] == set(chosen[i].tolist()) - {-1}]
    wanted = exact["attention"][:, same]
    middle = exact["x"].to(torch.bfloat16)
    normal = layer.post_attention_layernorm(middle)
    return {
        "attention": (
            relative_error(update[:, same], wanted),
            relative_error(theirs["attention"][:, same], wanted),
        ),
        "experts": (
            relative_error(ours.mixture(middle), exact["experts"]),
            relative_error(layer.mlp(normal), exact["experts"]),
        ),
    }, len(same) / tokens


LAYERS, CONTEXT = 58, 4096  # layers with experts, of 61; tokens of the sequence so far


@torch.no_grad()
def profile(tokens):
    """Print the modelled times of a layer of the full model: its last tokens attend to all before."""
    config = DeepseekV32Config(num_hidden_layers=1, mlp_layer_types=["sparse"])
    before = CONTEXT - tokens

    def meta(*shape):
        return torch.empty(shape, dtype=torch.bfloat16)

    with torch.device("meta"):
        layer = Layer(DeepseekV32DecoderLayer(config, 0).to(torch.bfloat16), config, Calls())
        tables = [meta(1, tokens, config.qk_rope_head_dim)] * 2
        earlier = meta(1, before, config.kv_lora_rank), meta(1, before, config.qk_rope_head_dim)
        layer.forward(meta(1, tokens, config.hidden_size), *tables, (*earlier, meta(1, 128, CONTEXT)))
    print(layer.run.table(f"a layer, {tokens} tokens behind {before} others"))
    print(f"{LAYERS} such layers: {LAYERS * sum(layer.run.us.values()) / 1e3:,.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int)
    parser.add_argument(
        "--profile", action="store_true", help="a layer of the full model on the timing model"
    )
    options = parser.parse_args()
    if options.profile:
        profile(options.tokens or 128)
        return
    errors, share = compare(options.tokens or 48)
    for part, (ours, theirs) in errors.items():
        print(f"{part}: off the float32 layer by {ours:.4f}, the bfloat16 layer by {theirs:.4f}")
    print(f"{share:.1%} of the queries choose the same keys")


if __name__ == "__main__":
    main()
