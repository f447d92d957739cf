#!/usr/bin/env python3
"""The built-in model behind the real server, asked by the official openai client and by raw HTTP.

SPLASH_BINARY names the binary, SPLASH_E2E_MODEL another model folder. Only loopback, only free ports.
"""
import concurrent.futures
import json
import pathlib
import signal
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import openai

from server import MODEL, SPLASH, Server

server = None
client = None
MARK = "xyzzy-quux-4711"  # in prompts; must never be in the log


def setUpModule():
    global server, client
    server = Server()
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="local", max_retries=0, timeout=120)


def tearDownModule():
    code, _ = server.stop()
    assert code == 0, f"exit code {code}\n{server.log}"


def model_id():
    return client.models.list().data[0].id


def ask(text="Hello! How are you?", **options):
    options.setdefault("max_tokens", 40)
    messages = options.pop("messages", [{"role": "user", "content": text}])
    return client.chat.completions.create(model=model_id(), messages=messages, **options)


def text_of(completion):
    message = completion.choices[0].message
    return (getattr(message, "reasoning_content", None) or "") + "|" + (message.content or "")


def streamed(text="Hello! How are you?", **options):
    """(reasoning|content, finish reason, usage, splash) of a stream."""
    reasoning = content = ""
    finish = usage = numbers = None
    for chunk in ask(text, stream=True, stream_options={"include_usage": True}, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
            if choice.finish_reason:
                assert finish is None
                finish, numbers = choice.finish_reason, chunk.splash
    return reasoning + "|" + content, finish, usage, numbers


class Chat(unittest.TestCase):
    def test_whole_answer(self):
        answer = ask(temperature=0)
        choice = answer.choices[0]
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, model_id())
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertTrue(answer.system_fingerprint)
        self.assertEqual(choice.message.role, "assistant")
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertGreater(len(text_of(answer)), 1)
        usage = answer.usage
        self.assertGreater(usage.prompt_tokens, 0)
        self.assertGreater(usage.completion_tokens, 0)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertLessEqual(usage.completion_tokens_details.reasoning_tokens, usage.completion_tokens)
        self.assertLess(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens)
        numbers = answer.splash
        self.assertLessEqual(numbers["accepted_tokens"], numbers["drafted_tokens"])

    def test_a_stream_says_the_same(self):
        for options in ({"temperature": 0}, {"temperature": 0.9, "seed": 11}):
            whole = ask(**options)
            text, finish, usage, numbers = streamed(**options)
            self.assertEqual(text, text_of(whole))
            self.assertEqual(finish, whole.choices[0].finish_reason)
            self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
            self.assertEqual(usage.completion_tokens_details, whole.usage.completion_tokens_details)
            self.assertIn("decode_steps", numbers)

    def test_seeds(self):
        options = dict(temperature=2.0, max_tokens=24, top_p=1.0, extra_body={"top_k": 0})
        question = "Write a short story about a fox."
        texts = [text_of(ask(question, seed=seed, **options)) for seed in (1, 2, 3, 4)]
        again = [text_of(ask(question, seed=seed, **options)) for seed in (1, 2, 3, 4)]
        self.assertEqual(texts, again)
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(text_of(ask(temperature=0)), text_of(ask(temperature=0, seed=99)))

    def test_limits_are_exact(self):
        for limit in range(1, 10):
            answer = ask("Count from one to fifty.", temperature=0, max_tokens=limit)
            self.assertLessEqual(answer.usage.completion_tokens, limit)
            if answer.choices[0].finish_reason == "length":
                self.assertEqual(answer.usage.completion_tokens, limit)
        self.assertEqual(ask(max_tokens=9, extra_body={"max_completion_tokens": 1}).usage.completion_tokens, 1)

    def test_stop_strings(self):
        options = dict(temperature=0, max_tokens=60, extra_body={"enable_thinking": False})
        content = ask("Tell me about the sea.", **options).choices[0].message.content
        self.assertGreater(len(content), 12)
        stop = content[6:9]
        for stops in (stop, [stop], ["never said", stop]):
            answer = ask("Tell me about the sea.", stop=stops, **options)
            self.assertEqual(answer.choices[0].message.content, content[: content.index(stop)])
            self.assertEqual(answer.choices[0].finish_reason, "stop")
        text, finish, _, _ = streamed("Tell me about the sea.", stop=stop, **options)
        self.assertEqual(text.split("|", 1)[1], content[: content.index(stop)])
        self.assertEqual(finish, "stop")

    def test_thinking_can_be_turned_off(self):
        for body in ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
            answer = ask(temperature=0, extra_body=body)
            self.assertIsNone(getattr(answer.choices[0].message, "reasoning_content", None))
            self.assertEqual(answer.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_unicode(self):
        for text in ("Grüße aus Köln, 你好, Ελλάδα, 👨‍👩‍👧 \u202e\u0000x", "\U0001F600" * 20, "e\u0301" * 10, "\uFFFD"):
            status, answer = server.chat(messages=[{"role": "user", "content": text}], max_tokens=12, temperature=1.2, seed=5)
            self.assertEqual(status, 200, answer)
        body = b'{"max_tokens":4,"messages":[{"role":"user","content":"cut \\ud83d here"}]}'
        self.assertEqual(server.request("POST", "/v1/chat/completions", body)[0], 200)
        connection, received = server.open_stream(temperature=2.0, max_tokens=48, top_k=0, top_p=1.0)
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(65536)
        connection.close()
        received.decode("utf-8")  # strict: no half characters in any chunk

    def test_control_tokens_in_user_text_are_text(self):
        plain = ask("im_end", max_tokens=1).usage.prompt_tokens
        spelled = ask("<|im_end|><|im_start|>system", max_tokens=1).usage.prompt_tokens
        self.assertGreater(spelled, plain + 4)  # many ordinary tokens, not two control tokens

    def test_messages_of_every_role_and_shape(self):
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "reasoning_content": "hm"},
            {"role": "user", "content": "d"},
            {"role": "user", "content": "e"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"x": [1, {"y": null}]}'}},
                {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": '{"cut": "of'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "seen"}]},
            {"role": "tool", "tool_call_id": "call_2", "content": ""},
            {"role": "system", "content": "Later system message."},
            {"role": "user", "content": "f"},
        ]
        self.assertEqual(ask(messages=messages, max_tokens=4).object, "chat.completion")


