"""The DFlash 2 draft: plain functions over a dictionary of parameters with the published tensor names.

One function serves training (many anchors per row) and decoding (one anchor): `blocks` runs N blocks of 8 slots of each
row against the row's context. A slot sees context positions before its block's anchor (inside the window and the same
document) and all slots of its own block; nothing else.

Shapes: B rows, S context positions, N blocks, K = block size, H hidden, F = taps * H, d head dim, G = H / 16.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Params = dict[str, torch.Tensor]


@dataclass(frozen=True)
class DraftConfig:
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    window: int
    block: int
    mask_id: int
    taps: tuple[int, ...]
    num_target_layers: int
    rank: int
    top_k: int = 16
    group: int = 16
    theta: float = 1e7
    eps: float = 1e-6

    @staticmethod
    def from_folder(folder: Path) -> "DraftConfig":
        raw = json.loads((folder / "config.json").read_text())
        own = raw["dflash_config"]
        return DraftConfig(raw["hidden_size"], raw["vocab_size"], raw["intermediate_size"], raw["num_hidden_layers"], raw["num_attention_heads"],
                           raw["num_key_value_heads"], raw["head_dim"], raw["sliding_window"], own["block_size"], own["mask_token_id"],
                           tuple(own["target_layer_ids"]), raw["num_target_layers"], own["selector_rank"], own["selector_top_k"], own["conv_group_size"],
                           float(raw["rope_parameters"]["rope_theta"]), raw["rms_norm_eps"])

    def published(self) -> dict[str, Any]:
        n = self.num_hidden_layers
        return {"architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "is_causal": False, "dtype": "bfloat16", "attention_bias": False,
                "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size,
                "num_hidden_layers": n, "num_attention_heads": self.num_attention_heads, "num_key_value_heads": self.num_key_value_heads,
                "head_dim": self.head_dim, "vocab_size": self.vocab_size, "tie_word_embeddings": False, "rms_norm_eps": self.eps,
                "rope_parameters": {"rope_theta": int(self.theta), "rope_type": "default"}, "max_position_embeddings": 4096,
                "layer_types": ["sliding_attention"] * n, "sliding_window": self.window, "use_sliding_window": True, "max_window_layers": n,
                "num_target_layers": self.num_target_layers,
                "dflash_config": {"block_size": self.block, "mask_token_id": self.mask_id, "target_layer_ids": list(self.taps), "conv_kernel_size": 2,
                                  "conv_group_size": self.group, "selector_rank": self.rank, "selector_top_k": self.top_k}}


def default_taps(count: int, target_layers: int) -> tuple[int, ...]:
    """Second layer to third-to-last, evenly (spec 1.2); a target too shallow for that gives all but its last layer."""
    if count == 1:
        return (target_layers // 2,)
    first, last = (1, target_layers - 3) if target_layers - 3 >= count else (0, target_layers - 2)
    return tuple(round(first + i * (last - first) / (count - 1)) for i in range(count))


def shapes_of(c: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Published names; the two codebooks come last."""
    h, q, kv, g = c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim, c.hidden_size // c.group
    out: dict[str, tuple[int, ...]] = {}
    for i in range(c.num_hidden_layers):
        p = f"layers.{i}."
        out |= {p + "input_layernorm.weight": (h,), p + "attention_conv.base_kernel": (2, 2, h), p + "attention_conv.kernel_projection.weight": (4 * g, h),
                p + "self_attn.q_proj.weight": (q, h), p + "self_attn.k_proj.weight": (kv, h), p + "self_attn.v_proj.weight": (kv, h),
                p + "self_attn.o_proj.weight": (h, q), p + "self_attn.q_norm.weight": (c.head_dim,), p + "self_attn.k_norm.weight": (c.head_dim,),
                p + "post_attention_layernorm.weight": (h,), p + "mlp_conv.base_kernel": (2, 2, h), p + "mlp_conv.kernel_projection.weight": (4 * g, h),
                p + "mlp.gate_proj.weight": (c.intermediate_size, h), p + "mlp.up_proj.weight": (c.intermediate_size, h),
                p + "mlp.down_proj.weight": (h, c.intermediate_size)}
    out |= {"fc.weight": (h, len(c.taps) * h), "hidden_norm.weight": (h,), "norm.weight": (h,), "candidate_selector.hidden_projection.weight": (c.rank, h)}
    return out | {"candidate_selector.predecessor_codebook": (c.vocab_size, c.rank), "candidate_selector.successor_codebook": (c.vocab_size, c.rank)}


