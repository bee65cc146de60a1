"""The HTTP endpoint over loopback, with the `openai` client library and with raw requests."""
from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from specjax import api, grammar, methods
from specjax.model import Model
from specjax.serving.engine import Engine
from specjax.serving.tickets import Limits
from specjax.weights.chat import ChatTemplate
from tests import tiny

openai = pytest.importorskip("openai", reason="the extra `serve` is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")


class Encoded:
    def __init__(self, ids: list[int]):
        self.ids = ids


class Letters:
    """One letter a token: ids 0..63 are the characters from "0" on."""

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
        return Encoded([(ord(c) - 48) % 64 for c in text])

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(48 + t) for t in tokens)

    decoder = None

    def get_added_tokens_decoder(self) -> dict:
        return {}

    def id_to_token(self, i: int) -> str:
        return chr(48 + i)

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return 0


def model() -> Model:
    return dataclasses.replace(tiny.model(), tokenizer=Letters(), chat=TEMPLATE)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Engine]]:
    """A running server: (address, its engine)."""
    from specjax.serving.http import Bounds, application
    from specjax.serving.worker import Worker
    engine = Engine(model(), *api.bind(model(), methods.get("lookup")), Limits(slots=2, capacity=192, new_tokens=64, queue=6, rounds=2, chunk=32,
                                                                                      grammar=(16, 16)))
    engine.warm_up()
    worker = Worker(engine)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    config = uvicorn.Config(application(model(), worker, Bounds(body=4096, prompts=4, requests=5)), host="127.0.0.1", port=port, log_level="error")
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    while not served.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}", engine
    served.should_exit = True
    thread.join()
    worker.close()


@pytest.fixture(scope="module")
def client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server[0] + "/v1", api_key="none", max_retries=0)


def text_of(prompt: str, **settings) -> str:
    """The same text by the library alone, by plain decoding."""
    return api.generate(model(), [prompt], method=methods.get("plain"), ignore_eos=True, **settings).text[0]


def test_a_completion_is_the_librarys_text(client):
    got = client.completions.create(model="tiny", prompt="abcabc", max_tokens=20, temperature=0.8, seed=11)
    assert got.choices[0].text == text_of("abcabc", max_new_tokens=20, temperature=0.8, seed=11)
    assert got.choices[0].finish_reason == "length" and got.usage.completion_tokens == 20 and got.usage.prompt_tokens == 6


def test_a_stream_joined_is_the_whole_text_and_usage_comes_last(client):
    chunks = list(client.completions.create(model="tiny", prompt="abc", max_tokens=24, temperature=1.0, seed=2, stream=True,
                                            stream_options={"include_usage": True}))
    text = "".join(c.choices[0].text for c in chunks if c.choices)
    assert text == text_of("abc", max_new_tokens=24, temperature=1.0, seed=2) and len(chunks) > 3
    assert chunks[-1].usage.completion_tokens == 24 and chunks[-2].choices[0].finish_reason == "length"


def test_chat_streamed_and_whole_give_one_text(client):
    ask = {"model": "tiny", "messages": [{"role": "system", "content": "ab"}, {"role": "user", "content": "cd"}], "max_tokens": 16, "seed": 5,
           "temperature": 0.7}
    whole = client.chat.completions.create(**ask)
    parts = list(client.chat.completions.create(**ask, stream=True))
    assert whole.choices[0].message.content == text_of("abcd", max_new_tokens=16, temperature=0.7, seed=5)
    assert "".join(p.choices[0].delta.content or "" for p in parts) == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant" and parts[-1].choices[0].finish_reason == "length"


def test_n_samples_are_different_and_each_repeatable(client):
    ask = {"model": "tiny", "prompt": "abc", "max_tokens": 16, "temperature": 1.0, "seed": 3}
    two = client.completions.create(**ask, n=2)
    assert two.choices[0].text != two.choices[1].text
    assert two.choices[0].text == client.completions.create(**ask).choices[0].text


def test_E06_a_stop_string_cuts_text_tokens_and_logprobs_alike(client):
    whole = text_of("abc", max_new_tokens=40, temperature=1.0, seed=8)
    stop = whole[7:9]
    got = client.completions.create(model="tiny", prompt="abc", max_tokens=40, temperature=1.0, seed=8, stop=[stop], logprobs=2)
    assert got.choices[0].text == whole[:whole.index(stop)] and got.choices[0].finish_reason == "stop"
    assert len(got.choices[0].logprobs.tokens) == len(got.choices[0].logprobs.token_logprobs) == got.usage.completion_tokens == whole.index(stop) + 2
    assert all(p <= 0 for p in got.choices[0].logprobs.token_logprobs) and len(got.choices[0].logprobs.top_logprobs[0]) == 2


def test_P07_a_regular_expression_holds(client):
    ask = {"model": "tiny", "prompt": "abcabc", "max_tokens": 12, "temperature": 1.0, "seed": 4}
    got = client.completions.create(**ask, extra_body={"regex": "(ab|c[0-9])*", "stop_token_ids": [63]})
    text = got.choices[0].text
    assert re.fullmatch("(ab|c[0-9])*o?", text) or re.fullmatch("(ab|c[0-9])*(a|c)?", text), text
    grammar_of = grammar.regex("(ab|c[0-9])*", [bytes([48 + i]) for i in range(64)])
    assert text == text_of("abcabc", max_new_tokens=12, temperature=1.0, seed=4, grammar=grammar_of, stop_ids=[63])
    assert client.completions.create(**ask).choices[0].text != text