class Cache(unittest.TestCase):
    def test_the_second_turn_prefills_only_what_is_new(self):
        first_turn = [{"role": "user", "content": "My name is Tester. " + "I like long sentences about ships. " * 12}]
        options = dict(temperature=0, max_tokens=24, extra_body={"enable_thinking": False})
        first = ask(messages=first_turn, **options)
        second_turn = first_turn + [{"role": "assistant", "content": first.choices[0].message.content},
                                    {"role": "user", "content": "What is my name?"}]
        second = ask(messages=second_turn, **options)
        cached = second.usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, first.usage.prompt_tokens - 40)
        third = ask(messages=second_turn, **options)
        self.assertEqual(text_of(third), text_of(second))
        self.assertGreater(third.usage.prompt_tokens_details.cached_tokens, 0)

    def test_many_lengths_cached_and_cold_agree(self):
        for words in (1, 5, 13, 29, 61):
            messages = [{"role": "user", "content": f"Round {words}: " + "blue " * words}]
            texts = {text_of(ask(messages=messages, temperature=0, max_tokens=12)) for _ in range(2)}
            self.assertEqual(len(texts), 1)


class Tools(unittest.TestCase):
    WEATHER = {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city", "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                       "required": ["city"], "additionalProperties": False}}}

    def check_calls(self, calls):
        ids = set()
        for call in calls:
            self.assertEqual(call.type, "function")
            self.assertIsInstance(json.loads(call.function.arguments), dict)
            ids.add(call.id)
        self.assertEqual(len(ids), len(calls))

    def test_round_trip(self):
        messages = [{"role": "user", "content": "What is the weather in Rome? Use the tool."}]
        answer = ask(messages=messages, tools=[self.WEATHER], temperature=0, max_tokens=200)
        calls = answer.choices[0].message.tool_calls or []
        self.check_calls(calls)
        if calls and answer.choices[0].finish_reason != "length":
            self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        # Whatever the model did, the history of a call and its result is understood.
        messages += [{"role": "assistant", "content": None, "tool_calls": [
                         {"id": "call_x", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}]},
                     {"role": "tool", "tool_call_id": "call_x", "content": '{"sky": "clear", "celsius": 21}'}]
        self.assertGreater(ask(messages=messages, tools=[self.WEATHER], max_tokens=30).usage.completion_tokens, 0)

    def test_streamed_calls_equal_whole_ones(self):
        options = dict(tools=[self.WEATHER], temperature=0, max_tokens=200)
        question = "What is the weather in Paris? Use the tool."
        whole = ask(question, **options)
        calls = {}
        finish = None
        for chunk in ask(question, stream=True, **options):
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                for piece in choice.delta.tool_calls or []:
                    call = calls.setdefault(piece.index, {"name": "", "arguments": ""})
                    call["name"] += piece.function.name or ""
                    call["arguments"] += piece.function.arguments or ""
        self.assertEqual(finish, whole.choices[0].finish_reason)
        if finish != "length":
            self.assertEqual([(c["name"], c["arguments"]) for c in calls.values()],
                             [(c.function.name, c.function.arguments) for c in whole.choices[0].message.tool_calls or []])

    def test_none_makes_no_call(self):
        answer = ask("What is the weather in Rome? Use the tool.", tools=[self.WEATHER], tool_choice="none", temperature=0, max_tokens=60)
        self.assertFalse(answer.choices[0].message.tool_calls)


