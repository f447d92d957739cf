"""The hybrid target for training: plain functions over a dictionary of parameters with Hugging Face names.

The maths is that of transformers' Qwen3_5ForCausalLM (a test compares logits), laid out for speed on one GPU:
documents packed in a row are kept apart exactly (attention mask, conv taps and recurrent decay all stop at a document's
first token), and the recurrence runs in chunks of 64 whose states are chained by one small matrix product each.

Shapes: B rows, T tokens (a multiple of 64), H hidden, nk/nv key and value heads of 128, C = 64, N = T / C.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Params = dict[str, torch.Tensor]
CHUNK = 64
RESET = 30.0  # added decay at a document's first token: e^-30 of the old state is left


@dataclass(frozen=True)
class Config:
    vocab_size: int = 8192
    hidden_size: int = 512
    intermediate_size: int = 1152
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 256
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e7
    rotary_dim: int = 64
    full_attention_interval: int = 4
    tie_word_embeddings: bool = True

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0

    def hf(self, eos: int) -> dict[str, Any]:
        own = asdict(self)
        theta, rotary = own.pop("rope_theta"), own.pop("rotary_dim")
        kinds = ["full_attention" if self.is_full(i) else "linear_attention" for i in range(self.num_hidden_layers)]
        return {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16", **own, "layer_types": kinds,
                "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
                "mamba_ssm_dtype": "float32", "max_position_embeddings": 4096, "initializer_range": 0.02, "use_cache": True,
                "partial_rotary_factor": rotary / self.head_dim,
                "rope_parameters": {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": rotary / self.head_dim,
                                    "mrope_section": [11, 11, 10], "mrope_interleaved": True},
                "bos_token_id": eos, "eos_token_id": eos, "pad_token_id": eos, "transformers_version": "5.17.0"}

    @staticmethod
    def from_hf(folder: Path) -> "Config":
        raw = json.loads((folder / "config.json").read_text())
        raw = raw.get("text_config", raw)
        rope = raw.get("rope_parameters", {})
        names = {k: raw[k] for k in Config.__dataclass_fields__ if k in raw}
        if "layer_types" in raw:
            names["full_attention_interval"] = raw["layer_types"].index("full_attention") + 1
        factor = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 0.25))
        return Config(**{**names, "rope_theta": rope.get("rope_theta", 1e7), "rotary_dim": int(factor * names.get("head_dim", 256))})


# ------------------------------------------------------------------------------------------------- parameters, fake Q4


def layer_shapes(c: Config, i: int) -> dict[str, tuple[int, ...]]:
    p, h = f"model.layers.{i}.", c.hidden_size
    key, value = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_value_heads * c.linear_value_head_dim
    shapes: dict[str, tuple[int, ...]] = {p + "input_layernorm.weight": (h,), p + "post_attention_layernorm.weight": (h,)}
    if c.is_full(i):
        a, q, kv = p + "self_attn.", c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        shapes |= {a + "q_proj.weight": (2 * q, h), a + "k_proj.weight": (kv, h), a + "v_proj.weight": (kv, h), a + "o_proj.weight": (h, q),
                   a + "q_norm.weight": (c.head_dim,), a + "k_norm.weight": (c.head_dim,)}
    else:
        a = p + "linear_attn."
        shapes |= {a + "in_proj_qkv.weight": (2 * key + value, h), a + "in_proj_z.weight": (value, h), a + "in_proj_b.weight": (c.linear_num_value_heads, h),
                   a + "in_proj_a.weight": (c.linear_num_value_heads, h), a + "conv1d.weight": (2 * key + value, 1, c.linear_conv_kernel_dim),
                   a + "A_log": (c.linear_num_value_heads,), a + "dt_bias": (c.linear_num_value_heads,), a + "norm.weight": (c.linear_value_head_dim,),
                   a + "out_proj.weight": (h, value)}
    return shapes | {p + "mlp.gate_proj.weight": (c.intermediate_size, h), p + "mlp.up_proj.weight": (c.intermediate_size, h),
                     p + "mlp.down_proj.weight": (h, c.intermediate_size)}


def shapes_of(c: Config) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size)}
    for i in range(c.num_hidden_layers):
        out |= layer_shapes(c, i)
    return out | {"model.norm.weight": (c.hidden_size,)}


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """What the pack stores in 4 bits: every matrix, not the conv taps."""
    return len(shape) == 2 and "conv1d" not in name


def init_params(c: Config, seed: int, device: torch.device) -> Params:
    """Norms of the (1+w) family start at 0, the gated norm at 1; matrices at 1/sqrt(fan-in), outputs scaled by depth."""
    gen = torch.Generator().manual_seed(seed)
    params: Params = {}
    for name, shape in shapes_of(c).items():
        if name.endswith("linear_attn.norm.weight"):
            w = torch.ones(shape)
        elif name.endswith("norm.weight"):
            w = torch.zeros(shape)
        elif name.endswith("A_log"):
            w = torch.log(torch.empty(shape).uniform_(0.5, 8, generator=gen))
        elif name.endswith("dt_bias"):  # softplus(dt) log-uniform in 1e-3 .. 1e-1, the usual start of state-space layers
            dt = torch.exp(torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1), generator=gen))
            w = dt + torch.log(-torch.expm1(-dt))
        elif "conv1d" in name:
            w = torch.empty(shape).uniform_(-0.5, 0.5, generator=gen)
        else:
            std = 0.02 if "embed" in name else shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                std /= math.sqrt(2 * c.num_hidden_layers)
            w = torch.randn(shape, generator=gen) * std
        params[name] = torch.nn.Parameter(w.to(device))
    return params


def fake_quant(w: torch.Tensor) -> torch.Tensor:
    """The pack's rule (MLX affine, 4 bits, group 64, bf16 scale and bias) applied to bf16(w); w [O, I] -> [O, I] float."""
    g = w.detach().bfloat16().float().view(w.shape[0], -1, 64)
    high, low = g.amax(-1, keepdim=True), g.amin(-1, keepdim=True)
    scale = ((high - low) / 15).clamp_min(1e-7)
    edge = torch.where(low.abs() > high.abs(), low, high)
    scale = torch.where(low.abs() > high.abs(), scale, -scale)
    q0 = torch.round(edge / scale)
    nonzero = q0 != 0
    scale = torch.where(nonzero, edge / torch.where(nonzero, q0, torch.ones_like(q0)), scale)
    bias = torch.where(nonzero, edge, torch.zeros_like(edge))
    codes = torch.round((g - bias) / scale).clamp(0, 15)
    return (codes * scale.bfloat16().float() + bias.bfloat16().float()).view(w.shape)


