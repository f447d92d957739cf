"""Dialogues packed into rows of 1024 tokens; run as a program it is one worker (numpy only: it starts in a second)."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Tokenizer  # noqa: E402

import dialogues  # noqa: E402

ROW = 1024
LONGEST = 640  # a dialogue of more tokens is dropped


def encode_dialogue(tokenizer: Tokenizer, pieces: list[tuple[str, bool]]) -> tuple[list[int], list[int]]:
    """Ids and per-token flags (1 = the model's own). Pieces are cut where the chat template's text splits anyway."""
    ids: list[int] = []
    own: list[int] = []
    for (text, mine), e in zip(pieces, tokenizer.encode_batch([t for t, _ in pieces], add_special_tokens=False)):
        ids += e.ids
        own += [int(mine)] * len(e.ids)
    return ids, own


def pack_rows(tokenizer: Tokenizer, seed: int, split: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Fill `rows` rows of ROW tokens with whole dialogues (first fit over a few open rows); ids and flags, both [rows, ROW]."""
    r = dialogues.Rand(seed, split)
    eot = tokenizer.token_to_id(dialogues.EOT)
    ids = np.full((rows, ROW), eot, dtype=np.uint16)
    own = np.zeros((rows, ROW), dtype=np.uint8)
    fill = [0] * rows
    first = 0
    while first < rows:
        tokens, flags = encode_dialogue(tokenizer, dialogues.render(dialogues.sample(r)))
        n = len(tokens)
        if n > LONGEST:
            continue
        for row in range(first, min(first + 8, rows)):
            if fill[row] + n + 1 <= ROW:
                at = fill[row]
                ids[row, at:at + n] = tokens
                own[row, at:at + n] = flags
                fill[row] += n + 1  # one end-of-text stays between documents
                break
        else:
            first += 1
        while first < rows and fill[first] > ROW - 40:
            first += 1
    return ids, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--split", default="train")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--shards", type=int, default=10)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    dialogues.load_words(str(args.words))
    for shard in range(args.shards):
        ids, own = pack_rows(tokenizer, args.seed + 1000 * shard, args.split, args.rows)
        part = args.out / f"{args.split}-{args.seed}-{shard}.tmp.npz"
        np.savez(part, ids=ids, own=own)
        part.rename(part.with_name(part.name.replace(".tmp", "")))


if __name__ == "__main__":
    main()