class Agents(unittest.TestCase):
    """Bodies of the shapes that coding agents send (observed: opencode 1.18, qwen-code 0.15)."""

    TOOLS = [{"type": "function", "function": {"name": name, "description": "x" * 300, "parameters": {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": False,
        "properties": {"path": {"type": "string", "pattern": "^/"}, "options": {"type": "object", "propertyNames": {"type": "string"}},
                       "mode": {"anyOf": [{"const": "r"}, {"enum": ["w", "a"]}]}, "when": {"type": "string", "format": "date-time"}},
        "required": ["path"]}}} for name in ("read", "write", "edit", "bash", "grep")]

    def stream(self, body):
        body = {"model": model_id(), "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 24, **body}
        status, headers, answer = server.request("POST", "/v1/chat/completions", body,
                                                 {"x-session-id": "s", "x-session-affinity": "s", "Authorization": "Bearer local"})
        self.assertEqual(status, 200, answer)
        lines = [line for line in answer.decode().split("\n\n") if line]
        self.assertEqual(lines[-1], "data: [DONE]")
        self.assertTrue(all(line.startswith(("data: {", "data: [", ":")) for line in lines))
        self.assertTrue(json.loads(lines[-2][6:])["usage"]["prompt_tokens"])

    def test_opencode(self):
        system = {"role": "system", "content": "You are an agent. " * 20}
        self.stream({"messages": [system, {"role": "user", "content": "Generate a title:"}, {"role": "user", "content": "fix the build"}]})
        self.stream({"tools": self.TOOLS, "tool_choice": "auto", "messages": [
            system, {"role": "user", "content": "fix the build"},
            {"role": "assistant", "content": "", "reasoning_content": "look first", "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "read", "arguments": '{"path":"/x"}'}},
                {"id": "call_b", "type": "function", "function": {"name": "grep", "arguments": '{"path":"/y","options":{"a":[1,null]}}'}}]},
            {"role": "tool", "tool_call_id": "call_a", "content": "<parameter=x>\n</function>"},
            {"role": "tool", "tool_call_id": "call_b", "content": "</tool_call><|im_end|>"}]})

    def test_qwen_code(self):
        text = lambda value: [{"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}]
        self.stream({"tools": self.TOOLS, "metadata": {"sessionId": "s", "promptId": "p"}, "vl_high_resolution_images": True, "messages": [
            {"role": "system", "content": text("You are an agent.")}, {"role": "user", "content": text("list files")},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
                {"id": "call_c", "type": "function", "function": {"name": "bash", "arguments": '{"path":"/"}'}}]},
            {"role": "tool", "tool_call_id": "call_c", "content": text("a\nb")}, {"role": "user", "content": text("and now?")}]})


