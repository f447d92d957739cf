#!/usr/bin/env python3
"""jinja2_renderings.py > jinja2_renderings.json: random conversations and what Jinja2 makes of them, set up as transformers does."""
import json
import pathlib
import random
import sys

import jinja2
import jinja2.sandbox
from jinja2.ext import loopcontrols

HERE = pathlib.Path(__file__).parent
PIECES = ["word", " ", "\n", "\t", "\x1c", "é", "你好", "😀", "<", ">", "|", "\"", "\\", "'", "{", "%}", "</think>", "<think>",
          "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>", "</parameter>", "\U000F0000", "\uE000", "\u00a0",
          "\u2028", "\x85"]
FLOATS = [1.0, 0.1, 1e22, 1.5e-7, -2.25, 123456789.125, 1e16, 5e-324]
pick = random.Random(3)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def compiled(version):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    environment.globals["raise_exception"] = refuse
    return environment.from_string((HERE / f"chat_template_{version}.jinja").read_text())


def text():
    inner = "".join(pick.choice(PIECES) for _ in range(pick.randrange(9)))
    wrap = pick.randrange(10)
    return ("<tool_response>" if wrap == 0 else "") + inner + ("</tool_response>" if wrap <= 1 else "")


def value(depth=0):
    kind = pick.randrange(9 if depth < 2 else 6)
    if kind in (0, 5):
        return text()
    if kind in (1, 2, 3, 4):
        return [pick.randrange(-5, 10**12), pick.choice(FLOATS), True, None][kind - 1]
    if kind == 6:
        return [value(depth + 1) for _ in range(pick.randrange(3))]
    return {text(): value(depth + 1) for _ in range(pick.randrange(3))} if kind == 7 else {}


def call():
    arguments = {text(): value() for _ in range(pick.randrange(3))}
    return {"type": "function", "function": {"name": "f" + text(), "arguments": arguments}}


def conversation(version):
    messages = [{"role": "system", "content": text()}] if pick.random() < 0.5 else []
    messages.append({"role": "user", "content": "q" + text()})
    for _ in range(pick.randrange(4)):
        assistant = {"role": "assistant", "content": text()}
        if pick.random() < 0.6:
            assistant["reasoning_content"] = text()
        if pick.random() < 0.5:
            assistant["tool_calls"] = [call() for _ in range(pick.randrange(1, 3))]
        messages += [assistant, {"role": pick.choice(["tool", "user"]), "content": text()}]
    schema = {"type": "object", "properties": {text(): value()}}
    tool = {"type": "function", "function": {"name": "f", "description": text(), "parameters": schema}}
    variables = {}
    if pick.random() < 0.5:
        variables["enable_thinking"] = pick.random() < 0.5
    if pick.random() < 0.4:
        variables["reasoning_effort"] = pick.choice(["low", "medium", "xhigh"])
    if pick.random() < 0.3:
        variables["preserve_thinking"] = pick.random() < 0.5
    tools = [tool] if version == "38" and pick.random() < 0.4 else []
    return {"template": version, "messages": messages, "tools": tools, "variables": variables}


templates = {version: compiled(version) for version in ("35", "38")}
cases = []
while len(cases) < 40:
    case = conversation(pick.choice(["35", "38"]))
    try:
        case["text"] = templates[case["template"]].render(messages=case["messages"], tools=case["tools"] or None,
                                                          add_generation_prompt=True, **case["variables"])
    except jinja2.exceptions.TemplateError:
        continue
    cases.append(case)
json.dump(cases, sys.stdout, indent=0, separators=(",", ":"))
