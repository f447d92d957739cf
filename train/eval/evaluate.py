"""Measure a served model on the evaluation prompts (card.py writes the model card from it). Standard library only.

    python train/eval/evaluate.py --url http://127.0.0.1:8080/v1 --json results.json
        [--plain-url URL]     the same model served with --plain: both are timed, every prompt in the order A B B A, and
                              must say the same; [--timed N] of each category, [--device TEXT] where both run
        [--only tools,json]   some categories; [--limit N] at most N prompts of each; [--times-only] only the timing

Scores: right tool with right arguments, JSON valid and right (without constrained decoding; --constrained uses
response_format), the value recalled, the number computed; free chat well-formed, without loops, ended by itself.
Acceptance (tokens per decode step) comes from the counters at /metrics; the server chooses the width of a greedy block by
measured cost, so on a disturbed machine it is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BARS = {"tools": 0.95, "json": 0.95, "recall": 0.95, "arithmetic": 0.95, "free": 0.98}
SPEEDUP_BARS = {"CPU": 1.3, "one H200": 2.5}  # by --device
NAMES = {"tools": "right tool, right arguments", "json": "JSON task valid and right", "recall": "recall over several turns", "arithmetic": "arithmetic in the trained range",
         "free": "free chat: well-formed, no loops, ends by itself", "extract": "reading a short text", "strings": "words and lists", "copy": "verbatim copy",
         "word_problem": "word problems", "no_tool": "no call when none is needed", "tool_result": "telling a tool's result", "two_calls": "two calls in one turn",
         "json_free": "JSON without a schema in the prompt", "unknown": "admits not to know", "splash": "questions about Splash", "summary": "summary of a sentence or three, word for word",
         "thinking": "thinks, then answers right"}
UNSURE = re.compile(r"don't know|can't|cannot|haven't told|too small|not sure|doesn't say|no way to|only know|I'll need|no clock", re.I)
CONTROL = re.compile(r"<\|[a-z_]+\|>|</?think>|</?tool_call>|</?tool_response>|<function=|<parameter=|\ufffd")


def post(url: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
    request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.loads(reply.read())


def counters(url: str) -> dict[str, float]:
    """Numbers of /metrics (Prometheus text), summed over labels; empty when there are none."""
    try:
        with urllib.request.urlopen(re.sub(r"/v1/?$", "", url) + "/metrics", timeout=10) as reply:
            text = reply.read().decode()
    except (urllib.error.URLError, OSError):
        return {}
    found: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        match = re.match(r"([a-z_]+)(?:\{[^}]*\})?\s+([-+0-9.eE]+)$", line)
        if match:
            found[match[1]] += float(match[2])
    return found


def request_body(prompt: dict[str, Any], temperature: float, constrained: bool, model: str, limit: int) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "messages": prompt["messages"], "temperature": temperature, "max_tokens": limit, "seed": 7}
    if prompt.get("tools"):
        body["tools"] = prompt["tools"]
    if prompt.get("thinking"):
        body["chat_template_kwargs"] = {"enable_thinking": True}
    if constrained and "schema" in prompt["expected"]:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": {**prompt["expected"]["schema"], "additionalProperties": False}}}
    return body


def looping(text: str) -> bool:
    """The same three words four times in a row, or one line five times."""
    words = text.split()
    for n in (1, 2, 3):
        for i in range(len(words) - 4 * n + 1):
            if all(words[i + k * n:i + (k + 1) * n] == words[i:i + n] for k in range(1, 4)) and (n > 1 or words[i:i + 6] == words[i:i + 1] * 6):
                return True
    lines = [line for line in text.splitlines() if line.strip()]
    return any(lines.count(line) >= 5 for line in lines)


def well_formed(content: str, finish: str) -> bool:
    return bool(content.strip()) and finish == "stop" and not CONTROL.search(content) and not looping(content)


def same(value: Any, wanted: Any) -> bool:
    return value == wanted or str(value) == str(wanted)


def right(prompt: dict[str, Any], choice: dict[str, Any]) -> bool:
    message, expected = choice["message"], prompt["expected"]
    content = message.get("content") or ""
    calls = message.get("tool_calls") or []
    if prompt["category"] == "free":
        return not calls and well_formed(content, choice["finish_reason"])
    if "tool" in expected:
        if len(calls) != 1 or calls[0]["function"]["name"] != expected["tool"]:
            return False
        arguments = json.loads(calls[0]["function"]["arguments"])
        return arguments.keys() == expected["arguments"].keys() and all(same(arguments[k], v) for k, v in expected["arguments"].items())
    if "no_tool" in expected:
        return not calls and well_formed(content, choice["finish_reason"])
    if "calls" in expected:
        return [c["function"]["name"] for c in calls] == [c["name"] for c in expected["calls"]] and all(
            {k: str(v) for k, v in json.loads(c["function"]["arguments"]).items()} == {k: str(v) for k, v in w["arguments"].items()} for c, w in zip(calls, expected["calls"]))
    if "unsure" in expected:
        return not calls and bool(UNSURE.search(content))
    if "json" in expected:
        try:
            return json.loads(content) == expected["json"]
        except ValueError:
            return False
    if "number" in expected:
        numbers = re.findall(r"-?\d+", content)
        return bool(numbers) and int(numbers[-1]) == expected["number"]
    return all(part in content for part in expected["contains"])


def judged(prompt: dict[str, Any], choice: dict[str, Any]) -> bool:
    try:
        return right(prompt, choice)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


class Tally:
    """Replies of one pass: scores, tokens, seconds, and the counters before and after."""

    def __init__(self, url: str) -> None:
        self.url, self.before = url, counters(url)
        self.scores: dict[str, list[bool]] = defaultdict(list)
        self.failures: list[dict[str, Any]] = []
        self.tokens, self.seconds, self.per_request = 0, 0.0, []
        self.decoded, self.decode_seconds = 0, 0.0
        self.usage = {"accepted": 0, "steps": 0}

    def add(self, prompt: dict[str, Any], reply: dict[str, Any], seconds: float) -> None:
        choice, usage = reply["choices"][0], reply.get("usage", {})
        ok = judged(prompt, choice)
        self.scores[prompt["category"]].append(ok)
        if not ok and len(self.failures) < 200:
            self.failures.append({"category": prompt["category"], "asked": prompt["messages"][-1]["content"], "got": choice["message"], "finish": choice["finish_reason"], "expected": prompt["expected"]})
        self.tokens += usage.get("completion_tokens", 0)
        self.seconds += seconds
        own = reply.get("splash") or {}
        steps = own.get("decode_steps", 0)
        if steps:
            self.decoded += usage.get("completion_tokens", 0) - 1
            self.decode_seconds += own.get("decode_ms", 0) / 1000
            self.usage["steps"] += steps
            self.usage["accepted"] += own.get("accepted_tokens", 0)
            self.per_request.append(usage.get("completion_tokens", 0) / steps)

    def counted(self, name: str) -> float:
        """What the server counted since this pass began."""
        return counters(self.url).get(name, 0.0) - self.before.get(name, 0.0)

    def acceptance(self) -> float | None:
        """Tokens per decode step over everything asked in this pass."""
        steps = self.counted("splash_decode_steps_total")
        if steps > 0:
            return 1 + self.counted("splash_draft_accepted_tokens_total") / steps
        return 1 + self.usage["accepted"] / self.usage["steps"] if self.usage["steps"] else None

    def decode_speed(self) -> float | None:
        """Tokens per second from a reply's first token (which comes from its prompt) to its last, by the engine's clock: steps
        and all between them."""
        return self.decoded / self.decode_seconds if self.decode_seconds else None

    def step_speed(self) -> float | None:
        """Tokens per second of the decode steps alone."""
        seconds = self.counted("splash_decode_step_seconds_sum")
        return (self.counted("splash_decode_steps_total") + self.counted("splash_draft_accepted_tokens_total")) / seconds if seconds else None

    def summary(self) -> dict[str, Any]:
        return {"scores": {k: {"right": sum(v), "of": len(v), "share": round(sum(v) / len(v), 4)} for k, v in self.scores.items()}, "acceptance": self.acceptance(),
                "acceptance_per_request": round(statistics.mean(self.per_request), 3) if self.per_request else None, "tokens": self.tokens,
                "seconds": round(self.seconds, 1), "tokens_per_second": round(self.tokens / self.seconds, 1) if self.seconds else None, "decode_tokens_per_second": self.decode_speed(),
                "step_tokens_per_second": self.step_speed()}


def run(url: str, prompts: list[dict[str, Any]], temperature: float, args: argparse.Namespace) -> Tally:
    tally = Tally(url)
    for i, prompt in enumerate(prompts):
        start = time.monotonic()
        try:
            reply = post(url, request_body(prompt, temperature, args.constrained, args.model, args.max_tokens), args.timeout)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"prompt {i} ({prompt['category']}): HTTP {error.code}: {error.read().decode(errors='replace')[:400]}") from error
        tally.add(prompt, reply, time.monotonic() - start)
        if (i + 1) % 50 == 0:
            print(f"{i + 1}/{len(prompts)}", flush=True)
    return tally


def said_in(reply: dict[str, Any]) -> list[Any]:
    """A reply without what differs between two servers that say the same (ids of tool calls)."""
    choice = reply["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or []]
    return [choice["message"].get("content"), choice["message"].get("reasoning_content"), calls, choice["finish_reason"]]


def times(prompts: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Both servers on the same greedy prompts, each prompt in the order A B B A (after one pass that fills the caches), so
    that a disturbance of the machine falls on both."""
    taken: dict[str, int] = defaultdict(int)
    some = []
    for prompt in prompts:
        taken[prompt["category"]] += 1
        if taken[prompt["category"]] <= args.timed:
            some.append(prompt)
    urls = {"draft": args.url, "plain": args.plain_url}
    for url in urls.values():
        run(url, some, 0.0, args)
    tallies = {name: Tally(url) for name, url in urls.items()}
    equal = 0
    for prompt in some:
        said = []
        for name in ("draft", "plain", "plain", "draft"):
            start = time.monotonic()
            reply = post(urls[name], request_body(prompt, 0.0, args.constrained, args.model, args.max_tokens), args.timeout)
            tallies[name].add(prompt, reply, time.monotonic() - start)
            said.append(said_in(reply))
        equal += all(words == said[0] for words in said)
    found = {name: {k: v for k, v in tally.summary().items() if k != "scores"} for name, tally in tallies.items()}
    speedup = {k: round(found["draft"][k] / found["plain"][k], 3) for k in ("decode_tokens_per_second", "tokens_per_second")}
    return {"device": args.device, "speedup": speedup["decode_tokens_per_second"], "whole_speedup": speedup["tokens_per_second"], "prompts": len(some), "equal": equal, **found}


