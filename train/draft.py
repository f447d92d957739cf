"""Train a DFlash 2 draft for a dense hybrid target.

    python train/draft.py --target HF_FOLDER --prompts FILE --out DIR

PROMPTS is a JSONL file of conversations ({"messages": [...], "tools": [...]}; the assistant turns are written anew by the
target) or a folder of packed rows from train/rows.py. The target's replies, greedy in half of the rows and sampled in the
others, are generated first, with the features that decoding with 4-bit weights produces; training then draws anchors at
random from them. With --save-every a run leaves DIR/resume.pt (weights, optimiser, position) and an exported draft behind;
--resume goes on from there. Held-out rows are walked through offline exactly as the decode loop would (anchor, proposal, longest
correct prefix, next anchor) and give tau, the mean of accepted + 1. DIR receives the published tensor names and config.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import draft_model as D
import generate as G
import model as M
import optim
import quant
import rows


# ------------------------------------------------------------------------------------------------------------ prompts


def conversation_pieces(hf_tokenizer: object, line: dict) -> list[tuple[str, bool]]:
    """Template output cut at the assistant's turns: the prompt before each, and the turn itself up to its end token."""
    messages, tools = line["messages"], line.get("tools") or None
    whole = hf_tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    pieces, at = [], 0
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = hf_tokenizer.apply_chat_template(messages[:i], tools=tools, tokenize=False, add_generation_prompt=True)
        if not whole.startswith(before):  # a template that rewrites history: keep what came before as it is
            continue
        end = whole.index(hf_tokenizer.eos_token, len(before)) + len(hf_tokenizer.eos_token)
        pieces += [(whole[at:len(before)], False), (whole[len(before):end], True)]
        at = end
    return pieces + [(whole[at:], False)]


