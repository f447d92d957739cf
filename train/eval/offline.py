"""Score a target on the evaluation prompts without a server: greedy replies in one batch, with the weights through 4 bits.

    python train/eval/offline.py --target HF_FOLDER [--out results.json] [--source-weights] [--only tools,json]

For the end of a training run, so that a weak spot shows while the machine is still there. The numbers of the card come
from evaluate.py and a running server.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import dialogues as D  # noqa: E402
import draft  # noqa: E402
import evaluate  # noqa: E402
import generate as G  # noqa: E402

CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.S)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.S)


def prompt_text(prompt: dict[str, Any]) -> str:
    messages = []
    for m in prompt["messages"]:
        calls = [{"function": {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}} for c in m.get("tool_calls") or []]
        messages.append({**m, "tool_calls": calls} if calls else m)
    text = "".join(piece for piece, _ in D.render(D.Dialogue("", messages, prompt.get("tools") or [])))
    return text + D.IM_START + "assistant\n<think>\n" + ("" if prompt.get("thinking") else "\n</think>\n\n")


def choice_of(prompt: dict[str, Any], reply: str, ended: bool) -> dict[str, Any]:
    """The reply as the API would give it."""
    if prompt.get("thinking"):
        reply = reply.partition("</think>\n\n")[2]
    kinds = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in prompt.get("tools") or []}
    calls = []
    for name, body in CALL.findall(reply):
        arguments: dict[str, Any] = {}
        for key, value in PARAMETER.findall(body):
            try:
                arguments[key] = value if kinds.get(name, {}).get(key, {}).get("type") == "string" else json.loads(value)
            except ValueError:
                arguments[key] = value
        calls.append({"function": {"name": name, "arguments": json.dumps(arguments)}})
    return {"message": {"content": CALL.sub("", reply).strip(), "tool_calls": calls}, "finish_reason": "stop" if ended else "length"}


@torch.no_grad()
def replies(prompts: list[dict[str, Any]], target: Path, limit: int, source: bool) -> list[tuple[str, bool]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    eot, end = tokenizer.token_to_id(D.EOT), tokenizer.token_to_id(D.IM_END)
    c, w = draft.load_target(target, device, torch.bfloat16 if device.type == "cuda" else torch.float32, source)
    ids = [tokenizer.encode(prompt_text(p), add_special_tokens=False).ids for p in prompts]
    longest = max(map(len, ids))
    scripts = np.full((len(ids), longest + 1), eot, dtype=np.int64)
    for row, one in zip(scripts, ids):
        row[:len(one)], row[len(one)] = one, G.GEN
    out = G.Text.empty(len(ids), longest + limit, 1, c.hidden_size, device, w["model.embed_tokens.weight"].dtype)
    G.play(torch.from_numpy(scripts).to(device), torch.zeros(len(ids), device=device), out, w, c, (0,), eot, end, limit=limit, banned=(tokenizer.token_to_id("<|mask|>"),))
    found = []
    for row, one in enumerate(ids):
        mine = out.ids[row, len(one):][out.own[row, len(one):]].tolist()
        found.append((tokenizer.decode([t for t in mine if t != end], skip_special_tokens=False), len(mine) < limit))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--source-weights", action="store_true")
    args = parser.parse_args()
    started = time.time()
    prompts = evaluate.read_prompts(args.prompts, args.only, args.limit)
    scores: dict[str, list[bool]] = defaultdict(list)
    failures = []
    for prompt, (reply, ended) in zip(prompts, replies(prompts, args.target, args.max_tokens, args.source_weights)):
        ok = evaluate.judged(prompt, choice_of(prompt, reply, ended))
        scores[prompt["category"]].append(ok)
        if not ok:
            failures.append({"category": prompt["category"], "asked": prompt["messages"][-1]["content"], "got": reply, "ended": ended, "expected": prompt["expected"]})
    table = {k: {"right": sum(v), "of": len(v), "share": round(sum(v) / len(v), 4)} for k, v in scores.items()}
    print(json.dumps(table), f"{time.time() - started:.0f} s", flush=True)
    if args.out:
        args.out.write_text(json.dumps({"scores": table, "failures": failures}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
