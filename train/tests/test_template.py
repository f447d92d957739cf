"""The program's rendering of a dialogue is the chat template's, and its pieces join to the whole."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest

import dialogues as D


def template() -> jinja2.Template:
    env = jinja2.Environment()
    env.filters["tojson"] = lambda v: json.dumps(v, ensure_ascii=False)

    def fail(message: str) -> None:
        raise ValueError(message)

    env.globals["raise_exception"] = fail
    return env.from_string((Path(D.__file__).parent / "chat_template.jinja").read_text().rstrip("\n"))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_render_equals_template(split: str) -> None:
    chat = template()
    r = D.Rand(4, split)
    for _ in range(300):
        d = D.sample(r)
        assert chat.render(messages=d.messages, tools=d.tools or None) == "".join(text for text, _ in D.render(d))


def test_generation_prompt_and_thinking() -> None:
    chat = template()
    messages = [D.user("Hi")]
    assert chat.render(messages=messages, add_generation_prompt=True).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert chat.render(messages=messages, add_generation_prompt=True, enable_thinking=True).endswith("<|im_start|>assistant\n<think>\n")
    assert chat.render(messages=messages, add_generation_prompt=True, enable_thinking=False).endswith("</think>\n\n")


def test_parts_and_errors() -> None:
    chat = template()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\nab<|im_end|>" in chat.render(messages=[{"role": "user", "content": parts}])
    with pytest.raises(ValueError, match="text only"):
        chat.render(messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    with pytest.raises(ValueError, match="role"):
        chat.render(messages=[D.user("x"), {"role": "developer", "content": "y"}])


def test_split_shares_no_sum_and_no_framed_wording() -> None:
    asked = {split: {D.sum_task(r)[0] for r in [D.Rand(9, split)] for _ in range(3000)} for split in ("train", "eval")}
    big = {s: {q for q in v if sum(c.isdigit() for c in q) >= 5} for s, v in asked.items()}
    assert not big["train"] & big["eval"]