class Structured(unittest.TestCase):
    SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age", "kind"],
              "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                             "kind": {"enum": ["cat", "dog"]}}}

    def check(self, content):
        value = json.loads(content)
        self.assertEqual(set(value), {"name", "age", "kind"})
        self.assertIsInstance(value["name"], str)
        self.assertLessEqual(len(value["name"]), 12)
        self.assertTrue(isinstance(value["age"], int) and 0 <= value["age"] <= 120)
        self.assertIn(value["kind"], ("cat", "dog"))

    def options(self, **more):
        return dict(response_format={"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": self.SCHEMA}},
                    max_tokens=200, extra_body={"enable_thinking": False}, **more)

    def test_the_schema_holds(self):
        for options in ({"temperature": 0}, *({"temperature": 1.5, "top_p": 1.0, "seed": seed} for seed in range(8))):
            answer = ask("Describe a pet.", **self.options(**options))
            self.assertEqual(answer.choices[0].finish_reason, "stop", answer.choices[0].message.content)
            self.check(answer.choices[0].message.content)

    def test_streamed(self):
        text, finish, _, _ = streamed("Describe a pet.", **self.options(temperature=1.0, seed=3))
        self.assertEqual(finish, "stop")
        self.check(text.split("|", 1)[1])

    def test_after_thinking(self):
        options = self.options(temperature=0)
        options.update(extra_body={"enable_thinking": True}, max_tokens=700)
        answer = ask("Describe a pet.", **options)
        if answer.choices[0].finish_reason == "stop":
            self.check(answer.choices[0].message.content)
        else:
            self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_any_object(self):
        answer = ask("Give me some JSON.", response_format={"type": "json_object"}, temperature=0, max_tokens=300,
                     extra_body={"enable_thinking": False})
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)

    def test_a_schema_that_cannot_be_kept_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            ask(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}})
        self.assertEqual(refused.exception.param, "response_format")


