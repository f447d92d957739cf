"""Write the model card of the built-in model from what was measured.

    python train/eval/card.py --results results.json --times times.json times-gpu.json --perplexity ppl.json --date TODAY --out models/tiny/README.md

results.json and times.json come from evaluate.py (a pass over all prompts; a pass with --times-only --plain-url), ppl.json
from perplexity.py, the ablations from train/records.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import evaluate

HERE = Path(__file__).resolve().parent
RECORDS = HERE.parent / "records"

LIMITS = """# splash-tiny: the model inside the repository

## What it can't do

- **It knows almost nothing.** Some 90 everyday facts, 60 capitals, definitions of 900 nouns, 40 short explanations, what Splash is. Asked for anything else it mostly says so; sometimes it makes
  something up all the same. Take no fact from it.
- **It understands phrasings near those it was trained on.** Wordings that are new word for word go well where their parts are known, and badly where nothing like them was
  there: of questions about Splash and of things it can't know, asked in wordings held back whole, it answered {splash} and {unknown} right. An answer to an unknown question
  can be fluent and beside the point.
- **It does not reason.** Sums go up to 9,999 (plus and minus), products up to 20 x 20, exact division by up to 12; outside of that digits are guessed. Thinking aloud makes it
  worse at sums, not better ({thinking} right with thinking on). It can't translate, plan, write programs longer than a few lines or texts longer than a paragraph.
- **Rare words and random strings are sometimes copied wrong**, in JSON and tool arguments too. Validate what it writes.
- **English only, text only.** It was trained on texts of up to 1,024 tokens; longer conversations are outside of what it has seen (the server allows 4,096).
- Its small talk is made of written sentences: it repeats itself, and it has no opinions. It has had no safety training: it can only say what its data lets it.

It is there so that a fresh checkout can be tried, tested and measured end to end in a minute, with every feature of a real model (hybrid layers, chat template, tools, thinking,
JSON, DFlash 2 draft). For work, serve a real one.
"""

ABOUT = """
## What it is

`qwen3_5_text`: 8 layers (3 Gated DeltaNet : 1 attention, twice), hidden 512, MLP 1,152, vocabulary 8,192, tied head: 29,956,400 parameters at 4.5 bits; with a DFlash 2 draft of
2 layers (block 8). {mib:.1f} MiB packed. Trained from the start in 515 s on two H200s, the draft in 340 s on one of them, on documentation of free packages and dialogues made by program:
[train/DATA.md](../../train/DATA.md) names every source with its licence, [docs/training.md](../../docs/training.md) tells how. Weights and data generator: Apache-2.0.

Good prompts: `Hello!`, `What is Splash?`, `What is 345 + 678?`, `My name is Ada and I live in Lisbon. Where do I live?`, `Sort: pear, apple, fig`, JSON by a schema, one of your own tools.
"""

HOW = """
Measured {date} through `splash serve` on the CPU with this pack, greedy unless said otherwise, on the {count} prompts of `train/eval/prompts.jsonl`: wordings and values that the training
generator holds back (names and codes are drawn at random, so they can only be copied), and 32 of the free-chat prompts written by hand. Where few wordings are held back the set asks them
more than once. JSON is scored without constrained decoding; with
`response_format` the server guarantees the form. {machine}

    build/splash serve --port 8080 &  build/splash serve --plain --port 8081 &
    python3 train/eval/evaluate.py --url http://127.0.0.1:8080/v1 --json results.json
    python3 train/eval/evaluate.py --url http://127.0.0.1:8080/v1 --plain-url http://127.0.0.1:8081/v1 --times-only --json times.json
    python3 train/eval/perplexity.py --splash build/splash --model models/tiny --source HF_FOLDER --json ppl.json
    python3 train/eval/card.py --results results.json --times times.json --perplexity ppl.json --date TODAY --out models/tiny/README.md

This file is written by the last line.
"""


def final(name: str) -> dict[str, Any]:
    return json.loads((RECORDS / f"{name}.json").read_text())["final"]


def more_rows(perplexity: dict[str, Any], mib: float) -> list[str]:
    draft, flat, target = final("draft"), final("draft-noconv"), final("target")
    base, off = final("ablate-stage1-base")["q4"]["tau"], final("ablate-stage1-offpolicy")["q4"]["tau"]
    held = {k: target[k]["language"] for k in ("held_out_float", "held_out_q4")}
    rows = [f"| perplexity of held-out text, 4 bits against source weights, `splash score`, {perplexity['tokens']:,} tokens | <= 3 % worse | {perplexity['perplexity_percent']} % ({perplexity['q4']} against {perplexity['source']} nats) |",
            f"| the same by the trainer, 131,072 tokens | <= 3 % worse | {100 * (2.718281828 ** (held['held_out_q4'] - held['held_out_float']) - 1):.1f} % ({held['held_out_q4']} against {held['held_out_float']} nats) |",
            f"| offline tau of the draft: whole / selector off / convolution off (same budget) | each helps | {draft['q4']['tau']} / {draft['q4_without_selector']['tau']} / {flat['q4']['tau']} |",
            f"| offline tau, an earlier target, small budget: on-policy / off-policy data | - | {base} / {off} |",
            f"| packed size | <= 24 MiB | {mib:.1f} MiB |"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--times", type=Path, nargs="+", required=True, help="one file a device")
    parser.add_argument("--perplexity", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--machine", default="", help="a sentence about the machine")
    args = parser.parse_args()
    results = json.loads(args.results.read_text())
    timed = [json.loads(file.read_text())["times"] for file in args.times]
    scores = results["greedy"]["scores"]
    mib = sum(f.stat().st_size for f in args.out.parent.rglob("*") if f.is_file() and f.name != "README.md") / 2 ** 20
    share = {k: f"{scores[k]['right']} of {scores[k]['of']}" for k in ("splash", "unknown", "thinking")}
    missed = Counter(f["category"] for f in results["failures"])
    text = LIMITS.format(**share) + ABOUT.format(mib=mib) + "\n## Measured\n\n" + "\n".join(evaluate.table(results, timed) + more_rows(json.loads(args.perplexity.read_text()), mib)) + "\n"
    text += HOW.format(date=args.date, count=sum(s["of"] for s in scores.values()), machine=args.machine)
    text += "\n### Some of what it got wrong\n\n| kind | asked | said |\n|---|---|---|\n"
    shown: Counter[str] = Counter()
    for f in results["failures"]:
        shown[f["category"]] += 1
        if shown[f["category"]] <= 2:
            got = f["got"].get("content") or " ".join(c["function"]["name"] + c["function"]["arguments"] for c in f["got"].get("tool_calls") or [])
            cells = [str(x).replace("\n", " ").replace("|", "\\|") for x in (f["asked"], got)]
            text += f"| {f['category']} ({missed[f['category']]} missed) | {cells[0][-160:]} | {cells[1][:160]} |\n"
    args.out.write_text(text)


if __name__ == "__main__":
    main()