def table(results: dict[str, Any], timed: list[dict[str, Any]]) -> list[str]:
    """Rows of what was measured against the bars; `timed`: a pass of times() on each device."""
    rows = ["| what | bar | measured |", "|---|---|---|"]
    scores = results["greedy"]["scores"]
    for key, label in NAMES.items():
        if key in scores:
            s = scores[key]
            bar = f">= {BARS[key]:.0%}" if key in BARS else "-"
            rows.append(f"| {label} | {bar} | {s['right']} of {s['of']} ({s['share']:.1%}) |")
    for key, bar in (("greedy", ">= 3.2"), ("sampled", ">= 2.6")):
        value = results.get(key, {}).get("acceptance")
        rows.append(f"| tokens per decode step, temperature {'0' if key == 'greedy' else '0.7'} | {bar} | {f'{value:.2f}' if value else 'not measured'} |")
    for t in timed:
        device = t.get("device", "CPU")
        bar = SPEEDUP_BARS.get(device)
        rows.append(f"| decode tokens per second with the draft against without, one lane, {device} | {f'>= {bar} x' if bar else '-'} | {t['speedup']:.2f} x ({t['draft']['decode_tokens_per_second']:,.0f} against {t['plain']['decode_tokens_per_second']:,.0f}) |")
        rows.append(f"| the same for whole requests, prompts included | - | {t['whole_speedup']:.2f} x |")
        if "equal" in t:
            rows.append(f"| replies that are the same with and without, {device} | all | {t['equal']} of {t['prompts']} |")
    return rows


