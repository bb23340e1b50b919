"""A real vLLM server writes and scores as our own model does, takes new weights, and serves the verbs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner
from vllm_side import CLOSE, NAME

from ragen2.backends.agent import open_server
from ragen2.backends.settings import EMBEDDED
from ragen2.backends.vllm.policy import VllmServerPolicy
from ragen2.cli.app import app
from ragen2.policy import Pair, SamplingParams
from ragen2.runs.trajectories import groups_of
from ragen2.types import Finish


@pytest.fixture
def pushed(server_url, local) -> VllmServerPolicy:
    """A server with the weights of ``local``, which each test opens anew."""
    return VllmServerPolicy(open_server(server_url, NAME, EMBEDDED), local.network)


def test_log_probs_are_those_of_our_own_model(pushed, local, agree, requests, pairs):
    agree(pushed, local, requests, pairs, SamplingParams())
    assert pushed.max_context == 2048


@pytest.mark.parametrize(
    ("params", "finish"),
    [
        (SamplingParams(), Finish.STOP),
        (SamplingParams(stop=()), Finish.EOS),
        (SamplingParams(max_tokens=3), Finish.LENGTH),
    ],
)
def test_why_a_reply_ended_is_known(pushed, requests, params, finish):
    found = pushed.sample(requests, params)
    assert {one.finish for one in found} == {finish}
    again = pushed.sample(requests[::-1], params)[::-1]
    assert [one.ids_T.tolist() for one in again] == [one.ids_T.tolist() for one in found]


@pytest.mark.parametrize("dialect", ["echo", "prompt_logprobs"])
def test_both_dialects_score(pushed, local, pairs, dialect):
    pushed.push()
    scorer = replace(pushed.server.scorer, dialect=dialect)
    for found, expected in zip(scorer.score(pairs), local.score(pairs), strict=True):
        np.testing.assert_allclose(found, expected, atol=CLOSE)


def test_new_weights_are_taken_whole(pushed, local, agree, requests, pairs, change_weights):
    old = pushed.score(pairs)
    change_weights(local)
    moved = [np.abs(one - other).max() for one, other in zip(old, local.score(pairs), strict=True)]
    assert max(moved) > 0.1, "the change can be seen"
    agree(pushed, local, requests, pairs, SamplingParams())


def test_a_training_run_samples_with_the_weights_it_has(server_url, tmp_path):
    settings = {
        "steps": 2,
        "model.engine": "server",
        "server.url": f"{server_url}#{NAME}",
        "server.push_folder": str(tmp_path),
        "learner.lr": 1e-3,
        "learner.epochs": 1,
        "learner.minibatches": 1,  # a second one would find weights that have moved
        "rollout.prompts": 4,
        "rollout.group_size": 4,
        "filter.kind": "keep_all",
        "env.max_turns": 2,
        "evaluation.tasks": 4,
        "evaluation.probe_prompts": 0,
    }
    sets = [f"--set={name}={value}" for name, value in settings.items()]
    run(["train", *sets, "--out", str(tmp_path / "run")])
    lines = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    mismatch = [json.loads(one)["metrics"]["update/sampler_mismatch"] for one in lines[1:]]
    assert len(mismatch) == 2
    assert max(mismatch) < 1e-3
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "no weights are left behind"


def test_eval_plays_through_the_server(pushed, local, server_url, tmp_path):
    pushed.push()
    few = ["--set=rollout.prompts=3", "--set=rollout.group_size=3", "--set=env.max_turns=2"]
    path = f"--set=model.path={EMBEDDED}"
    out = tmp_path / "eval"
    told = run(["eval", f"{server_url}#{NAME}", "--tasks", "4", "--out", str(out), path, *few])
    assert "prompt tokens" in told
    groups = groups_of((out / "rollouts" / "step_000000.jsonl").read_text().splitlines())
    turns = [turn for group in groups for one in group.trajectories for turn in one.turns]
    pairs = [Pair(turn.prompt_ids_T, turn.completion.ids_T) for turn in turns]
    for turn, expected in zip(turns, local.score(pairs), strict=True):
        np.testing.assert_allclose(turn.completion.logprobs_T, expected, atol=CLOSE)


def test_eval_plays_by_words_alone_too(pushed, server_url, tmp_path):
    """The embedded model was never asked to open its reply itself; what counts is that it is played."""
    pushed.push()
    few = ["--set=rollout.prompts=2", "--set=rollout.group_size=2", "--set=env.max_turns=2"]
    out = tmp_path / "eval"
    chat = ["--set=server.api=chat", "--tasks", "4", "--out", str(out)]
    told = run(["eval", f"{server_url}#{NAME}", *chat, *few])
    assert "collapse/first_turn not measured: the model gives text alone" in told
    groups = groups_of((out / "evaluation.jsonl").read_text().splitlines())
    turns = [turn for group in groups for one in group.trajectories for turn in one.turns]
    assert len(turns) >= 4
    assert any(turn.completion.text for turn in turns)


def test_eval_of_a_model_here_may_sample_on_the_server(server_url, tmp_path):
    few = ["--set=rollout.prompts=3", "--set=rollout.group_size=3", "--set=env.max_turns=1"]
    server = ["--set=model.engine=server", f"--set=server.url={server_url}#{NAME}"]
    out = tmp_path / "found.json"
    run(["eval", EMBEDDED, "--tasks", "4", "--json", str(out), *server, *few])
    assert json.loads(out.read_text())["metrics"]["eval/format_validity"] > 0.9


def test_audit_scores_through_the_server_as_with_the_model_at_hand(pushed, server_url, tmp_path):
    pushed.push()
    log = tmp_path / "log.jsonl"
    rows = [
        {"q": f"You are at ({x},{y}). Goal (2,2)\n", "a": f"I am at ({x},{y}). {way}", "r": 0.0}
        for x in range(3)
        for y in range(2)
        for way in ("go left", "go up now", "then down", "so right")
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = ["--columns", "prompt=q,completion=a,reward=r", "--reasoning", "all"]
    found = {}
    for name, model in (("server", f"{server_url}#{NAME}"), ("model", EMBEDDED)):
        out = tmp_path / name
        told = run(["audit", str(log), *how, "--model", model, "--out", str(out)])
        assert ("server: " in told) == (name == "server")
        found[name] = json.loads((out / "audit.json").read_text())
    names = [f"collapse/first_turn/{one}" for one in ("mi_estimate", "retrieval_accuracy")]
    server, model = (found[one]["steps"][0]["metrics"] for one in ("server", "model"))
    assert server[names[0]] > 0.05
    for name in names:
        assert server[name] == pytest.approx(model[name], abs=CLOSE)


def run(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output