def straight_through(w: torch.Tensor) -> torch.Tensor:
    return w + (fake_quant(w) - w.detach())


def effective(params: Params, quantised: bool, dtype: torch.dtype = torch.bfloat16, ste: Any = straight_through) -> Params:
    """Weights as the forward pass uses them: matrices in `dtype`, through fake quantisation if asked; the rest in fp32."""
    out: Params = {}
    for name, w in params.items():
        if not is_matrix(name, tuple(w.shape)):
            out[name] = w
        else:
            out[name] = (ste(w) if quantised else w).to(dtype)
    return out


# ------------------------------------------------------------------------------------------------------------- pieces


def rms1p(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps) * (1 + w)).to(x.dtype)


def rotate(x: torch.Tensor, pos: torch.Tensor, theta: float, rotary: int) -> torch.Tensor:
    """Half-split rotary on the first `rotary` dims; x [B, n, T, d], pos [B, T]."""
    half = rotary // 2
    inv = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = pos.float()[:, None, :, None] * inv
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].float(), x[..., half:rotary].float()
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), x[..., rotary:]], -1)


def attention(x: torch.Tensor, pos: torch.Tensor, doc: torch.Tensor, norm: torch.Tensor, wq: torch.Tensor, wk: torch.Tensor, wv: torch.Tensor,
              wo: torch.Tensor, qn: torch.Tensor, kn: torch.Tensor, nq: int, nk: int, d: int, theta: float, rotary: int) -> torch.Tensor:
    """Gated full attention with its residual; x [B, T, H], doc [B, T] numbers the documents of a row."""
    b, t, _ = x.shape
    n = rms1p(x, norm)
    q, gate = F.linear(n, wq).view(b, t, nq, 2 * d).chunk(2, -1)
    k, v = F.linear(n, wk).view(b, t, nk, d), F.linear(n, wv).view(b, t, nk, d)
    q = rotate(rms1p(q, qn).transpose(1, 2), pos, theta, rotary)
    k = rotate(rms1p(k, kn).transpose(1, 2), pos, theta, rotary)
    v = v.transpose(1, 2)
    q = q.reshape(b, nk, nq // nk * t, d)  # query heads of one key head side by side: no copy of k and v
    scores = (q @ k.transpose(-1, -2)).view(b, nk, nq // nk, t, t).float() * d ** -0.5
    index = torch.arange(t, device=x.device)
    allowed = (index[:, None] >= index[None, :]) & (doc[:, :, None] == doc[:, None, :])
    p = torch.softmax(scores.masked_fill(~allowed[:, None, None], -1e30), -1).to(x.dtype)
    o = (p.view(b, nk, nq // nk * t, t) @ v).view(b, nq, t, d).transpose(1, 2)
    o = o * torch.sigmoid(gate.float()).to(x.dtype)
    return x + F.linear(o.reshape(b, t, nq * d), wo)


def mlp(x: torch.Tensor, norm: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    n = rms1p(x, norm)
    return x + F.linear(F.silu(F.linear(n, gate)) * F.linear(n, up), down)


def gdn_front(x: torch.Tensor, pos: torch.Tensor, norm: torch.Tensor, wqkv: torch.Tensor, wz: torch.Tensor, wb: torch.Tensor, wa: torch.Tensor,
              conv: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, nk: int, nv: int) -> tuple[torch.Tensor, ...]:
    """Projections, short convolution and gates. Returns q, k [B, nv, N, C, 128], v alike, g (summed within a chunk) and
    beta [B, nv, N, C], the gate z [B, T, nv, 128], and the strictly lower A [B, nv, N, C, C]."""
    b, t, _ = x.shape
    n = rms1p(x, norm)
    s = F.linear(n, wqkv)
    z, beta, a = F.linear(n, wz).view(b, t, nv, -1), F.linear(n, wb), F.linear(n, wa)
    taps = conv.shape[-1]
    y = s.float() * conv[:, 0, taps - 1]
    for j in range(1, taps):  # tap j back, unless it would reach into the document before
        shifted = F.pad(s, (0, 0, j, 0))[:, :t] * (pos >= j)[..., None]
        y = y + shifted.float() * conv[:, 0, taps - 1 - j]
    y = F.silu(y)
    q, k, v = y.split([nk * 128, nk * 128, nv * 128], -1)

    def heads(u: torch.Tensor, count: int) -> torch.Tensor:
        u = u.view(b, t // CHUNK, CHUNK, count, 128).permute(0, 3, 1, 2, 4)
        return u if count == nv else u.repeat_interleave(nv // count, 1)

    q, k = (u.view(b, t, nk, 128) for u in (q, k))
    q = heads(q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * 128 ** -0.5, nk)
    k = heads(k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6), nk)
    v = heads(v, nv)
    beta = torch.sigmoid(beta.float()).view(b, t // CHUNK, CHUNK, nv).permute(0, 3, 1, 2)
    g = -torch.exp(a_log) * F.softplus(a.float() + dt_bias) - RESET * (pos == 0)[..., None]
    g = g.view(b, t // CHUNK, CHUNK, nv).permute(0, 3, 1, 2).cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, device=x.device, dtype=torch.bool).tril(-1)
    decay = torch.exp((g[..., :, None] - g[..., None, :]).masked_fill(~lower, -1e30))
    big_a = beta[..., None] * decay * (k @ k.transpose(-1, -2))
    return q.contiguous(), k.contiguous(), v.contiguous(), g.contiguous(), beta.contiguous(), z, big_a


def gdn_chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, inv: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a chunk does to any incoming state S: S' = M S + Z and output = Y S + P, all [B, nv, N, ...]."""
    e = torch.exp(g)[..., None]
    u = inv @ (beta[..., None] * v)
    w = inv @ (beta[..., None] * e * k)
    lower = torch.ones(CHUNK, CHUNK, device=q.device, dtype=torch.bool).tril()
    decay = torch.exp((g[..., :, None] - g[..., None, :]).masked_fill(~lower, -1e30))
    inner = (q @ k.transpose(-1, -2)) * decay
    last = g[..., -1:]
    kd = (torch.exp(last - g)[..., None] * k).transpose(-1, -2)
    eye = torch.eye(128, device=q.device)
    m = torch.exp(last)[..., None] * eye - kd @ w
    return m, kd @ u, e * q - inner @ w, inner @ u


def gdn_back(x: torch.Tensor, states: torch.Tensor, y: torch.Tensor, p: torch.Tensor, z: torch.Tensor, norm: torch.Tensor, wo: torch.Tensor) -> torch.Tensor:
    b, t, _ = x.shape
    o = (y @ states + p).permute(0, 2, 3, 1, 4).reshape(b, t, -1, 128)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * norm * F.silu(z.float())
    return x + F.linear(o.reshape(b, t, -1).to(x.dtype), wo)


def unit_lower_inverse(a: torch.Tensor) -> torch.Tensor:
    """(I + a)^-1 for strictly lower a [..., 64, 64]: 16 x 16 blocks by doubling, then merged. Larger doubling would cancel."""
    shape = a.shape
    eye = torch.eye(16, device=a.device, dtype=a.dtype)
    blocks = torch.stack([a[..., i:i + 16, i:i + 16] for i in range(0, CHUNK, 16)], -3)
    inverse, power = eye - blocks, blocks @ blocks
    for step in range(3):
        inverse = inverse @ (eye + power)
        if step < 2:
            power = power @ power
    out = torch.zeros(shape, device=a.device, dtype=a.dtype)
    for i in range(4):
        out[..., 16 * i:16 * i + 16, 16 * i:16 * i + 16] = inverse[..., i, :, :]
    for size in (16, 32):
        for i in range(0, CHUNK, 2 * size):
            top, low = slice(i, i + size), slice(i + size, i + 2 * size)
            out[..., low, top] = -(out[..., low, low] @ (a[..., low, top] @ out[..., top, top]))
    return out


class _Inverse(torch.autograd.Function):
    """Full fp32 (no TF32): the doubling needs the digits."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        inverse = unit_lower_inverse(a)
        torch.backends.cuda.matmul.allow_tf32 = before
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        t = ctx.saved_tensors[0].transpose(-1, -2)
        return -(t @ grad @ t).tril(-1)


class _Scan(torch.autograd.Function):
    """S_{c+1} = M_c S_c + Z_c from S_0 = 0; m, z [B, nv, N, 128, 128] -> incoming states S_0 .. S_{N-1}."""

    @staticmethod
    def forward(ctx: Any, m: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        b, h, n = m.shape[:3]
        states = torch.zeros_like(z)
        fm, fz, fs = (u.view(b * h, n, 128, 128) for u in (m, z, states))
        for c in range(n - 1):
            fs[:, c + 1] = torch.baddbmm(fz[:, c], fm[:, c], fs[:, c])
        ctx.save_for_backward(m, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m, states = ctx.saved_tensors
        b, h, n = m.shape[:3]
        dz = torch.zeros_like(m)  # gradient of S_{c+1}, stored at c
        fm, fg, fd = (u.reshape(b * h, n, 128, 128) for u in (m, grad, dz))
        for c in range(n - 2, -1, -1):
            fd[:, c] = fg[:, c + 1] if c == n - 2 else torch.baddbmm(fg[:, c + 1], fm[:, c + 1].transpose(1, 2), fd[:, c + 1])
        return dz @ states.transpose(-1, -2), dz


# ------------------------------------------------------------------------------------------------------------ forward


@dataclass
class Pieces:
    """The functions of a layer; the trainer swaps in compiled ones."""

    attention: Any = attention
    mlp: Any = mlp
    gdn_front: Any = gdn_front
    gdn_chunk: Any = gdn_chunk
    gdn_back: Any = gdn_back

    @staticmethod
    def compiled() -> "Pieces":
        make = lambda f: torch.compile(f, dynamic=False)  # noqa: E731
        return Pieces(make(attention), make(mlp), make(gdn_front), make(gdn_chunk), make(gdn_back))


def boundaries(ids: torch.Tensor, eot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Position within the document and document number, [B, T] each; a document starts after every end-of-text id."""
    start = F.pad(ids[:, :-1] == eot, (1, 0), value=True)
    index = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    first = torch.where(start, index, 0).cummax(1).values
    return index - first, start.cumsum(1)


def gdn(x: torch.Tensor, pos: torch.Tensor, w: Params, p: str, c: Config, f: Pieces) -> torch.Tensor:
    a = p + "linear_attn."
    q, k, v, g, beta, z, big_a = f.gdn_front(x, pos, w[p + "input_layernorm.weight"], w[a + "in_proj_qkv.weight"], w[a + "in_proj_z.weight"],
                                             w[a + "in_proj_b.weight"], w[a + "in_proj_a.weight"], w[a + "conv1d.weight"], w[a + "A_log"],
                                             w[a + "dt_bias"], c.linear_num_key_heads, c.linear_num_value_heads)
    m, add, y, out = f.gdn_chunk(q, k, v, g, beta, _Inverse.apply(big_a))
    return f.gdn_back(x, _Scan.apply(m, add), y, out, z, w[a + "norm.weight"], w[a + "out_proj.weight"])


def forward(ids: torch.Tensor, w: Params, c: Config, eot: int, f: Pieces | None = None, taps: tuple[int, ...] = ()) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Final-normed hidden states [B, T, H] and the outputs of the layers in `taps`. T must be a multiple of 64."""
    f = f or Pieces()
    pos, doc = boundaries(ids, eot)
    x = F.embedding(ids, w["model.embed_tokens.weight"])
    kept = []
    for i in range(c.num_hidden_layers):
        p = f"model.layers.{i}."
        if c.is_full(i):
            a = p + "self_attn."
            x = f.attention(x, pos, doc, w[p + "input_layernorm.weight"], w[a + "q_proj.weight"], w[a + "k_proj.weight"], w[a + "v_proj.weight"],
                            w[a + "o_proj.weight"], w[a + "q_norm.weight"], w[a + "k_norm.weight"], c.num_attention_heads, c.num_key_value_heads,
                            c.head_dim, c.rope_theta, c.rotary_dim)
        else:
            x = gdn(x, pos, w, p, c, f)
        x = f.mlp(x, w[p + "post_attention_layernorm.weight"], w[p + "mlp.gate_proj.weight"], w[p + "mlp.up_proj.weight"], w[p + "mlp.down_proj.weight"])
        if i in taps:
            kept.append(x)
    return rms1p(x, w["model.norm.weight"]), kept


def head(w: Params) -> torch.Tensor:
    return w.get("lm_head.weight", w["model.embed_tokens.weight"])