def rows_from_jsonl(file: Path, target: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pack the conversations of a JSONL file into rows of ids and own flags, as rows.py does."""
    from transformers import AutoTokenizer

    hf_tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    eot = int(hf_tokenizer.pad_token_id)
    all_ids, all_own, ids, own = [], [], [], []
    for text in file.read_text().splitlines():
        one, flags = rows.encode_dialogue(tokenizer, conversation_pieces(hf_tokenizer, json.loads(text)))
        if len(ids) + len(one) + 1 > rows.ROW and ids:
            all_ids.append(ids), all_own.append(own)
            ids, own = [], []
        ids, own = ids + one + [eot], own + flags + [0]
    all_ids.append(ids), all_own.append(own)
    packed = np.full((len(all_ids), rows.ROW), eot, dtype=np.int32)
    flags = np.zeros((len(all_ids), rows.ROW), dtype=np.uint8)
    for r, (one, mine) in enumerate(zip(all_ids, all_own)):
        n = min(len(one), rows.ROW)
        packed[r, :n], flags[r, :n] = one[:n], mine[:n]
    return packed, flags


def load_rows(prompts: Path, target: Path, needed: int, split: str = "train", wait: float = 90) -> tuple[np.ndarray, np.ndarray]:
    """At least `needed` packed rows; a folder of shards may still be filling."""
    if prompts.is_file():
        return rows_from_jsonl(prompts, target)
    stop = time.time() + wait
    while True:
        files = [f for f in sorted(prompts.glob(f"{split}-*.npz")) if ".tmp" not in f.name]
        parts = [np.load(f) for f in files]
        if sum(len(p["ids"]) for p in parts) >= needed or time.time() > stop:
            return np.concatenate([p["ids"] for p in parts])[:needed].astype(np.int32), np.concatenate([p["own"] for p in parts])[:needed]
        time.sleep(1)


# ----------------------------------------------------------------------------------------------------------- training


@dataclass
class Batch:
    """One draw of anchors: rows [B]; anchor [B, N] row indices; labels [B, N, 7]; mask [B, N, 7] of labels that count."""

    index: torch.Tensor
    anchor: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor


def documents(ids: torch.Tensor, eot: int) -> tuple[torch.Tensor, torch.Tensor]:
    return M.boundaries(ids, eot)


def anchors(text: G.Text, index: torch.Tensor, count: int, block: int, gen: torch.Generator) -> Batch:
    """`count` random anchors per row among the model's own tokens that have an own token after them.

    A label counts while the reply goes on: up to its end token, never into the next turn.
    """
    own = text.own[index]
    rows_, length = own.shape
    valid = own & F.pad(own[:, 1:], (0, 1), value=False)
    valid[:, length - 1:] = False
    key = torch.rand(rows_, length, device=own.device, generator=gen).masked_fill(~valid, -1.0)
    best, anchor = key.topk(count, 1)
    anchor, order = anchor.sort(1)
    usable = best.gather(1, order) >= 0
    slots = anchor[..., None] + torch.arange(1, block, device=own.device)
    inside = slots < length
    slots = slots.clamp_max(length - 1)
    flat = slots.flatten(1)
    mask = own.gather(1, flat).view_as(slots) & inside & usable[..., None]
    return Batch(index, anchor, text.ids[index].gather(1, flat).view_as(slots), mask.long().cumprod(-1).bool())


def run_blocks(text: G.Text, index: torch.Tensor, anchor: torch.Tensor, doc: torch.Tensor, pos: torch.Tensor, table: torch.Tensor, w: D.Params, c: D.DraftConfig) -> torch.Tensor:
    """Draft states [B, N, K, H] at the given anchors of rows `index`."""
    ids = text.ids[index]
    allowed = D.visible(anchor, doc[index], ids.shape[1], c)
    return D.blocks(text.features[index], ids.gather(1, anchor), pos[index].gather(1, anchor), pos[index], allowed, table, w, c)


def dpace(ce: torch.Tensor, mask: torch.Tensor, alpha: float = 0.5) -> torch.Tensor:
    """Weights of the slots [.., 7]: w_j = sum over n >= j of prod over i <= n of the smoothed probabilities (detached)."""
    smooth = (1 - alpha) * torch.exp(-ce.detach()) + alpha
    product = torch.cumprod(smooth, -1) * mask
    return product.flip(-1).cumsum(-1).flip(-1) * mask


def losses(text: G.Text, batch: Batch, h: torch.Tensor, head: torch.Tensor, table: torch.Tensor, w: D.Params, c: D.DraftConfig, args: argparse.Namespace, ramp: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """D-PACE weighted cross entropy and KL to the target's law, and the selector's cross entropy (or overlap) loss."""
    h = h[:, :, 1:]
    slots = (batch.anchor[..., None] + torch.arange(c.block - 1, device=h.device)).clamp_max(text.ids.shape[1] - 1)
    keep = batch.mask.flatten()
    rows_ = torch.arange(len(batch.index), device=h.device)[:, None, None].expand_as(slots)
    hidden = text.hidden[batch.index[rows_.flatten()[keep]], slots.flatten()[keep]]  # position a+t-1 predicts token a+t
    with torch.no_grad():
        target = torch.log_softmax(F.linear(hidden, head).float(), -1)
    flat = h.flatten(0, 2)[keep]
    labels = batch.labels.flatten()[keep]
    base = F.linear(flat, head).float()
    logp = torch.log_softmax(base, -1)
    ce = -logp.gather(-1, labels[:, None])[:, 0]
    full = torch.zeros(batch.mask.shape, device=h.device).masked_scatter(batch.mask, ce.detach())
    weight = dpace(full, batch.mask.float()).flatten()[keep]
    weight = weight / weight.sum()
    kl = (target.exp() * (target - logp)).sum(-1)
    loss = (weight * (ce + args.kl * kl)).sum()
    before = torch.cat([text.ids[batch.index].gather(1, batch.anchor)[..., None], batch.labels[..., :-1]], -1).flatten()[keep]
    top, candidates = base.detach().topk(c.top_k, -1)
    scores = D.select_scores(flat, base.gather(-1, candidates), candidates, before, D.codebooks(w, table), w)
    hit = candidates == labels[:, None]
    found = hit.any(-1)
    sel_logp = torch.log_softmax(scores, -1)
    sel_ce = -(sel_logp * hit).sum(-1)
    sel_weight = weight * found
    selector = (sel_weight * sel_ce).sum() / sel_weight.sum().clamp_min(1e-9)
    if args.tv:
        overlap = torch.minimum(sel_logp.exp(), target.exp().gather(-1, candidates)).sum(-1)
        selector = 0.1 * selector + 0.9 * (weight * (1 - overlap)).sum()
    if not args.no_selector:
        loss = loss + ramp * selector
    return loss, {"ce": (weight * ce).sum().detach(), "selector": selector.detach(), "recall16": (weight * found).sum().detach(), "kl": (weight * kl).sum().detach()}


# --------------------------------------------------------------------------------------------------------- evaluation


@torch.no_grad()
def proposals(text: G.Text, index: torch.Tensor, table: torch.Tensor, head: torch.Tensor, w: D.Params, c: D.DraftConfig, use_selector: bool, eot: int, per: int = 32) -> torch.Tensor:
    """The greedy path from every position of the given rows as anchor: [B, T, 7]."""
    pos, doc = documents(text.ids, eot)
    books = D.codebooks(w, table)
    out = []
    length = text.ids.shape[1]
    for first in range(0, length, per):
        anchor = torch.arange(first, min(first + per, length), device=index.device).expand(len(index), -1)
        h = run_blocks(text, index, anchor, doc, pos, table, w, c)[:, :, 1:]
        logits = F.linear(h, head)
        out.append(D.walk(h, logits, text.ids[index].gather(1, anchor), books, w, c, use_selector)[2])
    return torch.cat(out, 1)


def simulate(ids: np.ndarray, own: np.ndarray, path: np.ndarray) -> list[int]:
    """Tokens gained by each step of the decode loop over greedy replies (ids, own [T], path [T, 7])."""
    gains, t, length = [], 0, len(ids)
    while t < length - 1:
        if not (own[t] and own[t + 1]):
            t += 1
            continue
        accepted = 0
        while accepted < path.shape[1] and t + 1 + accepted < length and own[t + 1 + accepted] and path[t, accepted] == ids[t + 1 + accepted]:
            accepted += 1
        left = 0  # the step also yields the target's own next token, unless the reply is over
        while left <= accepted and t + 1 + left < length and own[t + 1 + left]:
            left += 1
        gains.append(left)
        t += left
    return gains


def tau(text: G.Text, index: torch.Tensor, table: torch.Tensor, head: torch.Tensor, w: D.Params, c: D.DraftConfig, eot: int, use_selector: bool = True) -> dict[str, object]:
    """Mean tokens per step in the decode layout, and how often slot k is right when all before it are."""
    path = proposals(text, index, table, head, w, c, use_selector, eot)
    ids, own = text.ids[index], text.own[index]
    slots = torch.arange(1, c.block, device=ids.device)
    length = ids.shape[1]
    at = (torch.arange(length, device=ids.device)[:, None] + slots).clamp_max(length - 1)
    live = (own[:, at] & own[:, :, None]).long().cumprod(-1)
    right = ((path == ids[:, at]).long() * live).cumprod(-1)
    before = torch.cat([live[..., :1], right[..., :-1] * live[..., 1:]], -1)
    conditional = right.sum((0, 1)).float() / before.sum((0, 1)).clamp_min(1).float()
    gains = [g for r in range(len(index)) for g in simulate(ids[r].cpu().numpy(), own[r].cpu().numpy(), path[r].cpu().numpy())]
    return {"tau": round(float(np.mean(gains)), 3), "steps": len(gains), "by_position": [round(float(v), 3) for v in conditional]}


def export(w: D.Params, table: torch.Tensor, c: D.DraftConfig, out: Path) -> None:
    """Published names, bf16, codebooks materialised."""
    out.mkdir(parents=True, exist_ok=True)
    a, b = D.codebooks(w, table)
    tensors = {n: w[n].detach() for n in D.shapes_of(c) if "codebook" not in n}
    tensors |= {"candidate_selector.predecessor_codebook": a.detach(), "candidate_selector.successor_codebook": b.detach()}
    save_file({n: t.to(torch.bfloat16).cpu().contiguous() for n, t in tensors.items()}, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(c.published(), indent=1) + "\n")


# --------------------------------------------------------------------------------------------------------------- main


def load_target(folder: Path, device: torch.device, dtype: torch.dtype, source: bool) -> tuple[M.Config, M.Params]:
    """Weights as inference uses them: through 4 bits unless `source`."""
    c = M.Config.from_hf(folder)
    raw: M.Params = {}
    for file in sorted(folder.glob("*.safetensors")):
        raw |= load_file(str(file))
    raw = {n.replace("model.language_model.", "model."): t.to(device).float() for n, t in raw.items() if "visual" not in n and not n.startswith("mtp")}
    with torch.no_grad():
        w = M.effective(raw, False, dtype) if source else {n: t.detach() for n, t in quant.quantised(raw, dtype).items()}
    return c, w


def warm_start(folder: Path, params: D.Params, table: torch.Tensor) -> None:
    """Go on from an exported draft; the projections behind its codebooks come back by least squares."""
    tensors = load_file(str(folder / "model.safetensors"))
    for name, p in params.items():
        if name in tensors:
            p.data.copy_(tensors[name])
    for name, book in (("selector_a", "predecessor"), ("selector_b", "successor")):
        values = tensors[f"candidate_selector.{book}_codebook"].to(table.device).float()
        params[name].data.copy_(torch.linalg.lstsq(table.float(), values).solution.T)


def draft_config(args: argparse.Namespace, c: M.Config, mask_id: int) -> D.DraftConfig:
    return D.DraftConfig(c.hidden_size, c.vocab_size, args.intermediate, args.layers, args.heads, args.kv_heads, args.head_dim, args.window, args.block, mask_id,
                         D.default_taps(args.taps, c.num_hidden_layers), c.num_hidden_layers, args.rank, theta=c.rope_theta)


def make_text(args: argparse.Namespace, c: M.Config, w: M.Params, dc: D.DraftConfig, special: dict[str, int], device: torch.device, mode: str) -> G.Text:
    """Generated rows: `train` mixes greedy and sampled rows, `eval` is greedy; off-policy keeps the given replies."""
    batches, size = (args.batches, args.batch) if mode == "train" else (1, args.eval_rows)
    if mode == "eval" and not args.eval_prompts:  # the last rows of the prompts, which training does not reach
        ids, own = load_rows(args.prompts, args.target, args.batches * args.batch + size)
        ids, own = ids[-size:], own[-size:]
    elif mode == "eval":
        ids, own = load_rows(args.eval_prompts, args.target, size, "eval")
    else:
        ids, own = load_rows(args.prompts, args.target, batches * size)
    count = max(1, min(batches, len(ids) // size))
    size = min(size, len(ids))
    dtype = w["model.embed_tokens.weight"].dtype
    text = G.Text.empty(count * size, args.length, len(dc.taps), c.hidden_size, device, dtype)
    for i in range(count):
        which = slice(i * size, (i + 1) * size)
        keep = args.off_policy and mode == "train"
        scripts = ids[which] if keep else G.scripts_of(ids[which], own[which], special["eot"], args.length)
        temperature = torch.zeros(size, device=device)
        if mode == "train":
            temperature[1::2] = args.temperature
        part = text.part(which)
        G.play(torch.from_numpy(scripts.astype(np.int64)).to(device), temperature, part, w, c, dc.taps, special["eot"], special["end"], seed=args.seed + i, banned=(dc.mask_id,))
        if keep:
            part.own.copy_(torch.from_numpy(own[which][:, :args.length] == 1))
        elapsed = time.time() - args.started
        print(f"{mode} batch {i}: {int(part.own.sum())} own of {part.own.numel()} tokens, {elapsed:.0f} s", flush=True)
        if mode == "train" and args.steps < 0 and elapsed > args.generate_share * args.seconds:
            text = text.part(slice(0, (i + 1) * size))
            break
    if mode == "eval":
        args.out.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(args.out / "held.npz", ids=text.ids.cpu().numpy().astype(np.int32), own=text.own.cpu().numpy(), given=ids[:size], given_own=own[:size])
    return text


def save_resume(file: Path, params: D.Params, optimiser: optim.Optimiser, gen: torch.Generator, step: int, progress: float) -> None:
    """Everything that a later run needs to go on; the generated text comes back from its seed."""
    torch.save({"params": {n: p.detach().cpu() for n, p in params.items()}, "adam": optimiser.adam.state_dict(), "muon": [b.cpu() for b in optimiser.muon.buffers],
                "gen": gen.get_state(), "step": step, "progress": progress}, file.with_suffix(".tmp"))
    file.with_suffix(".tmp").rename(file)


def resume(file: Path, params: D.Params, optimiser: optim.Optimiser, gen: torch.Generator) -> tuple[int, float]:
    """Restores a saved run; returns its step and how far its schedule was."""
    saved = torch.load(file, weights_only=True, map_location="cpu")
    for name, value in saved["params"].items():
        params[name].data.copy_(value)
    for buffer, value in zip(optimiser.muon.buffers, saved["muon"]):
        buffer.copy_(value)
    optimiser.adam.load_state_dict(saved["adam"])
    gen.set_state(saved["gen"])
    print(f"going on after step {saved['step']}", flush=True)
    return saved["step"], saved["progress"]


def train(args: argparse.Namespace, params: D.Params, dc: D.DraftConfig, text: G.Text, held: G.Text, w: M.Params, eot: int, dtype: torch.dtype) -> dict[str, object]:
    device = text.ids.device
    table, head = w["model.embed_tokens.weight"], M.head(w)
    pos, doc = documents(text.ids, eot)
    gen = torch.Generator(device=device).manual_seed(args.seed + 7)
    optimiser = optim.Optimiser(params, args.muon_lr, args.adam_lr, args.adam_lr, decay_from=0.5, warmup=0.03)
    for p in params.values():
        p.grad = torch.zeros_like(p)
    frozen = [n for n in params if args.no_conv and "_conv." in n]
    show = torch.arange(min(len(held.ids), args.eval_rows), device=device)
    begin, step, log, behind = time.time(), 0, [], 0.0
    if args.resume:
        step, behind = resume(args.resume, params, optimiser, gen)
    while True:
        progress = behind + (1 - behind) * (time.time() - begin) / max(1.0, args.started + args.seconds - begin) if args.steps < 0 else step / args.steps
        if progress >= 1 or step == args.stop_after:
            break
        quantise = progress >= args.quantise_from
        wq = quant.quantised(params, dtype) if quantise else M.effective(params, False, dtype)
        index = torch.randint(len(text.ids), (args.rows,), device=device, generator=gen)
        batch = anchors(text, index, args.anchors, dc.block, gen)
        h = run_blocks(text, index, batch.anchor, doc, pos, table, wq, dc)
        ramp = min(1.0, max(0.0, (progress - 0.1) / 0.1))
        loss, parts = losses(text, batch, h, head, table, wq, dc, args, ramp)
        loss.backward()
        for n in frozen:
            params[n].grad.zero_()
        norm = optimiser.step(progress)
        step += 1
        if step % args.log_every == 0:
            row = {"step": step, "seconds": round(time.time() - args.started, 1), "progress": round(progress, 3), "loss": round(float(loss.detach()), 4), "norm": round(float(norm), 3),
                   **{k: round(float(v), 4) for k, v in parts.items()}, "quantised": int(quantise)}
            if step % (4 * args.log_every) == 0:
                row["held"] = tau(held, show[:args.quick_rows], table, head, wq, dc, eot)
            log.append(row)
            print(json.dumps(row), flush=True)
        if args.save_every and step % args.save_every == 0:
            export(params, table, dc, args.out)
            save_resume(args.out / "resume.pt", params, optimiser, gen, step, progress)
    with torch.no_grad():
        wq = {n: t.detach() for n, t in quant.quantised(params, dtype).items()}
    final = {"q4": tau(held, show, table, head, wq, dc, eot), "q4_without_selector": tau(held, show, table, head, wq, dc, eot, False),
             "source": tau(held, show, table, head, M.effective(params, False, dtype), dc, eot), "steps": step, "seconds": round(time.time() - begin, 1)}
    print("final:", json.dumps(final), flush=True)
    return {"final": final, "log": log}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--eval-prompts", type=Path, help="held-out prompts (default: the last rows of --prompts)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="resume.pt that an earlier run with --save-every left in its folder")
    parser.add_argument("--warm", type=Path, help="an exported draft to start from")
    for name, value in (("layers", 2), ("heads", 8), ("kv-heads", 2), ("head-dim", 64), ("intermediate", 1024), ("taps", 3), ("window", 512), ("block", 8), ("rank", 64),
                        ("length", 1024), ("batches", 8), ("batch", 2048), ("eval-rows", 128), ("quick-rows", 32), ("rows", 48), ("anchors", 64), ("steps", -1), ("stop-after", -1), ("log-every", 50),
                        ("save-every", 400), ("seed", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("seconds", 260.0), ("generate-share", 0.35), ("temperature", 0.7), ("kl", 0.5), ("muon-lr", 3e-3), ("adam-lr", 2e-3), ("quantise-from", 0.6)):
        parser.add_argument(f"--{name}", type=float, default=value)
    for name, text in (("tv", "overlap loss on the selector"), ("no-conv", "ablation: convolutions stay the identity"), ("no-selector", "ablation: selector untrained"),
                       ("off-policy", "ablation: train on the given replies"), ("source-weights", "target without 4-bit quantisation")):
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--mask-token", default="<|mask|>")
    parser.add_argument("--record", type=Path)
    return parser.parse_args()


def main() -> None:
    args = parse()
    args.started = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    special = {"eot": tokenizer.token_to_id("<|endoftext|>"), "end": tokenizer.token_to_id("<|im_end|>")}
    c, w = load_target(args.target, device, dtype, args.source_weights)
    dc = draft_config(args, c, tokenizer.token_to_id(args.mask_token))
    params = D.init_params(dc, args.seed, device)
    if args.warm:
        warm_start(args.warm, params, w["model.embed_tokens.weight"])
    print("draft parameters", sum(p.numel() for p in params.values()), "taps", dc.taps, flush=True)
    held = make_text(args, c, w, dc, special, device, "eval")
    text = make_text(args, c, w, dc, special, device, "train")
    record = train(args, params, dc, text, held, w, special["eot"], dtype)
    export(params, w["model.embed_tokens.weight"], dc, args.out)
    record["args"] = {k: str(v) for k, v in vars(args).items()}
    (args.record or args.out / "record.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
