"""Batched generation from a hybrid target, token by token, with the recurrent state of its Gated DeltaNet layers.

Prompts go through the same steps as replies, so every row is simply a script: ids that are given, and marks where the
model writes until it ends its turn. Rows hold many conversations one after the other; after an end-of-text the state
starts afresh. Kept for each position: the id, whether the model wrote it, the tap features, and the final hidden state,
all exactly as decoding with this target produces them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

import model as M

GEN = -1  # script mark: the model writes from here to its end of turn


@dataclass
class Text:
    """ids, own [R, T]; features [R, T, taps * H]; hidden [R, T, H] final-normed (its head product predicts the next id)."""

    ids: torch.Tensor
    own: torch.Tensor
    features: torch.Tensor
    hidden: torch.Tensor

    @staticmethod
    def empty(rows: int, length: int, taps: int, hidden: int, device: torch.device, dtype: torch.dtype) -> "Text":
        return Text(torch.zeros(rows, length, dtype=torch.long, device=device), torch.zeros(rows, length, dtype=torch.bool, device=device),
                    torch.zeros(rows, length, taps * hidden, dtype=dtype, device=device), torch.zeros(rows, length, hidden, dtype=dtype, device=device))

    def part(self, which: slice) -> "Text":
        return Text(self.ids[which], self.own[which], self.features[which], self.hidden[which])


def scripts_of(ids: np.ndarray, own: np.ndarray, eot: int, length: int) -> np.ndarray:
    """Packed rows (rows.py) -> scripts [R, length]: every run of own tokens becomes one GEN."""
    out = np.full((len(ids), length), eot, dtype=np.int32)
    for r in range(len(ids)):
        first = own[r] & ~np.concatenate([[0], own[r][:-1]]).astype(bool)
        kept = np.where(own[r] == 1, np.where(first == 1, GEN, GEN - 1), ids[r].astype(np.int32))
        kept = kept[kept != GEN - 1][:length]
        out[r, :len(kept)] = kept
    return out


class State:
    """Per layer: recurrent matrix and last three conv inputs, or a key/value cache of `length` positions."""

    def __init__(self, c: M.Config, rows: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        conv = 2 * c.linear_num_key_heads * 128 + c.linear_num_value_heads * 128
        self.s: dict[int, torch.Tensor] = {}
        self.conv: dict[int, torch.Tensor] = {}
        self.k: dict[int, torch.Tensor] = {}
        self.v: dict[int, torch.Tensor] = {}
        for i in range(c.num_hidden_layers):
            if c.is_full(i):
                self.k[i] = torch.zeros(rows, c.num_key_value_heads, length, c.head_dim, device=device, dtype=dtype)
                self.v[i] = torch.zeros_like(self.k[i])
            else:
                self.s[i] = torch.zeros(rows * c.linear_num_value_heads, 128, 128, device=device)
                self.conv[i] = torch.zeros(rows, c.linear_conv_kernel_dim - 1, conv, device=device, dtype=dtype)


def gdn_step(x: torch.Tensor, fresh: torch.Tensor, st: State, i: int, w: M.Params, c: M.Config) -> torch.Tensor:
    """One token per row through a Gated DeltaNet layer; x [R, H], fresh [R] marks a document's first token."""
    p, rows = f"model.layers.{i}.", len(x)
    a = p + "linear_attn."
    nk, nv = c.linear_num_key_heads, c.linear_num_value_heads
    n = M.rms1p(x, w[p + "input_layernorm.weight"])
    raw = F.linear(n, w[a + "in_proj_qkv.weight"])
    keep = (~fresh).to(raw.dtype)[:, None, None]
    window = torch.cat([st.conv[i] * keep, raw[:, None]], 1)
    st.conv[i] = window[:, 1:]
    y = F.silu((window.float() * w[a + "conv1d.weight"][:, 0].float().T).sum(1))
    q, k, v = y.split([nk * 128, nk * 128, nv * 128], -1)
    q, k = (u.view(rows, nk, 128) for u in (q, k))
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * 128 ** -0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    q, k = (u.repeat_interleave(nv // nk, 1).reshape(rows * nv, 128) for u in (q, k))
    v = v.reshape(rows * nv, 128)
    beta = torch.sigmoid(F.linear(n, w[a + "in_proj_b.weight"]).float()).reshape(-1, 1)
    g = -torch.exp(w[a + "A_log"].float()) * F.softplus(F.linear(n, w[a + "in_proj_a.weight"]).float() + w[a + "dt_bias"].float())
    alpha = (torch.exp(g) * (~fresh)[:, None]).reshape(-1, 1)
    s = st.s[i]
    old = torch.stack([k, q], 1) @ s  # what the old state says to k and q
    d = beta * (v - alpha * old[:, 0])
    s.mul_(alpha[:, :, None]).baddbmm_(k[:, :, None], d[:, None, :])
    o = alpha * old[:, 1] + (q * k).sum(-1, keepdim=True) * d
    z = F.linear(n, w[a + "in_proj_z.weight"]).view(rows * nv, 128)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * w[a + "norm.weight"].float() * F.silu(z.float())
    return x + F.linear(o.view(rows, -1).to(x.dtype), w[a + "out_proj.weight"])


def attention_step(x: torch.Tensor, t: int, start: torch.Tensor, st: State, i: int, w: M.Params, c: M.Config) -> torch.Tensor:
    """One token per row through gated full attention; start [R] is the row index where the document begins."""
    p, rows, d = f"model.layers.{i}.", len(x), c.head_dim
    a, nq, nk = p + "self_attn.", c.num_attention_heads, c.num_key_value_heads
    n = M.rms1p(x, w[p + "input_layernorm.weight"])
    q, gate = F.linear(n, w[a + "q_proj.weight"]).view(rows, nq, 2 * d).chunk(2, -1)
    k, v = F.linear(n, w[a + "k_proj.weight"]).view(rows, nk, d), F.linear(n, w[a + "v_proj.weight"]).view(rows, nk, d)
    pos = (t - start)[:, None]
    q = M.rotate(M.rms1p(q, w[a + "q_norm.weight"])[:, :, None], pos, c.rope_theta, c.rotary_dim)[:, :, 0]
    st.k[i][:, :, t] = M.rotate(M.rms1p(k, w[a + "k_norm.weight"])[:, :, None], pos, c.rope_theta, c.rotary_dim)[:, :, 0]
    st.v[i][:, :, t] = v
    keys, values = st.k[i][:, :, :t + 1], st.v[i][:, :, :t + 1]
    scores = (q.view(rows, nk, nq // nk, d) @ keys.transpose(-1, -2)).float() * d ** -0.5
    inside = torch.arange(t + 1, device=x.device)[None] >= start[:, None]
    prob = torch.softmax(scores.masked_fill(~inside[:, None, None], -1e30), -1).to(x.dtype)
    o = (prob @ values).reshape(rows, nq, d) * torch.sigmoid(gate.float()).to(x.dtype)
    return x + F.linear(o.reshape(rows, nq * d), w[a + "o_proj.weight"])


def model_step(ids: torch.Tensor, t: int, start: torch.Tensor, st: State, w: M.Params, c: M.Config, taps: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Next-token hidden state [R, H] and tap features [R, taps * H] after reading ids [R] at row index t."""
    x = F.embedding(ids, w["model.embed_tokens.weight"])
    kept = []
    fresh = start == t
    for i in range(c.num_hidden_layers):
        p = f"model.layers.{i}."
        x = attention_step(x, t, start, st, i, w, c) if c.is_full(i) else gdn_step(x, fresh, st, i, w, c)
        x = M.mlp(x, w[p + "post_attention_layernorm.weight"], w[p + "mlp.gate_proj.weight"], w[p + "mlp.up_proj.weight"], w[p + "mlp.down_proj.weight"])
        if i in taps:
            kept.append(x)
    return M.rms1p(x, w["model.norm.weight"]), torch.cat(kept, -1)


def draw(logits: torch.Tensor, temperature: torch.Tensor, top_k: int, gen: torch.Generator) -> torch.Tensor:
    """Greedy where temperature is 0, else top-k sampling; logits [R, V], temperature [R]."""
    best, index = logits.float().topk(top_k, -1)
    noise = -torch.log(-torch.log(torch.rand(best.shape, device=best.device, generator=gen).clamp_min(1e-20)))
    pick = (best / temperature.clamp_min(1e-6)[:, None] + noise).argmax(-1)
    return index.gather(-1, torch.where(temperature > 0, pick, 0)[:, None])[:, 0]


@torch.no_grad()
def play(scripts: torch.Tensor, temperature: torch.Tensor, out: Text, w: M.Params, c: M.Config, taps: tuple[int, ...], eot: int, end: int,
         limit: int = 220, seed: int = 0, banned: tuple[int, ...] = ()) -> None:
    """Run scripts [R, L] for as many steps as `out` [R, T] has room; a turn longer than `limit` is ended by force."""
    (rows, length), device = out.ids.shape, scripts.device
    dtype = w["model.embed_tokens.weight"].dtype
    st = State(c, rows, length, device, dtype)
    gen = torch.Generator(device=device).manual_seed(seed)
    scripts = F.pad(scripts.long(), (0, 1), value=eot)
    at, written = torch.zeros(rows, dtype=torch.long, device=device), torch.zeros(rows, dtype=torch.long, device=device)
    start = torch.zeros(rows, dtype=torch.long, device=device)
    guess = torch.zeros(rows, dtype=torch.long, device=device)
    head = M.head(w)
    for t in range(length):
        given = scripts.gather(1, at[:, None])[:, 0]
        own = given == GEN
        written = torch.where(own, written + 1, 0)
        ids = torch.where(own, torch.where(written >= limit, end, guess), given)
        at = torch.where(~own | (ids == end), at + 1, at).clamp_max(scripts.shape[1] - 1)
        if t:
            start = torch.where(out.ids[:, t - 1] == eot, t, start)
        hidden, features = model_step(ids, t, start, st, w, c, taps)
        out.ids[:, t], out.own[:, t], out.features[:, t], out.hidden[:, t] = ids, own, features, hidden
        logits = F.linear(hidden, head)
        if banned:
            logits[:, list(banned)] = -1e4
        guess = draw(logits, temperature, 20, gen)
