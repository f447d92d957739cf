"""The validation gates of a DFlash 2 draft (spec 8.4), and equality with the golden draft."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import draft as R
import draft_model as D
import generate as G
import model as M

TRAIN = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
TARGET = M.Config(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=1, num_key_value_heads=1, head_dim=64, rotary_dim=16,
                  linear_num_key_heads=1, linear_num_value_heads=1)
DRAFT = D.DraftConfig(64, 64, 64, 2, 4, 2, 16, 16, 8, 63, (1, 2), 4, 16)
EOT, END = 60, 61


def random_draft(seed: int = 1) -> D.Params:
    """Every tensor random, so that no term hides behind a zero."""
    gen = torch.Generator().manual_seed(seed)
    params = {n: p.detach() for n, p in D.init_params(DRAFT, seed, CPU).items()}
    for n, p in params.items():
        if "_conv" in n or n == "selector_b":
            p += torch.randn(p.shape, generator=gen) * 0.2
    return params


def scene(length: int = 64, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return (torch.randn(1, length, 128, generator=gen), torch.randint(0, 60, (1, length), generator=gen), torch.randn(64, 64, generator=gen) * 0.3)


def packed(features: torch.Tensor, ids: torch.Tensor, table: torch.Tensor, w: D.Params, anchors: list[int]) -> torch.Tensor:
    """The training layout: all blocks against one context. [N, 8, H]"""
    pos = torch.arange(ids.shape[1])[None]
    anchor = torch.tensor([anchors])
    allowed = D.visible(anchor, torch.zeros_like(ids), ids.shape[1], DRAFT)
    return D.blocks(features, ids.gather(1, anchor), anchor, pos, allowed, table, w, DRAFT)[0]


class Ring:
    """The decode layout: keys and values of the last W context positions per layer, appended as text is committed."""

    def __init__(self, w: D.Params) -> None:
        self.w, self.length = w, 0
        self.k = [torch.zeros(DRAFT.num_key_value_heads, DRAFT.window, DRAFT.head_dim) for _ in range(DRAFT.num_hidden_layers)]
        self.v = [k.clone() for k in self.k]
        self.at = torch.full((DRAFT.window,), -1)

    def commit(self, features: torch.Tensor) -> None:
        for f in features:
            ctx = D.context(f[None, None], self.w, DRAFT)
            slot = self.length % DRAFT.window
            for i in range(DRAFT.num_hidden_layers):
                k, v = D.context_kv(ctx, torch.tensor([[self.length]]), self.w, i, DRAFT)
                self.k[i][:, slot], self.v[i][:, slot] = k[0, :, 0], v[0, :, 0]
            self.at[slot] = self.length
            self.length += 1

    def block(self, anchor_id: int, table: torch.Tensor) -> torch.Tensor:
        """Hidden states [8, H] of a block whose anchor sits at position `length`."""
        c, w = DRAFT, self.w
        ids = torch.tensor([anchor_id] + [c.mask_id] * (c.block - 1))
        x = F.embedding(ids, table)
        pos = self.length + torch.arange(c.block)
        seen = (self.at >= 0)[None] & (pos[:, None] - self.at[None] < c.window)
        for i in range(c.num_hidden_layers):
            p, a = f"layers.{i}.", f"layers.{i}.self_attn."
            n = D.rms(x, w[p + "input_layernorm.weight"], c.eps)
            k = F.linear(n, w[p + "attention_conv.kernel_projection.weight"]).view(c.block, 2, 2, -1)
            u = self.conv(n, w[p + "attention_conv.base_kernel"][0], k[:, 0])
            heads = lambda name, count: F.linear(u, w[a + name]).view(c.block, count, c.head_dim)  # noqa: B023, E731
            q = D.rope(D.rms(heads("q_proj.weight", c.num_attention_heads), w[a + "q_norm.weight"], c.eps).transpose(0, 1)[None], pos[None], c.theta)[0]
            kb = D.rope(D.rms(heads("k_proj.weight", c.num_key_value_heads), w[a + "k_norm.weight"], c.eps).transpose(0, 1)[None], pos[None], c.theta)[0]
            vb = heads("v_proj.weight", c.num_key_value_heads).transpose(0, 1)
            outs = []
            for h in range(c.num_attention_heads):
                g = h // (c.num_attention_heads // c.num_key_value_heads)
                s = torch.cat([(q[h] @ self.k[i][g].T).masked_fill(~seen, -torch.inf), q[h] @ kb[g].T], 1) * c.head_dim ** -0.5
                outs.append(torch.softmax(s, -1) @ torch.cat([self.v[i][g], vb[g]]))
            z = F.linear(torch.cat(outs, -1), w[a + "o_proj.weight"])
            x = x + self.conv(z, w[p + "attention_conv.base_kernel"][1], k[:, 1])
            m = D.rms(x, w[p + "post_attention_layernorm.weight"], c.eps)
            k = F.linear(m, w[p + "mlp_conv.kernel_projection.weight"]).view(c.block, 2, 2, -1)
            u = self.conv(m, w[p + "mlp_conv.base_kernel"][0], k[:, 0])
            z = F.linear(F.silu(F.linear(u, w[p + "mlp.gate_proj.weight"])) * F.linear(u, w[p + "mlp.up_proj.weight"]), w[p + "mlp.down_proj.weight"])
            x = x + self.conv(z, w[p + "mlp_conv.base_kernel"][1], k[:, 1])
        return D.rms(x, w["norm.weight"], c.eps)

    @staticmethod
    def conv(y: torch.Tensor, base: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        full = base + k.repeat_interleave(DRAFT.group, -1)
        before = torch.cat([torch.zeros_like(y[:1]), y[:-1]])
        return full[:, 0] * y + full[:, 1] * before


def test_golden_draft(fixtures: Path) -> None:
    folder, target = fixtures / "dense-draft", fixtures / "dense"
    c = D.DraftConfig.from_folder(folder)
    w = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    t = {k: v.float() for k, v in load_file(target / "model.safetensors").items()}
    given, expected = load_file(target / "expected.safetensors"), load_file(folder / "expected.safetensors")
    ids, features = given["ids"].long(), torch.cat([given["hidden.1"], given["hidden.3"]], -1)[None]
    for n in (5, 24, 33, 64, 95):
        anchor = torch.tensor([[n]])
        allowed = D.visible(anchor, torch.zeros(1, 96, dtype=torch.long), n, c)
        h = D.blocks(features[:, :n], ids[None, n:n + 1], anchor, torch.arange(n)[None], allowed, t["model.embed_tokens.weight"], w, c)[0, 0]
        logits = h @ t["lm_head.weight"].T
        candidates, scores, path = D.walk(h[1:], logits[1:], ids[n], D.codebooks(w, h), w, c)
        assert (h - expected[f"n{n}.hidden"]).abs().max() < 1e-3 and (logits - expected[f"n{n}.logits"]).abs().max() < 1e-3
        assert torch.equal(candidates, expected[f"n{n}.candidates"].long()) and torch.equal(path, expected[f"n{n}.path"].long())
        assert (scores - expected[f"n{n}.scores"]).abs().max() < 1e-3


def test_gate_1_fresh_draft_is_dflash_1() -> None:
    features, ids, table = scene()
    w = {n: p.detach() for n, p in D.init_params(DRAFT, 1, CPU).items()}
    fresh = packed(features, ids, table, w, [20, 40])
    plain = D.conv
    D.conv = lambda y, base, coefficient, group: y  # type: ignore[assignment]
    try:
        assert torch.equal(fresh, packed(features, ids, table, w, [20, 40]))
    finally:
        D.conv = plain
    logits = fresh[:, 1:] @ table.T
    _, _, with_selector = D.walk(fresh[:, 1:], logits, ids[0, [20, 40]], D.codebooks(w, table), w, DRAFT)
    assert torch.equal(with_selector, logits.argmax(-1))


@pytest.mark.parametrize("anchor", [1, 3, 7, 15, 16, 17, 23, 24, 40, 55])
def test_gates_2_and_8_training_layout_equals_decode_layout(anchor: int) -> None:
    """Also at the window's edge, past the ring's wrap, and for prompts shorter than a block."""
    features, ids, table = scene()
    w = random_draft()
    ring = Ring(w)
    ring.commit(features[0, :anchor])
    together = packed(features, ids, table, w, sorted({anchor, 5, 30}))
    mine = together[sorted({anchor, 5, 30}).index(anchor)]
    assert (mine - ring.block(int(ids[0, anchor]), table)).abs().max() < 1e-4


def test_gate_3_no_leak() -> None:
    features, ids, table = scene()
    w = random_draft()
    before = packed(features, ids, table, w, [30])
    changed, other = features.clone(), ids.clone()
    changed[:, 30:38] += 1
    other[:, 31:38] = 1
    assert torch.equal(before, packed(changed, other, table, w, [30]))
    changed = features.clone()
    changed[:, 29] += 1
    assert (before - packed(changed, ids, table, w, [30])).abs().max() > 1e-3
    other = ids.clone()
    other[:, 30] = (other[:, 30] + 1) % 60
    assert (before - packed(features, other, table, w, [30])).abs().max() > 1e-3


def greedy_text(w: M.Params) -> G.Text:
    script = torch.full((1, 128), EOT)
    script[0, :5], script[0, 5] = torch.tensor([3, 1, 4, 1, 5]), G.GEN
    out = G.Text.empty(1, 128, 2, 64, CPU, torch.float32)
    G.play(script, torch.zeros(1), out, w, TARGET, DRAFT.taps, EOT, END, limit=200, banned=(EOT, END, DRAFT.mask_id))
    return out


def real_loop(w: M.Params, draft: D.Params, prompt: list[int], total: int) -> tuple[list[int], list[int]]:
    """Draft, verify by one target forward over the block, accept, commit: text and tokens per step."""
    table, ring, gains = w["model.embed_tokens.weight"], Ring(draft), []
    books, banned = D.codebooks(draft, table), [EOT, END, DRAFT.mask_id]

    def target(text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        padded = torch.tensor([text + [0] * (-len(text) % M.CHUNK)])
        h, kept = M.forward(padded, w, TARGET, EOT, taps=DRAFT.taps)
        logits = h[0, :len(text)] @ table.T
        logits[:, banned] = -1e4
        return logits.argmax(-1), torch.cat(kept, -1)[0, :len(text)]

    best, features = target(prompt)
    ring.commit(features)
    text = prompt + [int(best[-1])]
    while len(text) < total:
        n = len(text) - 1
        h = ring.block(text[-1], table)
        _, _, path = D.walk(h[1:], h[1:] @ table.T, torch.tensor(text[-1]), books, draft, DRAFT)
        best, features = target(text + path.tolist())
        accepted = 0
        while accepted < 7 and int(best[n + accepted]) == int(path[accepted]):
            accepted += 1
        ring.commit(features[n:n + accepted + 1])  # gate 7: only committed rows enter any state
        text += path[:accepted].tolist() + [int(best[n + accepted])]
        gains.append(accepted + 1)
    return text[:total], gains


def test_gates_4_5_7_overfit_and_real_loop(tmp_path: Path) -> None:
    """Overfit one reply: tau nears 8 offline and in the real loop, whose text is plain greedy decoding's."""
    torch.manual_seed(0)
    w = {n: p.detach() for n, p in M.init_params(TARGET, 3, CPU).items()}
    w["model.embed_tokens.weight"] *= 25  # a sharp random model: its greedy text wanders instead of repeating one id
    text = greedy_text(w)
    params = D.init_params(DRAFT, 1, CPU)
    args = argparse.Namespace(seed=1, muon_lr=1e-2, adam_lr=5e-3, no_conv=False, eval_rows=1, seconds=0, steps=150, quantise_from=2.0, rows=1, anchors=32, log_every=150, quick_rows=1,
                              save_every=0, stop_after=-1, resume=None, out=tmp_path, started=time.time(), kl=0.5, tv=False, no_selector=False)
    R.train(args, params, DRAFT, text, text, w, EOT, torch.float32)
    plain = {n: p.detach() for n, p in params.items()}
    index = torch.tensor([0])
    offline = R.tau(text, index, w["model.embed_tokens.weight"], M.head(w), plain, DRAFT, EOT)["tau"]
    looped, gains = real_loop(w, plain, text.ids[0, :5].tolist(), 120)
    assert looped == text.ids[0, :120].tolist()
    assert offline > 7 and np.mean(gains) > 7


