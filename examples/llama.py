"""A Llama model of Hugging Face generates on library kernels, prefill and decode; compared with the model.

python examples/llama.py [--tokens 8 --prompt 12 --layers 2]       compares tokens and logits with the model
python examples/llama.py --profile [--html FILE --json FILE --context 2048]    models an 8B model on Trainium

The weights are random and nothing is downloaded; the 8B model has only shapes.
"""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import nki
from llama_report import as_json, page, table
from nki import TensorSpec
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.attention.attention_tkg import AttnTKGConfig, attention_tkg
from nkilib.core.mlp.mlp import mlp
from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg
from nkilib.core.qkv.qkv_cte import qkv_cte
from nkilib.core.qkv.qkv_tkg import qkv_tkg
from nkilib.core.utils.common_types import ComputationMode, NormType, QKVOutputLayout
from nkilib.experimental.foreach.foreach_elementwise import add_tensor_kernel

HEAD_COLUMNS = 32768  # rows of the vocabulary in one call: their logits fit into SBUF

# ---- the model on kernels ------------------------------------------------------------------------


def transposed(linear):
    """Return the weights as [inputs, outputs], the layout that kernels take."""
    return linear.weight.T.contiguous()


class Layer:
    """The weights of a decoder layer in the layouts of the kernels, and its cache."""

    def __init__(self, layer, sizes, batch, capacity):
        attention, inner = layer.self_attn, layer.mlp
        self.sizes = sizes
        heads = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([projection.weight for projection in heads]).T.contiguous()
        self.out = transposed(attention.o_proj)
        self.gate, self.up, self.down = (
            transposed(w) for w in (inner.gate_proj, inner.up_proj, inner.down_proj)
        )
        self.gamma_qkv = layer.input_layernorm.weight[None].contiguous()
        self.gamma_mlp = layer.post_attention_layernorm.weight[None].contiguous()
        caches = batch * sizes.kv_heads
        self.keys = torch.zeros(caches, 1, sizes.depth, capacity, dtype=self.qkv.dtype)
        self.values = torch.zeros(caches, 1, capacity, sizes.depth, dtype=self.qkv.dtype)

    def prefill(self, x, cos, sin):
        """Run the layer on x [B, S, H]; keys and values of all tokens go to the cache."""
        n, (batch, tokens, _) = self.sizes, x.shape
        qkv = qkv_cte(
            x,
            self.qkv,
            QKVOutputLayout.NBSd,
            fused_norm_type=NormType.RMS_NORM,
            gamma_norm_weights=self.gamma_qkv,
            norm_eps=n.eps,
            fused_rope=True,
            cos_cache=cos,
            sin_cache=sin,
            d_head=n.depth,
            num_q_heads=n.heads,
            num_kv_heads=n.kv_heads,
        )
        by_batch = qkv.to(x.dtype).transpose(0, 1)  # [B, heads, S, d]
        q, k, v = by_batch.split((n.heads, n.kv_heads, n.kv_heads), 1)
        q, k, v = (part.reshape(-1, tokens, n.depth) for part in (q, k, v))
        self.keys[:, 0, :, :tokens] = k.transpose(1, 2)
        self.values[:, 0, :tokens] = v
        out = attention_cte(q, k, v, scale=n.depth**-0.5, tp_k=True, tp_out=True)
        update = output_projection_cte(out.reshape(batch, n.heads, n.depth, tokens), self.out)
        return self.finish(x, update, ComputationMode.PREFILL)

    def decode(self, x, position, inv_freqs):
        """Run the layer on x [B, 1, H], the token at a position. A kv head is a batch entry of attention."""
        n, batch, caches = self.sizes, len(x), len(self.keys)
        group, capacity = n.heads // n.kv_heads, self.keys.shape[-1]
        qkv = qkv_tkg(x, self.qkv, self.gamma_qkv, eps=n.eps).to(x.dtype)
        q, k, v = qkv.reshape(batch, -1, n.depth).split((n.heads, n.kv_heads, n.kv_heads), 1)
        k, v = (part.reshape(caches, 1, 1, n.depth) for part in (k, v))
        out, key = attention_tkg(
            q.reshape(caches, group, 1, n.depth),
            k,
            v,
            self.keys,
            self.values,
            torch.ones(1, caches, group, 1, dtype=torch.uint8),
            torch.empty(caches, group, n.depth, 1, dtype=x.dtype),
            decode_config(n, caches, capacity),
            None,
            inv_freqs=inv_freqs,
            rope_pos_ids=torch.full((caches, 1), float(position)),
            k_out=torch.empty(caches, 1, n.depth, 1, dtype=x.dtype),
        )
        self.keys[..., position] = key[..., 0]
        self.values[:, :, position] = v[:, :, 0]
        by_depth = out.reshape(batch, n.heads, n.depth, 1).permute(2, 0, 1, 3).contiguous()
        return self.finish(
            x, output_projection_tkg(by_depth, self.out).reshape(x.shape), ComputationMode.DECODE
        )

    def finish(self, x, update, mode):
        """Return x + update plus the MLP of that sum."""
        added, x = mlp(
            x,
            self.gate,
            self.up,
            self.down,
            normalization_weights_tensor=self.gamma_mlp,
            fused_add_tensor=update,
            store_fused_add_result=True,
            normalization_type=NormType.RMS_NORM,
            eps=self.sizes.eps,
            mode=mode,
        )
        return add_tensor_kernel(x, added, torch.ones(128, 1), x.numel()).reshape(x.shape)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model: hidden states, MLP, query and key heads, size of a head, layers, vocabulary."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    depth: int
    layers: int
    vocabulary: int
    eps: float = 1e-5

    def columns(self):
        return (self.heads + 2 * self.kv_heads) * self.depth