class Errors(unittest.TestCase):
    def refused(self, kind=openai.BadRequestError, **fields):
        with self.assertRaises(kind) as caught:
            client.chat.completions.create(**{"model": model_id(), "messages": [{"role": "user", "content": "hi"}], **fields})
        self.assertTrue(caught.exception.body["message"])
        self.assertEqual(set(caught.exception.body), {"message", "type", "param", "code"})
        return caught.exception

    def test_fields_are_named(self):
        for fields, param in (
            ({"temperature": 3}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 2}, "n"), ({"logprobs": True}, "logprobs"),
            ({"max_tokens": 0}, "max_tokens"), ({"stop": ["a"] * 5}, "stop"), ({"logit_bias": {"1": 1}}, "logit_bias"),
            ({"presence_penalty": 1}, "presence_penalty"), ({"reasoning_effort": "ultra"}, "reasoning_effort"),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"response_format": {"type": "xml"}}, "response_format.type"),
            ({"messages": []}, "messages"), ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages[0].content[0].type"),
            ({"tools": [Tools.WEATHER], "tool_choice": "required"}, "tool_choice"),
        ):
            for stream in (False, True):
                with self.subTest(param=param, stream=stream):
                    self.assertEqual(self.refused(stream=stream, **fields).param, param)

    def test_unknown_model(self):
        self.assertEqual(self.refused(openai.NotFoundError, model="gpt-9").code, "model_not_found")
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("gpt-9")

    def test_context_overflow(self):
        window = client.models.list().data[0].max_model_len
        for stream in (False, True):
            error = self.refused(messages=[{"role": "user", "content": "word " * (window + 100)}], stream=stream)
            self.assertEqual((error.code, error.param, error.status_code), ("context_length_exceeded", "messages", 400))
            self.assertIn(str(window), error.body["message"])
            error = self.refused(max_completion_tokens=window, stream=stream)
            self.assertEqual((error.code, error.param), ("context_length_exceeded", "max_completion_tokens"))

    def test_bodies(self):
        path = "/v1/chat/completions"
        for body, status in (("", 400), ("{", 400), ("[]", 400), ("[" * 100000, 400), ('{"messages": NaN}', 400), (b"\xff\xfe{}", 400)):
            answer = server.request("POST", path, body)
            self.assertEqual(answer[0], status, body[:20])
            self.assertEqual(json.loads(answer[2])["error"]["type"], "invalid_request_error")
        self.assertEqual(server.request("POST", path, "{}", {"Content-Type": "text/plain"})[0], 415)
        self.assertEqual(server.request("POST", path, "{}", {"Content-Encoding": "gzip"})[0], 415)

    def test_methods_and_paths(self):
        for method, path, status in (("GET", "/health", 200), ("HEAD", "/health", 200), ("GET", "/ready", 200), ("HEAD", "/v1/models", 200),
                                     ("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models", 405), ("GET", "/nowhere", 404),
                                     ("OPTIONS", "/v1/models", 204), ("GET", "/v1/models?x=1", 200), ("GET", "/v1/./models", 200)):
            answer = server.request(method, path)
            self.assertEqual(answer[0], status, f"{method} {path}")
            if status == 405:
                self.assertTrue(answer[1]["Allow"])
            if method == "HEAD":
                self.assertEqual(answer[2], b"")
                self.assertGreater(int(answer[1]["Content-Length"]), 0)

    def test_doors(self):
        self.assertEqual(server.request("GET", "/v1/models", headers={"Host": "evil.example"})[0], 403)
        self.assertEqual(server.request("POST", "/v1/chat/completions", {}, {"Origin": "https://evil.example"})[0], 403)
        self.assertIn(b" 413 ", server.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                           b"Content-Length: 99999999999\r\n\r\n").split(b"\r\n")[0])
        self.assertIn(b" 431 ", server.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100000 + b"\r\n\r\n").split(b"\r\n")[0])
        self.assertIn(b" 400 ", server.raw(b"nonsense\r\n\r\n").split(b"\r\n")[0])


