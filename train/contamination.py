"""Check that held-out text is not in training text.

    python train/contamination.py --corpus DIR [--dialogues 100000]

Language: share of the held-out documents' 13-word sequences that occur in the training documents. Dialogues: evaluation
prompts (eval/prompts.jsonl) whose last user message, as a whole, is among so many generated training messages.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import dialogues as D

N = 13


def grams(text: str) -> set[int]:
    words = re.findall(r"\w+", text.lower())
    return {hash(tuple(words[i:i + N])) for i in range(len(words) - N + 1)}


def language(corpus: Path) -> dict[str, float]:
    held = [grams(d) for d in (corpus / "lm.heldout.txt").read_text().split("\0")]
    wanted = set().union(*held)
    found: set[int] = set()
    for d in (corpus / "lm.train.txt").read_text().split("\0"):
        found |= grams(d) & wanted
    shares = [len(h & found) / len(h) for h in held if h]
    return {"sequences": len(wanted), "in_training": round(len(found) / len(wanted), 4), "documents_over_half": sum(s > 0.5 for s in shares), "documents": len(shares)}


def prompts(count: int) -> dict[str, dict[str, int]]:
    lines = [json.loads(x) for x in (Path(__file__).parent / "eval" / "prompts.jsonl").read_text().splitlines()]
    r = D.Rand(123, "train")
    seen = {m["content"] for _ in range(count) for m in D.sample(r).messages if m["role"] == "user"}
    out: dict[str, dict[str, int]] = {}
    for line in lines:
        row = out.setdefault(line["category"], {"prompts": 0, "last_message_seen": 0})
        row["prompts"] += 1
        row["last_message_seen"] += line["messages"][-1]["content"] in seen
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--dialogues", type=int, default=100_000)
    args = parser.parse_args()
    D.load_words(str(args.corpus / "words.json"))
    print(json.dumps({"language": language(args.corpus), "prompts": prompts(args.dialogues)}, indent=1))


if __name__ == "__main__":
    main()