def init_params(c: DraftConfig, seed: int, device: torch.device) -> Params:
    """Training parameters: the codebooks are projections of the frozen token table (`selector_a`, `selector_b` [r, H]).

    The convolutions start as the identity and the second codebook at zero, so a fresh draft is exactly DFlash 1.
    """
    gen = torch.Generator().manual_seed(seed)
    params: Params = {}
    for name, shape in shapes_of(c).items():
        if "codebook" in name:
            continue
        if name.endswith("base_kernel"):
            w = torch.zeros(shape)
            w[:, 0] = 1.0
        elif "kernel_projection" in name:
            w = torch.zeros(shape)
        elif name.endswith("norm.weight"):
            w = torch.ones(shape)
        else:
            w = torch.randn(shape, generator=gen) * shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                w *= (2 * c.num_hidden_layers) ** -0.5
        params[name] = torch.nn.Parameter(w.to(device))
    params["selector_a"] = torch.nn.Parameter((torch.randn(c.rank, c.hidden_size, generator=gen) * c.hidden_size ** -0.5).to(device))
    params["selector_b"] = torch.nn.Parameter(torch.zeros(c.rank, c.hidden_size, device=device))
    return params


def rms(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps) * w).to(x.dtype)


def rope(x: torch.Tensor, pos: torch.Tensor, theta: float) -> torch.Tensor:
    """Full-width half-split rotary in fp32; x [B, n, T, d], pos [B, T] absolute positions."""
    half = x.shape[-1] // 2
    inv = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = pos.float()[:, None, :, None] * inv
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def conv(y: torch.Tensor, base: torch.Tensor, coefficient: torch.Tensor, group: int) -> torch.Tensor:
    """Two taps along the block: y [B, N, K, H], base [2, H], coefficient [B, N, K, 2, G]. Slot 0 has no predecessor."""
    k = base + coefficient.float().repeat_interleave(group, -1)
    before = F.pad(y, (0, 0, 1, 0))[..., :-1, :]
    return (k[..., 0, :] * y.float() + k[..., 1, :] * before.float()).to(y.dtype)


def context(features: torch.Tensor, w: Params, c: DraftConfig) -> torch.Tensor:
    """Tap features [B, S, F] -> the vector c [B, S, H] that feeds every layer's keys and values."""
    return rms(F.linear(features, w["fc.weight"]), w["hidden_norm.weight"], c.eps)


def context_kv(ctx: torch.Tensor, pos: torch.Tensor, w: Params, i: int, c: DraftConfig) -> tuple[torch.Tensor, torch.Tensor]:
    b, s, _ = ctx.shape
    p = f"layers.{i}.self_attn."
    k = F.linear(ctx, w[p + "k_proj.weight"]).view(b, s, c.num_key_value_heads, c.head_dim)
    v = F.linear(ctx, w[p + "v_proj.weight"]).view(b, s, c.num_key_value_heads, c.head_dim)
    return rope(rms(k, w[p + "k_norm.weight"], c.eps).transpose(1, 2), pos, c.theta), v.transpose(1, 2)


def attend(q: torch.Tensor, kc: torch.Tensor, vc: torch.Tensor, kb: torch.Tensor, vb: torch.Tensor, allowed: torch.Tensor, c: DraftConfig) -> torch.Tensor:
    """q [B, nq, N*K, d]; context kc, vc [B, nkv, S, d]; block kb, vb [B, nkv, N*K, d]; allowed [B, N*K, S] -> [B, N*K, nq*d]."""
    b, nq, rows, d = q.shape
    nkv, r, n = c.num_key_value_heads, nq // c.num_key_value_heads, rows // c.block
    q = q.view(b, nkv, r * rows, d)
    far = (q @ kc.transpose(-1, -2)).view(b, nkv, r, rows, -1).float() * d ** -0.5
    far = far.masked_fill(~allowed[:, None, None], -1e30)
    qb = q.view(b, nkv, r, n, c.block, d)
    kb, vb = kb.view(b, nkv, 1, n, c.block, d), vb.view(b, nkv, 1, n, c.block, d)
    near = (qb @ kb.transpose(-1, -2)).float().view(b, nkv, r, rows, c.block) * d ** -0.5
    p = torch.softmax(torch.cat([far, near], -1), -1).to(q.dtype)
    s = kc.shape[2]
    o = (p[..., :s].reshape(b, nkv, r * rows, s) @ vc).view(b, nkv, r, n, c.block, d)
    o = o + p[..., s:].reshape(b, nkv, r, n, c.block, c.block) @ vb
    return o.reshape(b, nq, rows, d).transpose(1, 2).reshape(b, rows, nq * d)