def decode_config(n, caches, capacity):
    return AttnTKGConfig(
        caches, n.heads // n.kv_heads, 1, capacity, capacity, n.depth, fuse_rope=True, use_pos_id=True
    )


class Llama:
    """A LlamaForCausalLM whose layers and head are kernels; the model looks up the embeddings."""

    def __init__(self, model, batch, capacity):
        c = model.config
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        self.sizes = Sizes(
            c.hidden_size, c.intermediate_size, *heads, c.num_hidden_layers, c.vocab_size, c.rms_norm_eps
        )
        self.model = model.model
        self.layers = [Layer(layer, self.sizes, batch, capacity) for layer in self.model.layers]
        self.gamma = self.model.norm.weight[None].contiguous()
        self.head = [part.T.contiguous() for part in model.lm_head.weight.split(HEAD_COLUMNS)]

    def logits(self, x):
        """Return norm and projection of the last token, [B, V]."""
        last = x[:, -1:].contiguous()
        parts = [qkv_tkg(last, part, self.gamma, eps=self.sizes.eps) for part in self.head]
        return torch.cat(parts, -1)[:, 0].float()

    def prefill(self, tokens):
        x = self.model.embed_tokens(tokens)
        cos, sin = self.model.rotary_emb(x, torch.arange(tokens.shape[1])[None].expand(tokens.shape))
        for layer in self.layers:
            x = layer.prefill(x, cos.contiguous(), sin.contiguous())
        return self.logits(x)

    def decode(self, tokens, position):
        x = self.model.embed_tokens(tokens[:, None])
        inv_freqs = self.model.rotary_emb.inv_freq.float()[:, None].contiguous()
        for layer in self.layers:
            x = layer.decode(x, position, inv_freqs)
        return self.logits(x)