def test_gate_6_sampled_law() -> None:
    """The acceptance rule on a toy vocabulary: speculative samples follow p whatever q is (chi-square, 300,000 draws)."""
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(12)), np.zeros(12)
    q[:5] = rng.dirichlet(np.ones(5))  # the draft knows only some ids
    n = 300_000
    drawn = rng.choice(12, n, p=q)
    taken = rng.random(n) * q[drawn] < p[drawn]
    rest = np.maximum(p - q, 0)
    final = np.where(taken, drawn, rng.choice(12, n, p=rest / rest.sum()))
    chi = ((np.bincount(final, minlength=12) - n * p) ** 2 / (n * p)).sum()
    assert chi < 31.3  # 99.9 % quantile for 11 degrees of freedom


def test_export_has_published_names(tmp_path: Path, fixtures: Path) -> None:
    params = D.init_params(DRAFT, 1, CPU)
    table = torch.randn(64, 64)
    R.export(params, table, DRAFT, tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert names == set(load_file(fixtures / "dense-draft" / "model.safetensors"))
    assert D.DraftConfig.from_folder(tmp_path) == replace(DRAFT)
    again = D.init_params(DRAFT, 2, CPU)
    R.warm_start(tmp_path, again, table)
    assert (D.codebooks(again, table)[0] - D.codebooks(params, table)[0]).abs().max() < 0.05


def small_target(folder: Path) -> None:
    """A Hugging Face folder of a random hybrid model with the built-in model's tokenizer."""
    import train

    config = replace(TARGET, vocab_size=8192)
    train.save_folder(M.init_params(config, 3, CPU), config, 0, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TRAIN.parent / "models" / "tiny" / "tokenizer" / name).read_bytes())


