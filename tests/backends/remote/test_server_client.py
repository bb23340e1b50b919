"""How long a client waits, what it counts, and what it keeps."""

from __future__ import annotations

import email.utils
import json
import os
import threading
import time

import numpy as np
import pytest
from faulty_server import Behaviour, serving

from ragen2.backends.remote.batch import call_all
from ragen2.backends.remote.client import ServerClient, Usage, seconds_asked, wait_seconds
from ragen2.backends.remote.journal import Journal, request_name
from ragen2.backends.settings import ServerSettings
from ragen2.errors import ConfigError, ModelError, RunError
from ragen2.policy import Request, SamplingParams
from ragen2.types import Completion, Finish

SETTINGS = ServerSettings(backoff=2.0, longest_wait=60.0)


def test_each_wait_is_twice_the_one_before_give_or_take_half():
    for attempt in range(1, 5):
        waits = [wait_seconds(SETTINGS, bytes([n]), attempt, None) for n in range(200)]
        middle = 2.0 * 2 ** (attempt - 1)
        assert middle * 0.5 <= min(waits) < middle * 0.6
        assert middle * 1.4 < max(waits) <= middle * 1.5


def test_the_same_request_waits_alike_every_time():
    assert wait_seconds(SETTINGS, b"x", 1, None) == wait_seconds(SETTINGS, b"x", 1, None)
    assert wait_seconds(SETTINGS, b"x", 1, None) != wait_seconds(SETTINGS, b"y", 1, None)


def test_what_the_server_asks_for_is_the_least():
    assert wait_seconds(SETTINGS, b"x", 1, 30.0) == 30.0
    assert wait_seconds(SETTINGS, b"x", 1, 0.0) == wait_seconds(SETTINGS, b"x", 1, None)


def test_no_wait_of_our_own_is_longer_than_the_longest():
    assert wait_seconds(SETTINGS, b"x", 40, None) == 60.0


def test_retry_after_is_read_as_seconds_and_as_a_date():
    assert seconds_asked({"Retry-After": "7"}) == 7.0
    assert seconds_asked({"Retry-After": " 1.5 "}) == 1.5
    later = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert 90 < seconds_asked({"Retry-After": later}) <= 100
    past = email.utils.formatdate(time.time() - 100, usegmt=True)
    assert seconds_asked({"Retry-After": past}) == 0.0
    assert seconds_asked({"Retry-After": "soon"}) is None
    assert seconds_asked({}) is None


def test_totals_and_their_cost():
    usage = Usage()
    usage.add_answer({"usage": {"prompt_tokens": 3_000, "completion_tokens": 500}})
    usage.add_answer({"usage": {"prompt_tokens": 1_000, "completion_tokens": None}})
    usage.add_answer({"choices": []})
    usage.add_answer({"data": []}, has_tokens=False)
    usage.add_failure()
    assert usage.cost(ServerSettings()) is None
    prices = ServerSettings(input_price=2.0, output_price=10.0)
    assert usage.cost(prices) == pytest.approx((4_000 * 2 + 500 * 10) / 1e6)
    assert usage.line(prices) == (
        "server: 4 requests, 1 failed tries, 4,000 prompt tokens, 500 written tokens, "
        "1 answers without a count of tokens, cost 0.0130"
    )
    assert Usage().line(ServerSettings()) == (
        "server: 0 requests, 0 prompt tokens, 0 written tokens"
    )


def test_calls_come_back_in_order_and_each_is_reported_once():
    told: list[tuple[int, int]] = []
    found = call_all(
        lambda n: n * n,
        list(range(50)),
        workers=7,
        stopped=threading.Event(),
        done=lambda index, result: told.append((index, result)),
    )
    assert found == [n * n for n in range(50)]
    assert sorted(told) == list(enumerate(found))


def test_nothing_to_call_is_nothing():
    assert call_all(str, [], workers=3, stopped=threading.Event()) == []


def test_after_a_failure_nothing_more_is_begun():
    begun: list[int] = []

    def call(n: int) -> int:
        begun.append(n)
        if n == 2:
            raise ValueError("two")
        return n

    stopped = threading.Event()
    with pytest.raises(ValueError, match="two"):
        call_all(call, list(range(1000)), workers=1, stopped=stopped)
    assert stopped.is_set()
    assert begun == [0, 1, 2]


def test_what_was_done_when_a_failure_came_is_still_told():
    """The second call fails only when the third, on the other thread, has been answered."""
    third_done, told = threading.Event(), []

    def call(n: int) -> int:
        if n == 1:
            assert third_done.wait(10)
            raise ValueError("one")
        if n == 2:
            third_done.set()
        return n

    def tell(index: int, result: int) -> None:
        if index == 0:
            assert third_done.wait(10)
        told.append(result)

    with pytest.raises(ValueError, match="one"):
        call_all(call, [0, 1, 2], workers=2, stopped=threading.Event(), done=tell)
    assert sorted(told) == [0, 2]


DONE = Completion(np.array([5, 6]), np.array([-0.123456789012, -2.0]), "é", Finish.STOP)


def request(luck: int = 0, prompt: tuple[int, ...] = (1, 2)) -> Request:
    return Request(np.array(prompt, dtype=np.int64), (0, "x", luck))


def test_a_journal_gives_back_exactly_what_it_was_given(tmp_path):
    file = tmp_path / "completions.jsonl"
    Journal(file, "m").add("a", DONE)
    found = Journal(file, "m").find("a")
    assert found.ids_T.tolist() == [5, 6]
    assert found.logprobs_T.tolist() == DONE.logprobs_T.tolist()
    assert (found.text, found.finish) == ("é", Finish.STOP)
    assert Journal(file, "m").find("b") is None


