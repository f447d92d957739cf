"""What the evaluation accepts and what it doesn't."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "eval"))

import evaluate  # noqa: E402


def choice(content: str | None = None, calls: list[tuple[str, dict]] = (), finish: str = "stop") -> dict:
    return {"message": {"content": content, "tool_calls": [{"function": {"name": n, "arguments": json.dumps(a)}} for n, a in calls]}, "finish_reason": finish}


def prompt(category: str, **expected: object) -> dict:
    return {"category": category, "messages": [], "expected": expected}


@pytest.mark.parametrize(("asked", "got", "ok"), [
    (prompt("tools", tool="f", arguments={"city": "Rome", "n": 2}), choice(calls=[("f", {"city": "Rome", "n": 2})]), True),
    (prompt("tools", tool="f", arguments={"city": "Rome"}), choice(calls=[("f", {"town": "Rome"})]), False),
    (prompt("tools", tool="f", arguments={"city": "Rome"}), choice(calls=[("f", {"city": "Rome"}), ("f", {"city": "Rome"})]), False),
    (prompt("tools", tool="f", arguments={}), choice("f()"), False),
    (prompt("two_calls", calls=[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 2}}]), choice(calls=[("f", {"a": 1}), ("f", {"a": 2})]), True),
    (prompt("two_calls", calls=[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 2}}]), choice(calls=[("f", {"a": 1})]), False),
    (prompt("json", json={"a": 1}), choice('{"a": 1}'), True),
    (prompt("json", json={"a": 1}), choice('{"a": "1"}'), False),
    (prompt("json", json={"a": 1}), choice('Here: {"a": 1}'), False),
    (prompt("arithmetic", number=12), choice("5 + 7 = 12"), True),
    (prompt("arithmetic", number=12), choice("12 - 5 = 7"), False),
    (prompt("recall", contains=["Ada"]), choice("Your name is Ada."), True),
    (prompt("recall", contains=["Ada"]), choice(None), False),
    (prompt("unknown", unsure=True), choice("I don't know that."), True),
    (prompt("unknown", unsure=True), choice("It is in the kitchen."), False),
    (prompt("no_tool", no_tool=True), choice("Hello!", calls=[("f", {})]), False),
    (prompt("free"), choice("Hello! How are you?"), True),
    (prompt("free"), choice("Hello!", finish="length"), False),
    (prompt("free"), choice("Hello <|im_start|>"), False),
    (prompt("free"), choice("it is so it is so it is so it is so"), False),
    (prompt("free"), choice(""), False),
])
def test_judged(asked: dict, got: dict, ok: bool) -> None:
    assert evaluate.judged(asked, got) == ok


def test_every_category_of_the_prompts_has_a_name() -> None:
    lines = [json.loads(x) for x in (Path(evaluate.HERE) / "prompts.jsonl").read_text().splitlines()]
    assert {line["category"] for line in lines} == set(evaluate.NAMES)
    assert all(line["expected"] or line["category"] == "free" for line in lines)