def generate(model, prompt, count):
    """Return the `count` most likely tokens after the prompt [B, S], and the logits of each."""
    capacity = -(-(prompt.shape[1] + count) // 128) * 128
    llama = Llama(model, len(prompt), capacity)
    logits = [llama.prefill(prompt)]
    tokens = [logits[0].argmax(-1)]
    for position in range(prompt.shape[1], prompt.shape[1] + count - 1):
        logits.append(llama.decode(tokens[-1], position))
        tokens.append(logits[-1].argmax(-1))
    return torch.stack(tokens, 1), torch.stack(logits, 1)


def random_model(layers):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_hidden_layers=layers,
        vocab_size=128,
        initializer_range=0.1,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def compare(layers, batch, prompt, count):
    """Return (same tokens in float32, largest error of the bfloat16 logits relative to the largest logit)."""
    model = random_model(layers)
    text = torch.randint(0, model.config.vocab_size, (batch, prompt))
    tokens, _ = generate(model, text, count)
    options = {"do_sample": False, "max_new_tokens": count, "min_new_tokens": count, "pad_token_id": 0}
    expected = model.generate(text, attention_mask=torch.ones_like(text), eos_token_id=None, **options)[
        :, prompt:
    ]
    model = model.to(torch.bfloat16)
    tokens16, logits = generate(model, text, count)
    seen = torch.cat([text, tokens16[:, :-1]], 1)  # the model's logits after the same tokens
    exact = model(seen).logits[:, prompt - 1 :].float()
    return torch.equal(tokens, expected), ((logits - exact).abs().max() / exact.abs().max()).item(), tokens


# ---- modelled times of a full-size model ---------------------------------------------------------

LLAMA_8B = Sizes(4096, 14336, 32, 8, 128, 32, 128256)


@dataclass(frozen=True)
class Part:
    """A kernel and the shapes of its arguments, called `times` in a pass."""

    name: str
    kernel: object
    arguments: dict
    times: int
    flops: float
    results: int  # bytes


def spec(*shape, dtype="bfloat16"):
    return TensorSpec(shape, dtype)


def row(size):
    return spec(1, size)


def add_part(n, tokens):
    x = spec(1, tokens, n.hidden)
    arguments = {"data1": x, "data2": x, "alpha_tensor": spec(128, 1, dtype="float32")}
    arguments["numel"] = tokens * n.hidden
    return Part("residual", add_tensor_kernel, arguments, n.layers, 0, 2 * tokens * n.hidden)


def mlp_part(n, tokens, mode):
    x, w = spec(1, tokens, n.hidden), spec(n.hidden, n.inner)
    arguments = {"hidden_tensor": x, "gate_proj_weights_tensor": w, "up_proj_weights_tensor": w}
    arguments |= {
        "down_proj_weights_tensor": spec(n.inner, n.hidden),
        "normalization_type": NormType.RMS_NORM,
    }
    arguments |= {"normalization_weights_tensor": row(n.hidden), "fused_add_tensor": x}
    arguments |= {"store_fused_add_result": True, "mode": mode}
    return Part("mlp", mlp, arguments, n.layers, 6 * tokens * n.hidden * n.inner, 4 * tokens * n.hidden)


def head_part(n):
    times = -(-n.vocabulary // HEAD_COLUMNS)
    columns = n.vocabulary // times
    arguments = {"hidden": spec(1, 1, n.hidden), "qkv_w": spec(n.hidden, columns), "norm_w": row(n.hidden)}
    return Part("lm head (qkv_tkg)", qkv_tkg, arguments, times, 2 * n.hidden * columns, 2 * columns)


def prefill_parts(n, tokens):
    """Return the kernels that Layer.prefill and the head call for a prompt."""
    tables, columns = spec(1, tokens, n.depth), n.columns()
    qkv = {"input": spec(1, tokens, n.hidden), "fused_qkv_weights": spec(n.hidden, columns)}
    qkv |= {"output_layout": QKVOutputLayout.NBSd, "fused_norm_type": NormType.RMS_NORM, "fused_rope": True}
    qkv |= {"gamma_norm_weights": row(n.hidden), "cos_cache": tables, "sin_cache": tables, "d_head": n.depth}
    qkv |= {"num_q_heads": n.heads, "num_kv_heads": n.kv_heads}
    keys = spec(n.kv_heads, tokens, n.depth)
    attention = {"q": spec(n.heads, tokens, n.depth), "k": keys, "v": keys, "scale": n.depth**-0.5}
    attention |= {"tp_k": True, "tp_out": True}
    wide = n.heads * n.depth
    out = {"attention": spec(1, n.heads, n.depth, tokens), "weight": spec(wide, n.hidden)}
    return [
        Part("qkv_cte", qkv_cte, qkv, n.layers, 2 * tokens * n.hidden * columns, 2 * tokens * columns),
        Part("attention_cte", attention_cte, attention, n.layers, 2 * wide * tokens**2, 2 * wide * tokens),
        Part(
            "output_projection_cte",
            output_projection_cte,
            out,
            n.layers,
            2 * tokens * wide * n.hidden,
            2 * tokens * n.hidden,
        ),
        mlp_part(n, tokens, ComputationMode.PREFILL),
        add_part(n, tokens),
        head_part(n),
    ]


def decode_parts(n, capacity):
    """Return the kernels that Layer.decode and the head call for one token with `capacity` keys."""
    kv, group, columns, wide = n.kv_heads, n.heads // n.kv_heads, n.columns(), n.heads * n.depth
    qkv = {"hidden": spec(1, 1, n.hidden), "qkv_w": spec(n.hidden, columns), "norm_w": row(n.hidden)}
    new = spec(kv, 1, 1, n.depth)
    attention = {"q": spec(kv, group, 1, n.depth), "k_active": new, "v_active": new, "sbm": None}
    attention |= {"k_prior": spec(kv, 1, n.depth, capacity), "v_prior": spec(kv, 1, capacity, n.depth)}
    attention |= {"mask": spec(1, kv, group, 1, dtype="uint8"), "out": spec(kv, group, n.depth, 1)}
    attention |= {"cfg": decode_config(n, kv, capacity), "inv_freqs": spec(n.depth // 2, 1, dtype="float32")}
    attention |= {"rope_pos_ids": spec(kv, 1, dtype="float32"), "k_out": spec(kv, 1, n.depth, 1)}
    out = {"attention": spec(n.depth, 1, n.heads, 1), "weight": spec(wide, n.hidden)}
    return [
        Part("qkv_tkg", qkv_tkg, qkv, n.layers, 2 * n.hidden * columns, 2 * columns),
        Part("attention_tkg", attention_tkg, attention, n.layers, 4 * wide * capacity, 0),
        Part(
            "output_projection_tkg", output_projection_tkg, out, n.layers, 2 * wide * n.hidden, 2 * n.hidden
        ),
        mlp_part(n, 1, ComputationMode.DECODE),
        add_part(n, 1),
        head_part(n),
    ]


@dataclass(frozen=True)
class Cost:
    """Costs of a part: microseconds of one call and of a whole pass, the bound of one call and its kind."""

    name: str
    times: int
    us: float
    bound_us: float
    bound: str

    def total(self):
        return self.times * self.us


def cost(part, lnc, known):
    """Return the cost of a part on so many cores; equal parts, as the head, are timed once."""
    key = (part.name, repr(part.arguments))
    if key not in known:
        known[key] = timed(part, lnc)
    return known[key]


def timed(part, lnc):
    profile = nki.profile(part.kernel if lnc == 1 else part.kernel[lnc])(**part.arguments)
    machine = profile.timeline.machine
    specs = [value for value in part.arguments.values() if isinstance(value, TensorSpec)]
    moved = part.results + sum(bytes_of(value) for value in specs)
    gbs = min(machine.hbm_gbs, lnc * machine.dma_engines * machine.dma_bytes_per_ns)
    memory, compute = moved / gbs / 1e3, part.flops / (lnc * machine.peak_flops()) * 1e6
    bound = "memory" if memory > compute else "compute"
    return Cost(part.name, part.times, profile.total_us, max(memory, compute), bound)


def bytes_of(value):
    count = 1
    for size in value.shape:
        count *= size
    return count * {"bfloat16": 2, "float32": 4, "uint8": 1}[str(value.dtype)]


def costs(n, context, targets=("trn2", "trn3"), cores=(1, 2)):
    """{(target, lnc): (costs of prefill, costs of decode)}"""
    found = {}
    for target in targets:
        os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = target
        for lnc in cores:
            known = {}
            passes = (prefill_parts(n, context), decode_parts(n, context))
            found[target, lnc] = tuple([cost(part, lnc, known) for part in parts] for parts in passes)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 2), ("prompt", 12), ("tokens", 8), ("layers", 2), ("context", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", action="store_true", help="an 8B model on the timing model")
    parser.add_argument("--targets", nargs="+", default=["trn2", "trn3"])
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--html", metavar="FILE", help="write the numbers of --profile as a page")
    parser.add_argument("--json", metavar="FILE", help="write them as data")
    options = parser.parse_args()
    if options.profile or options.html or options.json:
        found = {}
        for target in options.targets:
            for lnc in options.cores:
                some = costs(LLAMA_8B, options.context, [target], [lnc])
                print(table(some, LLAMA_8B, options.context), flush=True)
                found |= some
        if options.html:
            Path(options.html).write_text(page(found, LLAMA_8B, options.context))
        if options.json:
            Path(options.json).write_text(as_json(found))
        return
    same, error, tokens = compare(options.layers, options.batch, options.prompt, options.tokens)
    print("\n".join(f"sequence {i}: {' '.join(map(str, row))}" for i, row in enumerate(tokens.tolist())))
    print(f"float32: {'the same tokens as' if same else 'OTHER TOKENS THAN'} the model")
    print(f"bfloat16: logits within {error:.4f} of the largest")


if __name__ == "__main__":
    main()