@pytest.mark.parametrize("torn", ['{"name": "b", "ids": [1', "", "{"])
def test_a_line_that_a_crash_cut_is_forgotten(tmp_path, torn):
    file = tmp_path / "completions.jsonl"
    Journal(file, "m").add("a", DONE)
    with file.open("a") as end:
        end.write(torn)
    again = Journal(file, "m")
    assert len(again) == 1
    again.add("b", DONE)
    assert len(Journal(file, "m")) == 2
    assert [json.loads(line).get("name") for line in file.read_text().splitlines()] == [
        None,
        "a",
        "b",
    ]


def test_a_first_line_that_was_cut_is_written_again(tmp_path):
    file = tmp_path / "completions.jsonl"
    file.write_text('{"mod')
    Journal(file, "m").add("a", DONE)
    assert len(Journal(file, "m")) == 1


def test_a_completion_of_which_one_letter_has_changed_is_not_taken(tmp_path):
    file = tmp_path / "completions.jsonl"
    Journal(file, "m").add("a", DONE)
    file.write_text(file.read_text().replace("é", "e"))
    with pytest.raises(RunError, match=r"is damaged .*line 2 has changed.*; remove it, or choose"):
        Journal(file, "m")


def test_a_completion_that_finds_no_room_is_told_in_one_line(tmp_path):
    journal = Journal(tmp_path / "completions.jsonl", "m")
    journal.file.unlink()
    journal.file.mkdir()
    with pytest.raises(RunError, match=r"completions\.jsonl cannot be written: Is a directory"):
        journal.add("a", DONE)


def test_the_replies_of_another_model_are_not_taken(tmp_path):
    file = tmp_path / "completions.jsonl"
    Journal(file, "m")
    with pytest.raises(RunError, match="holds completions of the model m, not of n; choose"):
        Journal(file, "n")
    file.write_text('{"model": "m"}\n[]\n{"name": "a"}\n')
    with pytest.raises(RunError, match=r"is damaged .*; remove it, or choose another --out"):
        Journal(file, "m")


def test_a_name_covers_all_that_decides_a_completion():
    params = SamplingParams()
    names = {
        request_name(request(), params),
        request_name(request(luck=1), params),
        request_name(request(prompt=(1, 2, 3)), params),
        request_name(request(), SamplingParams(top_p=0.9)),
        request_name(request(), SamplingParams(stop=("x",))),
        request_name(request(), SamplingParams(max_tokens=5)),
    }
    assert len(names) == 6
    assert request_name(request(), params) == request_name(request(), SamplingParams())


def plain_client(url: str, **settings) -> ServerClient:
    return ServerClient(url, ServerSettings(retries=0, **settings))


def test_the_requests_of_a_batch_share_their_connections():
    behaviour = Behaviour(tokenizer=None)
    with serving(behaviour) as url:
        with plain_client(url) as client:
            for seed in range(5):
                client.post("v1/chat/completions", {"messages": [], "seed": seed}, dict)
        assert len(behaviour.seen) == 5
        assert len(behaviour.connections) == 1


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http:///v1", "http://x:port", "x:8000"])
def test_what_is_no_address_is_told_before_anything_is_sent(url):
    with pytest.raises(ConfigError, match="is no address of a server; it starts with http"):
        plain_client(url)


def test_a_key_that_cannot_be_sent_is_not_shown(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret\nmore")
    with pytest.raises(ConfigError, match=r"^the variable SOME_KEY holds .* no key has$"):
        plain_client("http://x", api_key_env="SOME_KEY")


@pytest.fixture
def no_proxies(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("proxy", ["socks5://x:1", "gopher://x", "x:port"])
def test_a_proxy_that_cannot_be_used_is_one_line_which_no_proxy_cures(monkeypatch, proxy):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(ConfigError, match=r"^the proxy of this machine cannot be used: .*NO_PROXY"):
        plain_client("http://here:8000")
    monkeypatch.setenv("NO_PROXY", "here")
    plain_client("http://here:8000")
    plain_client("https://there")  # for which HTTP_PROXY says nothing


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("others", ["[::1]", "::1/128", "fe80::/10,192.168.0.0/16"])
def test_addresses_of_other_machines_in_no_proxy_are_no_trouble(monkeypatch, others):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", others)
    plain_client("http://here:8000")


@pytest.mark.usefixtures("no_proxies")
def test_requests_go_through_the_proxy_unless_the_server_is_in_no_proxy(monkeypatch):
    behaviour = Behaviour(tokenizer=None)
    with serving(behaviour) as url:
        monkeypatch.setenv("http_proxy", url.removeprefix("http://"))
        with plain_client("http://nowhere.invalid") as client:
            client.post("v1/chat/completions", {"messages": [], "seed": 1}, dict)
        assert len(behaviour.seen) == 1, "the proxy, here the server itself, was asked"
        monkeypatch.setenv("no_proxy", "nowhere.invalid")
        with (
            plain_client("http://nowhere.invalid") as client,
            pytest.raises(ModelError, match="cannot be reached"),
        ):
            client.post("v1/chat/completions", {"messages": [], "seed": 1}, dict)


def test_an_address_with_a_password_is_refused_without_showing_it():
    with pytest.raises(ConfigError, match=r"holds a name or a password.*OPENAI_API_KEY") as told:
        plain_client("https://user:secret@x/v1")
    assert "secret" not in str(told.value)


def test_a_question_that_is_refused_is_one_line():
    behaviour = Behaviour(tokenizer=None)
    behaviour.question_status = 400
    with (
        serving(behaviour) as url,
        plain_client(url) as client,
        pytest.raises(ModelError, match=r"v1/models refused the request: no list$"),
    ):
        client.get("v1/models", dict)
