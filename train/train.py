"""Train the built-in target in a fixed number of seconds on one or several GPUs.

    python train/train.py --data DIR --tokenizer DIR --out DIR --seconds 450
    torchrun --nproc-per-node 2 train/train.py ...            (the same, data parallel)

The schedule follows the clock, so that a run always ends: language first, dialogues more and more, the learning rate
falling over the last part, and fake-quantised weights from --quantise-from on. Weights are written as a Hugging Face
folder in shards of at most 15 MiB every --save-every seconds, so that a run that is cut off loses little.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import data
import model as M
import optim
import quant


def cross_entropy(h: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of losses; h [R, H], head [V, H], labels and weights [R]."""
    logits = F.linear(h, head).float()
    loss = torch.logsumexp(logits, -1) - logits.gather(-1, labels[:, None])[:, 0]
    return (loss * weights).sum()


def targets(ids: torch.Tensor, own: torch.Tensor | None, eot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Next ids and their weights [B, T]: nothing after an end-of-text, little on what a user or a tool says."""
    labels = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    weights = (ids != eot).float()
    weights[:, -1] = 0
    if own is not None:
        next_own = torch.cat([own[:, 1:], own[:, :1]], 1)
        weights = weights * (data.PROMPT_WEIGHT + (1 - data.PROMPT_WEIGHT) * next_own.float()) * (labels != eot)
    return labels, weights


@dataclass
class Run:
    args: argparse.Namespace
    config: M.Config
    device: torch.device
    rank: int
    world: int
    eot: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        cuda = self.device.type == "cuda"
        self.pieces = M.Pieces.compiled() if cuda else M.Pieces()
        self.loss = torch.compile(cross_entropy, dynamic=False) if cuda else cross_entropy
        self.gen = torch.Generator(device=self.device).manual_seed(self.args.seed + self.rank)

    def weights(self, params: M.Params, quantise: bool) -> M.Params:
        return quant.quantised(params, self.dtype) if quantise else M.effective(params, False, self.dtype)

    def batch(self, language: torch.Tensor, talk: data.Dialogues, share: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows of language and dialogues in the given share; ids, labels, weights [B, ROW]."""
        rows = self.args.rows
        n_talk = min(round(rows * share), rows) if len(talk.ids) >= rows else 0
        start = torch.randint(len(language) - data.ROW, (rows - n_talk, 1), device=self.device, generator=self.gen)
        ids = language[start + torch.arange(data.ROW, device=self.device)].long()
        labels, weights = targets(ids, None, self.eot)
        if n_talk:
            t_ids, own = talk.take(n_talk)
            t_labels, t_weights = targets(t_ids, own, self.eot)
            ids, labels, weights = (torch.cat(p) for p in ((ids, t_ids), (labels, t_labels), (weights, t_weights)))
        return ids, labels, weights

    def step_loss(self, params: M.Params, ids: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, quantise: bool) -> torch.Tensor:
        w = self.weights(params, quantise)
        h, _ = M.forward(ids, w, self.config, self.eot, self.pieces)
        return self.loss(h.flatten(0, 1), M.head(w), labels.flatten(), weights.flatten()) / weights.sum()


def talk_share(progress: float, start: float, most: float) -> float:
    """Share of dialogue rows: `start` at first, more and more, up to `most`."""
    return min(most, start + 0.85 * progress)


def warm_up(run: Run, params: M.Params) -> None:
    """Compile everything on a made-up batch while the corpus is still being encoded."""
    ids = torch.randint(100, (run.args.rows, data.ROW), device=run.device, generator=run.gen)
    labels, weights = targets(ids, None, run.eot)
    run.step_loss(params, ids, labels, weights, False).backward()


def language_stream(folder: Path, part: str, wait: float = 120) -> np.ndarray:
    """Tokens of the corpus, once train/data.py has written them."""
    file = folder / f"lm.{part}.npy"
    stop = time.time() + wait
    while not file.exists() and time.time() < stop:
        time.sleep(0.5)
    return np.load(file)


def evaluate(run: Run, params: M.Params, held: dict[str, tuple[torch.Tensor, torch.Tensor | None]], quantise: bool) -> dict[str, float]:
    """Mean loss in nats per token: language, and dialogues of held-out wordings (the model's own tokens only).

    Gradients stay enabled: without them the compiled pieces would be compiled again.
    """
    out = {}
    w = run.weights(params, quantise)
    for name, (ids, own) in held.items():
        total = count = 0.0
        for i in range(0, len(ids) - run.args.rows + 1, run.args.rows):
            part = ids[i:i + run.args.rows]
            labels, weights = targets(part, None if own is None else own[i:i + run.args.rows], run.eot)
            if own is not None:
                weights = (weights == 1).float()
            h, _ = M.forward(part, w, run.config, run.eot, run.pieces)
            total += float(run.loss(h.flatten(0, 1), M.head(w), labels.flatten(), weights.flatten()).detach())
            count += float(weights.sum())
        out[name] = round(total / max(count, 1), 4)
    return out


def save_folder(params: M.Params, config: M.Config, eot: int, out: Path, limit: int = 16_650_000) -> None:
    """A Hugging Face folder: bf16 shards of at most `limit` bytes with an index (one file if it fits), config.json."""
    out.mkdir(parents=True, exist_ok=True)
    shards: list[M.Params] = [{}]
    size = 0
    for name, p in params.items():
        w = p.detach().to(torch.bfloat16).cpu().contiguous()
        if size + w.numel() * 2 > limit:
            shards.append({})
            size = 0
        shards[-1][name] = w
        size += w.numel() * 2
    where = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        save_file(shard, str(out / file), metadata={"format": "pt"})
        where |= {name: file for name in shard}
    if len(shards) > 1:
        total = sum(p.numel() * 2 for p in params.values())
        (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    (out / "config.json").write_text(json.dumps(config.hf(eot), indent=1) + "\n")


def load_folder(folder: Path) -> M.Params:
    params: M.Params = {}
    for file in sorted(folder.glob("*.safetensors")):
        params |= load_file(str(file))
    return params


def reduce_gradients(params: list[torch.Tensor], world: int) -> None:
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= world
    for p, g in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def shared_clock(elapsed: float, device: torch.device, world: int) -> float:
    """Rank 0's clock, so that every rank takes the same step with the same schedule."""
    if world == 1:
        return elapsed
    t = torch.tensor([elapsed], device=device, dtype=torch.float64)
    dist.broadcast(t, 0)
    return float(t)


def held_rows(args: argparse.Namespace, run: Run, tokenizer: Tokenizer) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    stream = torch.from_numpy(language_stream(args.data, "heldout").astype("int64"))
    n = args.held_rows
    language = stream[:n * data.ROW].view(-1, data.ROW).to(run.device)
    ids, own = data.pack_rows(tokenizer, 99, "eval", n)
    return {"language": (language, None), "dialogue": (torch.from_numpy(ids.astype("int64")).to(run.device), torch.from_numpy(own).to(run.device))}


def train(run: Run, params: M.Params, log: list[dict[str, float]], started: float) -> None:
    args = run.args
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    data.dialogues.load_words(str(args.data / "words.json"))
    talk = data.Dialogues(args.shards, run.device, run.rank, run.world)
    warm_up(run, params)
    print(f"compiled after {time.time() - started:.0f} s", flush=True)
    language = torch.from_numpy(language_stream(args.data, "train").view("int16")).to(run.device)
    held = held_rows(args, run, tokenizer)
    optimiser = optim.Optimiser(params, args.muon_lr, args.adam_lr, args.embed_lr, args.decay_from)
    plist = list(params.values())
    for p in plist:
        p.grad = torch.zeros_like(p)
    begin = last = saved = None
    step, seen, tokens = 0, 0, 0
    losses: list[torch.Tensor] = []
    while True:
        now = time.time() - started
        begin = now if step == args.free_steps else begin  # compilation is over: the schedule's clock starts
        progress = 0.0 if begin is None else (now - begin) / max(1.0, args.seconds - begin)
        progress = shared_clock(progress, run.device, run.world)
        if progress >= 1.0 or step == args.max_steps:
            break
        if step % 20 == 0:
            talk.refresh()
        quantise = progress >= args.quantise_from
        ids, labels, weights = run.batch(language, talk, talk_share(progress, args.talk_start, args.talk_most))
        loss = run.step_loss(params, ids, labels, weights, quantise)
        loss.backward()
        if run.world > 1:
            reduce_gradients(plist, run.world)
        norm = optimiser.step(progress)
        losses.append(loss.detach())
        step += 1
        tokens += ids.numel() * run.world
        if step % args.log_every == 0 or step <= 2:
            mean = float(torch.stack(losses).mean())
            losses.clear()
            now = time.time() - started
            rate = 0.0 if last is None else (tokens - last[1]) / (now - last[0])
            last = (now, tokens)
            row = {"step": step, "seconds": round(now, 1), "progress": round(progress, 4), "loss": round(mean, 4), "norm": round(float(norm), 3),
                   "tokens": tokens, "tokens_per_s": round(rate), "talk_rows": len(talk.ids), "talk_epochs": talk.epochs, "quantised": int(quantise)}
            if run.rank == 0:
                log.append(row)
                print(json.dumps(row), flush=True)
            if not mean == mean:
                raise SystemExit("the loss is not a number")
            if run.rank == 0 and (saved is None or now - saved > args.save_every) and begin is not None:
                saved = now
                save_folder(params, run.config, run.eot, args.out, args.shard_bytes)
                seen += 1
                if seen % 2 == 0:
                    print("held out:", json.dumps(evaluate(run, params, held, quantise)), flush=True)
    if run.rank == 0:
        save_folder(params, run.config, run.eot, args.out, args.shard_bytes)
        final = {"held_out_float": evaluate(run, params, held, False), "held_out_q4": evaluate(run, params, held, True), "tokens": tokens, "steps": step,
                 "seconds": round(time.time() - started, 1), "talk_epochs": talk.epochs}
        print("final:", json.dumps(final), flush=True)
        (args.out / "record.json").write_text(json.dumps({"args": {k: str(v) for k, v in vars(args).items()}, "final": final, "log": log}) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with lm.*.npy and words.json (train/data.py)")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=Path, default=Path("/tmp/splash-dialogues"), help="scratch folder of generated rows")
    parser.add_argument("--seconds", type=float, default=450, help="all in all, compilation included")
    parser.add_argument("--rows", type=int, default=64, help="rows of 1024 tokens per step and GPU")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--worker-shards", type=int, default=10)
    parser.add_argument("--shard-rows", type=int, default=1000)
    parser.add_argument("--held-rows", type=int, default=128)
    parser.add_argument("--muon-lr", type=float, default=3.5e-3)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--embed-lr", type=float, default=3e-3)
    parser.add_argument("--quantise-from", type=float, default=0.75)
    parser.add_argument("--shard-bytes", type=int, default=16_650_000, help="largest weight file")
    parser.add_argument("--talk-start", type=float, default=0.25, help="share of dialogue rows at the start")
    parser.add_argument("--talk-most", type=float, default=0.8, help="share of dialogue rows from about two thirds on")
    parser.add_argument("--decay-from", type=float, default=0.55, help="where the learning rate begins to fall")
    parser.add_argument("--save-every", type=float, default=60)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--free-steps", type=int, default=3, help="steps before the schedule's clock starts (compilation)")
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="a small geometry, for a smoke test on the CPU")
    parser.add_argument("--resume", type=Path, help="a folder of weights to go on from")
    return parser.parse_args()


def main() -> None:
    args = parse()
    started = time.time()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=150))
    torch.backends.cuda.matmul.allow_tf32 = True
    config = M.Config()
    if args.tiny:
        config = replace(config, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=1, linear_num_key_heads=1, linear_num_value_heads=1)
    if rank == 0:
        workers = data.start_workers(args.tokenizer / "tokenizer.json", args.data / "words.json", args.shards, args.workers, args.worker_shards, args.shard_rows, 10_000 * args.seed)
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    eot = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json")).token_to_id(data.dialogues.EOT)
    run = Run(args, config, device, rank, world, eot, torch.bfloat16 if cuda else torch.float32)
    params = M.init_params(config, args.seed, device)
    if args.resume:
        for name, w in load_folder(args.resume).items():
            params[name].data.copy_(w)
    train(run, params, [], started)
    if rank == 0:
        for p in workers:
            p.terminate()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
