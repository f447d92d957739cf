"""Token rows for training: the language corpus as one stream, and dialogues packed into rows of 1024 by worker processes."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from tokenizers import Tokenizer

import dialogues
from rows import ROW, pack_rows  # noqa: F401

PROMPT_WEIGHT = 0.1  # loss weight of text that the model need not produce, against 1 for its own


def read_documents(path: Path) -> list[str]:
    for suffix, unpack in (("", bytes), (".xz", lzma.decompress), (".gz", gzip.decompress)):
        file = path.with_name(path.name + suffix)
        if file.exists():
            return [d for d in unpack(file.read_bytes()).decode().split("\0") if d]
    raise FileNotFoundError(path)


def pack_language(corpus: Path, tokenizer: Tokenizer, out: Path) -> None:
    """Encode the corpus (`lm.train.txt`, `lm.heldout.txt`, plain, .xz or .gz) into uint16 streams, documents ended by end-of-text."""
    eot = tokenizer.token_to_id(dialogues.EOT)
    for part in ("heldout", "train"):
        documents = read_documents(corpus / f"lm.{part}.txt")
        np.random.default_rng(5).shuffle(documents)
        pieces = []
        for start in range(0, len(documents), 2000):
            for e in tokenizer.encode_batch(documents[start:start + 2000], add_special_tokens=False):
                pieces.append(np.array([*e.ids, eot], dtype=np.uint16))
        stream = np.concatenate(pieces)
        np.save(out / f"lm.{part}.tmp.npy", stream)
        (out / f"lm.{part}.tmp.npy").rename(out / f"lm.{part}.npy")  # the trainer may be waiting for it
        print(part, len(documents), "documents", len(stream), "tokens", flush=True)


def start_workers(tokenizer_file: Path, words: Path, out: Path, workers: int, shards: int, rows: int, seed: int) -> list[subprocess.Popen[bytes]]:
    """Processes that write packed training rows to `out` while the GPU already trains on language."""
    out.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, str(Path(__file__).with_name("rows.py")), "--tokenizer", str(tokenizer_file), "--words", str(words), "--out", str(out),
               "--rows", str(rows), "--shards", str(shards)]
    return [subprocess.Popen([*program, "--seed", str(seed + i)]) for i in range(workers)]


class Dialogues:
    """Rows found so far in a folder of shards, handed out once each, in order, then again from the start."""

    def __init__(self, folder: Path, device: torch.device, rank: int, world: int) -> None:
        self.folder, self.device, self.rank, self.world = folder, device, rank, world
        self.seen: set[str] = set()
        self.ids = torch.zeros(0, ROW, dtype=torch.int16, device=device)
        self.own = torch.zeros(0, ROW, dtype=torch.uint8, device=device)
        self.next = 0
        self.epochs = 0

    def refresh(self) -> None:
        fresh = [p for p in sorted(self.folder.glob("train-*.npz")) if ".tmp" not in p.name and p.name not in self.seen]
        mine = [p for p in fresh if int(p.name.split("-")[1]) % self.world == self.rank]
        self.seen |= {p.name for p in fresh}
        for p in mine:
            with np.load(p) as z:
                self.ids = torch.cat([self.ids, torch.from_numpy(z["ids"].view(np.int16)).to(self.device)])
                self.own = torch.cat([self.own, torch.from_numpy(z["own"]).to(self.device)])

    def take(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.next + count > len(self.ids):
            self.next, self.epochs = 0, self.epochs + 1
        part = slice(self.next, self.next + count)
        self.next += count
        return self.ids[part].long(), self.own[part]


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="Encode the corpus for the trainer.")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "words.json").write_text(json.dumps(json.loads((args.corpus / "words.json").read_text())))
    pack_language(args.corpus, Tokenizer.from_file(str(args.tokenizer / "tokenizer.json")), args.out)


if __name__ == "__main__":
    main()
