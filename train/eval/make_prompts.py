"""Write the evaluation prompts: held-out wordings and values of the generator, and small talk by hand.

    python train/eval/make_prompts.py --words words.json --out train/eval/prompts.jsonl

One JSON object a line: category, messages (without the answer), tools, thinking, expected.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dialogues as D  # noqa: E402

SCORED = ((D.tools, "tools", 120), (D.json_task, "json", 100), (D.recall, "recall", 80), (D.named_chat, "recall", 20), (D.arithmetic, "arithmetic", 120))
ALSO = ((D.extract, "extract", 40), (D.strings, "strings", 40), (D.copy, "copy", 30), (D.word_problem, "word_problem", 30), (D.no_tool, "no_tool", 40), (D.tool_result, "tool_result", 30), (D.two_calls, "two_calls", 20),
        (D.json_free, "json_free", 30), (D.unknown, "unknown", 30), (D.splash, "splash", 20), (D.summary, "summary", 20), (D.thinking, "thinking", 20), (D.said, "recall", 10))
FREE = ((D.chat, 14), (D.talk, 18), (D.fact, 8), (D.explain, 8), (D.story, 4), (D.poem, 2), (D.letter, 4), (D.define, 4), (D.lists, 3), (D.edit, 3))
BY_HAND = (
    "hey how's life", "good to see you again", "what's cooking?", "I had pancakes for breakfast, they were great", "do you think cats are funny?", "my train is late again",
    "why is water wet?", "tell me something interesting", "I want to learn to paint", "which is better, tea or coffee?", "can you keep a secret?", "what should I wear today?",
    "I'm nervous about my exam", "say hello to my friend Milo", "how do I boil rice?", "I can't sleep", "what is Splash good for?", "so you're running on my laptop?",
    "could you recommend a good movie for tonight?", "my neighbours are so loud", "I think I left the oven on", "what's the point of all this", "it's snowing!!!", "remind me why I started this project",
    "you remind me of my old calculator", "is it ok to eat pizza for breakfast", "I just moved to a new flat and know nobody", "sing happy birthday backwards", "how many stars are there", "hmm",
    "I've been coding all night", "do fish sleep?",
)


def without_answer(d: D.Dialogue) -> list[dict[str, Any]]:
    """Everything before the last assistant turn, call arguments as API strings."""
    last = max(i for i, m in enumerate(d.messages) if m["role"] == "assistant")
    out = []
    for i, m in enumerate(d.messages[:last]):
        m = dict(m)
        if m.get("tool_calls"):
            m["tool_calls"] = [{"id": f"call_{i}_{j}", "type": "function", "function": {"name": c["function"]["name"], "arguments": json.dumps(c["function"]["arguments"])}}
                               for j, c in enumerate(m["tool_calls"])]
        out.append(m)
    return out


def fresh(make: Any, r: D.Rand, seen: set[str], tries: int = 300) -> D.Dialogue:
    """A dialogue whose last question, word for word, is not among generated training messages (if there is one)."""
    for _ in range(tries):
        d = make(r)
        if without_answer(d)[-1]["content"] not in seen:
            break
    return d


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=int, default=60_000, help="training dialogues that the questions must not repeat")
    args = parser.parse_args()
    D.load_words(args.words)
    r = D.Rand(20_261_129, "eval")
    t = D.Rand(123, "train")
    seen = {m["content"] for _ in range(args.against) for m in D.sample(t).messages if m["role"] == "user"}
    lines = []
    for make, category, count in SCORED + ALSO:
        for _ in range(count):
            d = fresh(make, r, seen)
            while category == "thinking" and not d.expected:
                d = fresh(make, r, seen)
            expected = d.expected or ({"unsure": True} if category == "unknown" else {"contains": [d.messages[-1]["content"]]})
            lines.append({"category": category, "messages": without_answer(d), "tools": d.tools, "thinking": d.thinking, "expected": expected})
    for make, count in FREE:
        for _ in range(count):
            d = fresh(make, r, seen)
            lines.append({"category": "free", "messages": without_answer(d), "tools": [], "thinking": d.thinking, "expected": {}})
    lines += [{"category": "free", "messages": [D.user(text)], "tools": [], "expected": {}} for text in BY_HAND]
    args.out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(len(lines), "prompts")


if __name__ == "__main__":
    main()