def test_P07_a_json_schema_holds(client):
    got = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "ab"}], max_tokens=40, seed=1, temperature=1.0,
                                         response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [12, 345]}}},
                                         extra_body={"stop_token_ids": [63]})
    assert json.loads(got.choices[0].message.content.rstrip("o")) in (12, 345) and got.choices[0].finish_reason == "stop"


def post(address: str, path: str, body: bytes) -> tuple[int, dict]:
    request = urllib.request.Request(address + path, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("body, status, message", [
    (b"{", 400, "JSON"), (b"\xff\xfe", 400, "UTF-8"), (b"[]", 400, "object"), (b"{}", 400, "prompt"),
    (b'{"prompt": "a", "max_tokens": "many"}', 400, "max_tokens"), (b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens"),
    (b'{"prompt": "a", "temperature": -1}', 400, "temperature"), (b'{"prompt": "a", "temperature": NaN}', 400, ""),
    (b'{"prompt": "a", "wishes": 3}', 400, "wishes"), (b'{"prompt": "a", "model": "other"}', 404, "other"), (b'{"prompt": []}', 400, "prompt"),
    (b'{"prompt": [[1], [70]]}', 400, "70"), (b'{"prompt": "", "max_tokens": 4}', 400, "empty"),
    (b'{"prompt": "a", "logit_bias": {"x": 1}}', 400, "logit_bias"), (b'{"prompt": "a", "logit_bias": {"64": 1}}', 400, "64"),
    (b'{"prompt": "a", "stop_token_ids": [99]}', 400, "99"), (b'{"prompt": "a", "max_tokens": 65}', 400, "64"),
    (b'{"prompt": "' + b"a" * 150 + b'", "max_tokens": 60}', 400, "capacity"), (b'{"prompt": "a", "n": 5}', 400, "4 samples"),
    (b'{"prompt": "a", "regex": "("}', 400, "regular expression"), (b'{"prompt": "a", "regex": "(a{1000}){1000}"}', 400, "1000000"),
    (b'{"prompt": "a", "regex": "~"}', 400, "allows nothing"), (b'{"prompt": "a", "regex": "a"}', 400, "no stop id"),
    (b'{"prompt": "a", "regex": "a{40}", "stop_token_ids": [3]}', 400, "41 states"),
    (b'{"prompt": "a", "response_format": {"type": "json_object"}}', 400, "response_format"),
    (b'{"prompt": "a", "response_format": {"type": "json_schema"}}', 400, "contradict"),
    (b'{"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}', 400, "JSON schema"),
    (b'{"prompt": "a", "stop": [""]}', 400, "stop"), (b'{"prompt": "' + b"a" * 5000 + b'"}', 413, "4096"),
])
def test_a_bad_body_gets_one_clear_error_and_harms_nobody(server, body, status, message):
    found, answer = post(server[0], "/v1/completions", body)
    assert found == status and message in answer["error"]["message"], answer
    assert answer["error"]["type"] == "invalid_request_error"
    assert post(server[0], "/v1/completions", b'{"prompt": "abc", "max_tokens": 2}')[0] == 200


def test_unknown_paths_and_methods_are_json_errors_too(server):
    assert post(server[0], "/v1/nothing", b"{}")[0] == 404
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(server[0] + "/v1/completions")
    assert error.value.code == 405 and json.loads(error.value.read())["error"]
    with urllib.request.urlopen(server[0] + "/health") as response:
        assert json.load(response) == {"status": "ok"}
    with urllib.request.urlopen(server[0] + "/v1/models") as response:
        assert json.load(response)["data"][0]["id"] == "tiny"


def test_a_client_that_vanishes_frees_its_slot(server):
    address, engine = server
    host, port = address.removeprefix("http://").split(":")
    body = b'{"prompt": "abc", "max_tokens": 64, "stream": true, "temperature": 1.0}'
    before = engine.counts["cancelled"]
    for _ in range(3):
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            s.recv(200)
    until = time.time() + 20
    while (engine.active or engine.pending) and time.time() < until:
        time.sleep(0.02)
    assert engine.active == engine.pending == 0
    assert engine.counts["cancelled"] + engine.counts["length"] > before
    assert post(address, "/v1/completions", b'{"prompt": "abc", "max_tokens": 2}')[0] == 200


def test_too_many_requests_at_once_are_refused_with_429_and_the_rest_are_served(server):
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda i: post(server[0], "/v1/completions", b'{"prompt": "abc", "max_tokens": 60, "seed": 1}'), range(12)))
    good = [answer for status, answer in found if status == 200]
    assert {status for status, _ in found} == {200, 429} and len(good) >= 5
    assert len({answer["choices"][0]["text"] for answer in good}) == 1
    assert all(a["error"]["type"] == "rate_limit_error" for s, a in found if s == 429)


def test_a_slow_client_holds_up_nobody(server, client):
    with contextlib.closing(client.completions.create(model="tiny", prompt="abc", max_tokens=64, temperature=1.0, seed=1, stream=True)) as slow:
        next(iter(slow))
        begun = time.time()
        assert client.completions.create(model="tiny", prompt="abc", max_tokens=8).usage.completion_tokens == 8
        assert time.time() - begun < 20
        assert sum(len(c.choices[0].text) for c in slow) > 0