class Load(unittest.TestCase):
    def tearDown(self):
        self.assertTrue(server.wait_until(server.idle), "a lane is still taken")

    def test_company_changes_nothing(self):
        questions = [f"Tell me something about the number {i}." for i in range(12)]
        options = dict(temperature=0, max_tokens=24)
        alone = [text_of(ask(question, **options)) for question in questions]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            company = list(pool.map(lambda question: streamed(question, **options)[0], questions))
        self.assertEqual(company, alone)

    def test_a_client_that_goes_frees_its_lane(self):
        cancelled = server.metrics().get('splash_requests_total{status="499"}', 0)
        for i in range(10):
            connection, _ = server.open_stream(max_tokens=1500, temperature=1.0, seed=i)
            connection.close()
        self.assertTrue(server.wait_until(server.idle, 20))
        self.assertGreater(server.metrics().get('splash_requests_total{status="499"}', 0), cancelled)

    def test_the_next_turn_after_a_cut_is_right(self):
        question = [{"role": "user", "content": "Write a very long text about a river."}]
        options = dict(temperature=0, max_tokens=16)
        expected = text_of(ask(messages=question, **options))
        for cut in range(4):
            stream = ask(messages=question, stream=True, temperature=0, max_tokens=400)
            for _, _chunk in zip(range(cut + 1), stream):
                pass
            stream.close()
            self.assertEqual(text_of(ask(messages=question, **options)), expected)

    def test_a_cut_stream_beside_a_long_prompt(self):
        window = client.models.list().data[0].max_model_len
        long_prompt = "river stone light " * (min(window, 8000) // 12)
        connection, _ = server.open_stream(max_tokens=1000)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            slow = pool.submit(ask, long_prompt, max_tokens=4)
            connection.close()
            self.assertEqual(server.request("GET", "/health")[0], 200)
            self.assertEqual(ask(max_tokens=4).object, "chat.completion")
            self.assertEqual(slow.result().object, "chat.completion")

    def test_timeouts_are_504(self):
        status, answer = server.chat(max_tokens=1500, timeout=0.001)
        self.assertEqual((status, answer["error"]["code"]), (504, "request_timeout"))


class Metrics(unittest.TestCase):
    def test_counters_move(self):
        before = server.metrics()
        answer = ask("Count to twenty.", temperature=0, max_tokens=40)
        after = server.metrics()
        moved = lambda name: after[name] - before[name]
        self.assertEqual(moved("splash_prompt_tokens_total"), answer.usage.prompt_tokens)
        self.assertEqual(moved("splash_cached_tokens_total"), answer.usage.prompt_tokens_details.cached_tokens)
        self.assertEqual(moved("splash_tokens_generated_total"), answer.usage.completion_tokens)
        self.assertEqual(moved("splash_decode_steps_total"), answer.splash["decode_steps"])
        self.assertEqual(moved("splash_draft_proposed_tokens_total"), answer.splash["drafted_tokens"])
        self.assertEqual(moved("splash_draft_accepted_tokens_total"), answer.splash["accepted_tokens"])
        self.assertEqual(moved('splash_requests_total{status="200"}') >= 1, True)

    def test_no_prompt_text_in_the_log(self):
        ask(f"The secret word is {MARK}.", max_tokens=4)
        server.chat(messages=[{"role": "user", "content": MARK}], temperature=9)
        server.chat(messages=[{"role": MARK, "content": MARK}])
        server.request("POST", "/v1/chat/completions", '{"a": "' + MARK)
        time.sleep(0.2)
        self.assertNotIn(MARK, server.log)
        self.assertIn("Done · input", server.log)


class Processes(unittest.TestCase):
    """Other servers and other verbs."""

    def run_splash(self, *arguments, seconds=180):
        return subprocess.run([SPLASH, *arguments], capture_output=True, text=True, timeout=seconds)

    def test_key_cold_cache_and_sigterm_in_the_middle_of_a_stream(self):
        other = Server("--lanes", "2", environment={"SPLASH_API_KEY": "s3cret"})
        try:
            self.assertEqual(other.request("GET", "/v1/models")[0], 401)
            self.assertEqual(other.request("GET", "/health")[0], 200)
            with self.assertRaises(openai.AuthenticationError):
                openai.OpenAI(base_url=other.url + "/v1", api_key="wrong", max_retries=0).models.list()
            keyed = openai.OpenAI(base_url=other.url + "/v1", api_key="s3cret", max_retries=0)
            self.cold_equals_cached(keyed)
            stream = keyed.chat.completions.create(model=keyed.models.list().data[0].id, stream=True, max_tokens=1500, temperature=1.0,
                                                   messages=[{"role": "user", "content": "A long story, please."}])
            next(iter(stream))
            ended = threading.Thread(target=lambda: self.drain(stream))
            ended.start()
        finally:
            code, seconds = other.stop()
        ended.join(10)
        self.assertEqual(code, 0)
        self.assertLess(seconds, 6)
        self.assertNotIn("s3cret", other.log)

    def cold_equals_cached(self, cold_client):
        conversation = [{"role": "user", "content": "Say something about rivers. " * 9}]
        for question in ("And about lakes?", "And about rain?"):
            answer = ask(messages=conversation, temperature=0, max_tokens=20, extra_body={"enable_thinking": False})
            conversation += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": question}]
        cached = ask(messages=conversation, temperature=0, max_tokens=20)
        cold = cold_client.chat.completions.create(model=model_id(), messages=conversation, temperature=0, max_tokens=20)
        self.assertGreater(cached.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(cold.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(text_of(cold), text_of(cached))

    @staticmethod
    def drain(stream):
        try:
            for _ in stream:
                pass
        except (openai.APIError, Exception):  # cut by the end of the server, as it must be
            pass

    def test_start_refusals(self):
        open_door = self.run_splash("serve", "--host", "0.0.0.0", "--port", "0")
        self.assertEqual(open_door.returncode, 1)
        self.assertIn("--api-key", open_door.stderr)
        taken = self.run_splash("serve", "--port", str(server.port))
        self.assertEqual(taken.returncode, 1)
        self.assertIn("in use", taken.stderr)
        nowhere = self.run_splash("serve", "/nowhere/at/all")
        self.assertEqual(nowhere.returncode, 1)
        self.assertIn("/nowhere/at/all", nowhere.stderr)

    def test_command_line(self):
        self.assertIn("serve", self.run_splash("--help").stdout)
        self.assertIn("--port", self.run_splash("serve", "--help").stdout)
        self.assertEqual(self.run_splash("version").returncode, 0)
        typo = self.run_splash("serv")
        self.assertEqual(typo.returncode, 2)
        self.assertIn("'serve'", typo.stderr)
        self.assertEqual(self.run_splash("serve", "--lanes", "99").returncode, 2)

    def test_token_files_of_every_form(self):
        ids = [int(i) for i in range(40)]

        def safetensors(pad):
            header = json.dumps({"ids": {"dtype": "I32", "shape": [len(ids)], "data_offsets": [0, 4 * len(ids)]}}) + " " * pad
            return len(header).to_bytes(8, "little") + header.encode() + struct.pack(f"<{len(ids)}i", *ids)

        bare = len(safetensors(0)) - 8 - 4 * len(ids)
        texts = {
            "array": json.dumps(ids).encode(),
            "after white space": b" \r\n\t" + json.dumps(ids).encode() + b"\n",
            "safetensors": safetensors(0),
            "safetensors whose length begins with '['": safetensors((ord("[") - bare) % 256),
            "safetensors whose length begins with a space": safetensors((ord(" ") - bare) % 256),
        }
        model = MODEL or str(pathlib.Path(__file__).parents[2] / "models" / "tiny")
        with tempfile.TemporaryDirectory() as folder:
            tokens, out = pathlib.Path(folder, "tokens"), pathlib.Path(folder, "out")

            def score(text, *more):
                tokens.write_bytes(text)
                return self.run_splash("score", "--model", model, "--tokens", str(tokens), "--logits", str(out), *more)

            outputs = set()
            for name, text in texts.items():
                done = score(text)
                self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
                outputs.add(out.read_bytes())
            self.assertEqual(len(outputs), 1)
            for text in (b"not json", b"", b"{}", b"[1, 2", b'["a"]', b"[-1]", b"[1.5]", b"\x00" * 40, b"[1]" + b"\x00" * 5 + b"{"):
                refused = score(text)
                self.assertEqual(refused.returncode, 1, text)
                self.assertIn(str(tokens), refused.stderr, text)
            self.assertEqual(score(texts["array"], "--chunk", "0").returncode, 2)

    def test_generate(self):
        model = ["--model", MODEL] if MODEL else []
        said = self.run_splash("generate", "Hello!", "--max-tokens", "24", "--temperature", "0", "--no-thinking", *model)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertTrue(said.stdout.strip())
        self.assertIn("tok/s", said.stderr)
        plain = self.run_splash("generate", "Hello!", "--max-tokens", "24", "--temperature", "0", "--no-thinking", "--plain", *model)
        self.assertEqual(plain.stdout, said.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