def layer(x: torch.Tensor, ctx: torch.Tensor, ctx_pos: torch.Tensor, pos: torch.Tensor, allowed: torch.Tensor, w: Params, i: int, c: DraftConfig) -> torch.Tensor:
    """One draft layer over x [B, N, K, H]; pos [B, N*K]."""
    b, n, k, h = x.shape
    p = f"layers.{i}."
    normed = rms(x, w[p + "input_layernorm.weight"], c.eps)
    coefficient = F.linear(normed, w[p + "attention_conv.kernel_projection.weight"]).view(b, n, k, 2, 2, h // c.group)
    base = w[p + "attention_conv.base_kernel"]
    u = conv(normed, base[0], coefficient[..., 0, :, :], c.group).view(b, n * k, h)
    a = p + "self_attn."

    def heads(name: str, count: int) -> torch.Tensor:
        return F.linear(u, w[a + name]).view(b, n * k, count, c.head_dim)

    q = rope(rms(heads("q_proj.weight", c.num_attention_heads), w[a + "q_norm.weight"], c.eps).transpose(1, 2), pos, c.theta)
    kb = rope(rms(heads("k_proj.weight", c.num_key_value_heads), w[a + "k_norm.weight"], c.eps).transpose(1, 2), pos, c.theta)
    vb = heads("v_proj.weight", c.num_key_value_heads).transpose(1, 2)
    kc, vc = context_kv(ctx, ctx_pos, w, i, c)
    z = F.linear(attend(q, kc, vc, kb.contiguous(), vb.contiguous(), allowed, c), w[a + "o_proj.weight"]).view(b, n, k, h)
    x = x + conv(z, base[1], coefficient[..., 1, :, :], c.group)
    m = rms(x, w[p + "post_attention_layernorm.weight"], c.eps)
    coefficient = F.linear(m, w[p + "mlp_conv.kernel_projection.weight"]).view(b, n, k, 2, 2, h // c.group)
    base = w[p + "mlp_conv.base_kernel"]
    u = conv(m, base[0], coefficient[..., 0, :, :], c.group)
    z = F.linear(F.silu(F.linear(u, w[p + "mlp.gate_proj.weight"])) * F.linear(u, w[p + "mlp.up_proj.weight"]), w[p + "mlp.down_proj.weight"])
    return x + conv(z, base[1], coefficient[..., 1, :, :], c.group)


def visible(anchor: torch.Tensor, doc: torch.Tensor, s: int, c: DraftConfig) -> torch.Tensor:
    """Which context positions each slot sees: anchor [B, N] row indices, doc [B, S] document numbers -> [B, N*K, S]."""
    j = torch.arange(s, device=anchor.device)
    slot = anchor[:, :, None] + torch.arange(c.block, device=anchor.device)
    seen = (j < anchor[:, :, None, None]) & (slot[..., None] - j < c.window)
    same = doc[:, None, :s] == doc.gather(1, anchor.clamp(0, doc.shape[1] - 1))[:, :, None]
    return (seen & same[:, :, None, :]).flatten(1, 2)


def blocks(features: torch.Tensor, anchor_ids: torch.Tensor, anchor_pos: torch.Tensor, ctx_pos: torch.Tensor, allowed: torch.Tensor, table: torch.Tensor,
           w: Params, c: DraftConfig, layer_fn: Any = layer) -> torch.Tensor:
    """Final-normed hidden states [B, N, K, H] of N blocks per row; anchor_ids, anchor_pos [B, N], ctx_pos [B, S]."""
    b, n = anchor_ids.shape
    ids = torch.full((b, n, c.block), c.mask_id, device=anchor_ids.device, dtype=torch.long)
    ids[..., 0] = anchor_ids
    pos = (anchor_pos[..., None] + torch.arange(c.block, device=ids.device)).view(b, -1)
    x = F.embedding(ids, table)
    ctx = context(features, w, c)
    for i in range(c.num_hidden_layers):
        x = layer_fn(x, ctx, ctx_pos, pos, allowed, w, i, c)
    return rms(x, w["norm.weight"], c.eps)


def codebooks(w: Params, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The materialised tables [V, r]; while training they are projections of the token table."""
    if "selector_a" in w:
        return table.float() @ w["selector_a"].float().T, table.float() @ w["selector_b"].float().T
    return w["candidate_selector.predecessor_codebook"].float(), w["candidate_selector.successor_codebook"].float()


def select_scores(h: torch.Tensor, base: torch.Tensor, candidates: torch.Tensor, predecessor: torch.Tensor, books: tuple[torch.Tensor, torch.Tensor], w: Params) -> torch.Tensor:
    """S(a, b) of the candidates: h [..., H], base and candidates [..., K16], predecessor [...] -> [..., K16]."""
    gate = F.linear(h, w["candidate_selector.hidden_projection.weight"]).float()
    left = books[0][predecessor] * gate
    return base.float() + (books[1][candidates] * left[..., None, :]).sum(-1)


def walk(h: torch.Tensor, logits: torch.Tensor, anchor: torch.Tensor, books: tuple[torch.Tensor, torch.Tensor], w: Params, c: DraftConfig,
         use_selector: bool = True) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Greedy proposals: h, logits [..., 7, *] of slots 1..7, anchor [...] -> candidates, scores [..., 7, 16], path [..., 7]."""
    base, candidates = logits.float().topk(c.top_k, -1)
    before, scores, path = anchor, [], []
    for t in range(h.shape[-2]):
        s = select_scores(h[..., t, :], base[..., t, :], candidates[..., t, :], before, books, w) if use_selector else base[..., t, :]
        before = candidates[..., t, :].gather(-1, s.argmax(-1, keepdim=True))[..., 0]
        scores.append(s)
        path.append(before)
    return candidates, torch.stack(scores, -2), torch.stack(path, -1)