def test_program_writes_a_draft_and_resumes(tmp_path: Path) -> None:
    """The whole command on a small target: conversations in, published folder out, tau by position printed; a run that was
    stopped half-way and resumed ends with the weights of one that was not."""
    target, prompts = tmp_path / "target", tmp_path / "prompts.jsonl"
    small_target(target)
    lines = [{"messages": [{"role": "user", "content": f"What is {i} + 2?"}, {"role": "assistant", "content": f"{i} + 2 = {i + 2}"}]} for i in range(80)]
    prompts.write_text("\n".join(json.dumps(line) for line in lines))

    def run(out: str, *more: str) -> str:
        command = [sys.executable, str(TRAIN / "draft.py"), "--target", str(target), "--prompts", str(prompts), "--out", str(tmp_path / out), "--heads", "4", "--kv-heads", "2", "--head-dim", "16",
                   "--intermediate", "64", "--rank", "16", "--window", "64", "--length", "96", "--batches", "1", "--batch", "2", "--eval-rows", "1", "--rows", "2", "--anchors", "4",
                   "--steps", "8", "--log-every", "1", "--quick-rows", "1", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = run("straight")
    assert '"by_position"' in shown and '"held"' in shown
    run("halved", "--stop-after", "4", "--save-every", "4")
    run("halved", "--resume", str(tmp_path / "halved" / "resume.pt"))
    straight, halved = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "halved"))
    assert straight.keys() == halved.keys() and all(torch.equal(straight[n], halved[n]) for n in straight)
    c = D.DraftConfig.from_folder(tmp_path / "straight")
    assert set(straight) == set(D.shapes_of(c)) and c.taps == (0, 1, 2)
