"""Loss of a model on held-out text through `splash score`, in nats per token (needs numpy).

    python train/eval/perplexity.py --splash build/splash --model models/tiny [--source HF_FOLDER] [--json FILE]

eval/heldout.json holds 16 pieces of 512 tokens of the held-out documents (train/DATA.md). With --source the same weights
without 4 bits are measured too, and the difference is given in per cent of perplexity.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def read_logits(file: Path) -> np.ndarray:
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    about = json.loads(raw[8:8 + size])["logits"]
    first, last = about["data_offsets"]
    return np.frombuffer(raw[8 + size + first:8 + size + last], dtype=np.float32).reshape(about["shape"])


def loss(splash: str, model: list[str], pieces: list[list[int]]) -> float:
    total, count = 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder) / "ids.json", Path(folder) / "logits.safetensors"
        for piece in pieces:
            ids.write_text(json.dumps(piece))
            subprocess.run([splash, "score", *model, "--tokens", str(ids), "--logits", str(out)], check=True, capture_output=True)
            logits = read_logits(out)[:-1].astype(np.float64)
            most = logits.max(-1, keepdims=True)
            total += float((np.log(np.exp(logits - most).sum(-1)) + most[:, 0] - logits[np.arange(len(logits)), piece[1:]]).sum())
            count += len(logits)
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splash", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--source")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pieces = json.loads((HERE / "heldout.json").read_text())
    common = ["--threads", args.threads]
    found = {"tokens": sum(map(len, pieces)), "q4": round(loss(args.splash, ["--model", args.model, *common], pieces), 4)}
    if args.source:
        found["source"] = round(loss(args.splash, ["--model", args.source, "--weights", "source", *common], pieces), 4)
        found["perplexity_percent"] = round(100 * (math.exp(found["q4"] - found["source"]) - 1), 2)
    print(json.dumps(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