def read_prompts(file: Path, only: str, limit: int) -> list[dict[str, Any]]:
    """At most `limit` prompts of each category, of those named in `only` (separated by commas; empty: all)."""
    categories, taken, prompts = set(filter(None, only.split(","))), defaultdict(int), []
    for line in file.read_text().splitlines():
        prompt = json.loads(line)
        taken[prompt["category"]] += 1
        if taken[prompt["category"]] <= limit and (not categories or prompt["category"] in categories):
            prompts.append(prompt)
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--plain-url")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--times-only", action="store_true")
    parser.add_argument("--timed", type=int, default=8, help="prompts of each category in a timing pass")
    parser.add_argument("--device", default="CPU", help="where the two timed servers run, as the card names it")
    parser.add_argument("--model", default="splash-tiny")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--constrained", action="store_true")
    parser.add_argument("--skip-sampled", action="store_true")
    args = parser.parse_args()
    prompts = read_prompts(args.prompts, args.only, args.limit)
    results: dict[str, Any] = {}
    if not args.times_only:
        greedy = run(args.url, prompts, 0.0, args)
        results |= {"greedy": greedy.summary(), "failures": greedy.failures}
        if not args.skip_sampled:
            results["sampled"] = run(args.url, prompts, 0.7, args).summary()
    if args.plain_url:
        results["times"] = times(prompts, args)
        print(json.dumps(results["times"]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if not args.times_only:
        print("\n".join(table(results, [results["times"]] if args.plain_url else [])))


if __name__ == "__main__":
    main()
