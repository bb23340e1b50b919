"""A server that offers chat alone: it can be played and judged, through all faults, but not scored."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_server import GOOD, MODEL, Behaviour, serving
from typer.testing import CliRunner

from ragen2.backends.agent import open_agent, open_tokenizer
from ragen2.backends.remote.journal import JOURNAL_FILE, chat_name
from ragen2.backends.remote.policy import ChatServer, read_reply
from ragen2.backends.settings import EMBEDDED, LearnerSettings, ModelSettings, ServerSettings
from ragen2.cli.app import app
from ragen2.envs import FrozenLake
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import ChatRequest, SamplingParams
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.trajectories import group_lines, groups_of
from ragen2.types import Finish, Group, Message

QUICK = ServerSettings(backoff=0.001, timeout=1.0, retries=4, concurrency=8)
TASKS = [[Task(seed, luck) for luck in range(4)] for seed in range(6)]
FAULTS = ("busy", "broken", "garbled", "empty", "aborted", "cut", "cut_stream", "hung_up", "slow")


@pytest.fixture
def behaviour() -> Behaviour:
    """Words need no tokenizer."""
    return Behaviour(tokenizer=None)


def played(server: ChatServer) -> list[Group]:
    return play(FrozenLake(max_turns=3), server, TASKS, Rollout(), key=(0, "chat"))


def lines(groups: list[Group]) -> list[str]:
    return [line for group in groups for line in group_lines(group, 0)]


def each_fault_twice(name: str, attempt: int) -> str:
    number = int(name, 16)
    if attempt > 2 or number % 7 == 0:
        return GOOD
    return FAULTS[(number // 7 + attempt) % len(FAULTS)]


def test_play_through_every_fault_is_play_without_one(behaviour):
    with serving(Behaviour(tokenizer=None)) as url:
        calm = played(ChatServer(url, MODEL, QUICK))
    behaviour.fault = each_fault_twice
    with serving(behaviour) as url:
        server = ChatServer(url, MODEL, QUICK)
        stormy = played(server)
    assert set(behaviour.faults) == set(FAULTS), "every fault was met"
    assert lines(stormy) == lines(calm)
    turns = [turn for group in stormy for one in group.trajectories for turn in one.turns]
    assert len(turns) > len(TASKS) * 4
    usage = server.usage
    assert (usage.requests, usage.failures) == (len(turns), sum(behaviour.faults.values()))
    assert usage.written_tokens == sum(len(turn.completion.text.split()) for turn in turns)


def test_words_are_read_and_nothing_is_made_up_about_tokens(behaviour):
    with serving(behaviour) as url:
        groups = played(ChatServer(url, MODEL, QUICK))
    moves = set()
    for group in groups:
        for one in group.trajectories:
            for turn in one.turns:
                assert turn.completion.ids_T.size == turn.completion.logprobs_T.size == 0
                assert turn.prompt_ids_T.size == 0
                assert (turn.reasoning_span, turn.action_span) == ((0, 0), (0, 0))
                (move,) = turn.executed
                assert turn.reply.reasoning == f"I go {move.lower()}"
                assert turn.reply.valid
                moves.add(move)
    assert len(moves) == 4
    assert lines(groups_of(lines(groups))) == lines(groups)


def test_the_conversation_goes_on_with_the_models_own_words(behaviour):
    with serving(behaviour) as url:
        groups = played(ChatServer(url, MODEL, QUICK))
    one = max((one for group in groups for one in group.trajectories), key=lambda t: len(t.turns))
    assert len(one.turns) == 3
    sent = [body["messages"] for body in behaviour.seen]
    said = [turn.completion.text for turn in one.turns]
    roles = ["system", *(["user", "assistant"] * 3), "user"]
    whole = [
        messages
        for messages in sent
        if [m["content"] for m in messages[4:] if m["role"] == "assistant"] == said[:2]
        and messages[3]["content"] == one.prompt.messages[3].content
    ]
    assert whole
    assert [message["role"] for message in whole[0]] == roles
    assert one.turns[1].observation in whole[0][7]["content"]
    assert "1. <think> two or three sentences" in whole[0][0]["content"]


def test_members_of_a_group_have_seeds_of_their_own_and_no_stop_string_is_sent(behaviour):
    with serving(behaviour) as url:
        played(ChatServer(url, MODEL, QUICK))
    first = [body for body in behaviour.seen if len(body["messages"]) == 4]
    assert len({body["seed"] for body in first}) == len(TASKS) * 4
    assert all(0 <= body["seed"] < 2**31 for body in first)
    assert all(
        body.keys() == {"model", "messages", "max_tokens", "temperature", "seed"} for body in first
    )


@pytest.mark.parametrize(
    ("unknown", "taken"),
    [
        ({"max_tokens"}, {"max_completion_tokens", "seed"}),
        ({"seed"}, {"max_tokens"}),
        ({"seed", "max_tokens"}, {"max_completion_tokens"}),
    ],
)
def test_a_form_that_the_server_takes_is_found_and_kept(behaviour, unknown, taken):
    behaviour.unknown = frozenset(unknown)
    # A busy machine may take longer than a quick limit, and whoever asks again asks once too often.
    one_by_one = QUICK.model_copy(update={"concurrency": 1, "timeout": 30.0})
    with serving(behaviour) as url:
        groups = played(ChatServer(url, MODEL, one_by_one))
    bodies = [body.keys() - {"model", "messages", "temperature"} for body in behaviour.seen]
    refused = [body for body in bodies if body & unknown]
    assert 1 <= len(refused) <= 3
    assert bodies[: len(refused)] == refused, "only before the first that was taken"
    assert bodies[len(refused) :] == [taken] * (len(bodies) - len(refused))
    turns = sum(len(one.turns) for group in groups for one in group.trajectories)
    assert len(bodies) == turns + len(refused)


def test_a_server_that_takes_no_form_is_told_in_one_line(behaviour):
    behaviour.unknown = frozenset({"messages"})
    with (
        serving(behaviour) as url,
        pytest.raises(ModelError, match=r"refused a conversation: unknown setting messages$"),
    ):
        played(ChatServer(url, MODEL, QUICK))


def test_a_cut_of_the_choice_that_chat_does_not_know_is_refused(behaviour):
    with pytest.raises(ConfigError, match=r"^rollout\.top_k is 5, .* set it to 0$"):
        ChatServer("http://x", MODEL).reply([], SamplingParams(top_k=5))
    with serving(behaviour) as url:
        request = ChatRequest((Message("user", "hi"),), (0,))
        ChatServer(url, MODEL, QUICK).reply([request], SamplingParams(temperature=0.5, top_p=0.9))
    assert (behaviour.seen[0]["temperature"], behaviour.seen[0]["top_p"]) == (0.5, 0.9)


@pytest.mark.parametrize(
    ("content", "reason", "text", "finish"),
    [
        ("a<b", "stop", "a<b", Finish.EOS),
        ("a", "length", "a", Finish.LENGTH),
        (None, "stop", "", Finish.EOS),
    ],
)
def test_why_a_reply_ended_is_read_off_the_answer(content, reason, text, finish):
    choice = {"message": {"content": content}, "finish_reason": reason}
    found = read_reply({"choices": [choice]})
    assert (found.text, found.finish) == (text, finish)


def test_a_name_covers_the_conversation():
    hello = ChatRequest((Message("user", "hi"),), (0, 1))
    params = SamplingParams()
    names = {
        chat_name(hello, params),
        chat_name(ChatRequest((Message("system", "hi"),), (0, 1)), params),
        chat_name(ChatRequest((Message("user", "ho"),), (0, 1)), params),
        chat_name(ChatRequest(hello.messages, (0, 2)), params),
        chat_name(hello, SamplingParams(temperature=0.5)),
    }
    assert len(names) == 5


def evaluate(url: str, out: Path, *more: str) -> list[str]:
    few = ["--set=rollout.prompts=4", "--set=rollout.group_size=4", "--set=env.max_turns=2"]
    chat = ["--set=server.api=chat", "--set=server.backoff=0.001"]
    return ["eval", f"{url}#{MODEL}", "--tasks=12", f"--out={out}", *few, *chat, *more]


def test_eval_judges_it_by_what_it_does_and_the_run_can_be_audited(behaviour, tmp_path):
    behaviour.is_chat_only = True
    run, file = tmp_path / "run", tmp_path / "found.json"
    with serving(behaviour) as url:
        words = evaluate(url, run, f"--json={file}")
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        asked = len(behaviour.seen)
        again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == again.exit_code == 0, done.output
    assert len(behaviour.seen) == asked, "the second found all answers on disk"
    assert re.search(r"^server: [\d,]+ requests", done.output, re.MULTILINE)
    assert "collapse/first_turn not measured: the model gives text alone" in done.output
    found = json.loads(file.read_text())
    assert found["regime"] is None
    assert {name for name in found["metrics"] if name.startswith("collapse/")} == set()
    held_out = groups_of((run / "evaluation.jsonl").read_text().splitlines())
    solved = [one.solved for group in held_out for one in group.trajectories]
    assert len(solved) == 12
    assert found["metrics"]["eval/success"] == sum(solved) / 12
    assert found["metrics"]["eval/format_validity"] == 1.0
    audit = ["audit", str(run), f"--out={tmp_path / 'audit'}"]
    audited = CliRunner().invoke(app, audit, catch_exceptions=False)
    assert audited.exit_code == 0, audited.output
    assert "retrieval" in audited.output
    assert (run / JOURNAL_FILE).exists()


def test_the_way_by_tokens_names_the_way_by_words(behaviour, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    behaviour.is_chat_only = True
    cure = "--set server.api=chat"
    with serving(behaviour) as url:
        words = ["eval", f"{url}#{MODEL}", "--tasks=2"]
        served = CliRunner().invoke(app, [*words, f"--set=model.path={EMBEDDED}"])
        no_tokenizer = CliRunner().invoke(app, words)
    assert isinstance(served.exception, ModelError)
    told = f"{url}/v1/completions answered 404: this is a chat model; if it offers chat alone, use {cure}"
    assert str(served.exception) == told
    assert isinstance(no_tokenizer.exception, ModelError)
    assert str(no_tokenizer.exception).startswith(f"the tokenizer of {MODEL} is not found: ")
    assert str(no_tokenizer.exception).endswith(cure)


def test_an_answer_without_ids_names_it_too():
    tokenizer = open_tokenizer(EMBEDDED).hf
    behaviour = Behaviour(tokenizer)
    whole = behaviour.answer
    behaviour.answer = lambda body: {  # a server that ignores return_token_ids
        **(found := whole(body)),
        "choices": [{k: v for k, v in one.items() if k != "token_ids"} for one in found["choices"]],
    }
    with serving(behaviour) as url:
        done = CliRunner().invoke(
            app, ["eval", f"{url}#{MODEL}", "--tasks=2", f"--set=model.path={EMBEDDED}"]
        )
    assert isinstance(done.exception, ModelError)
    assert "play by its text alone with --set server.api=chat" in str(done.exception)


def test_words_alone_cannot_be_trained_on():
    model = ModelSettings(engine="server", device="cpu")
    server = ServerSettings(url="http://localhost:1#m", api="chat")
    with pytest.raises(ConfigError, match=r'^server\.api is "chat", but a learner needs the ids'):
        open_agent(model, LearnerSettings(), seed=0, server=server)


def test_no_torch_is_needed(behaviour, tmp_path):
    script = (
        "import sys\n"
        "from ragen2.cli.app import app\n"
        "try:\n"
        "    app(sys.argv[1:], standalone_mode=False)\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    with serving(behaviour) as url:
        done = subprocess.run(
            [sys.executable, "-c", script, *evaluate(url, tmp_path / "run")],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "success" in done.stdout
