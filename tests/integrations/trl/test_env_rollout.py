"""Our environments inside TRL, token for token."""

from __future__ import annotations

import json
from typing import Any

import jobs
import numpy as np
import pytest
import torch
from trl import GRPOTrainer

from ragen2.diagnostics import Triage
from ragen2.envs import make
from ragen2.errors import ConfigError
from ragen2.integrations.trl import EnvRollout, SNRGRPOTrainer, SNRSettings, env_return
from ragen2.rollout import Rollout
from ragen2.rollout.prompts import PromptSettings
from ragen2.runs.store import RunDirectory
from ragen2.trainer.batch import EnvReplayer

SEEDS = range(300_000, 300_004)


def played() -> EnvRollout:
    """In the style that the embedded model was taught."""
    env = make("FrozenLake", max_turns=3)
    return EnvRollout(env, Rollout(max_tokens=32), PromptSettings(style="brief"))


def trainer_of(kind: Any, folder: Any, rollout: EnvRollout, **changes: Any) -> Any:
    extra = {name: changes.pop(name) for name in ("snr", "eval_dataset") if name in changes}
    return kind(
        model=str(jobs.EMBEDDED),
        reward_funcs=env_return,
        rollout_func=rollout,
        args=jobs.arguments(folder, per_device_train_batch_size=16, **changes),
        train_dataset=rollout.dataset(SEEDS),
        processing_class=jobs.tokenizer(),
        **extra,
    )


@pytest.fixture(scope="module")
def batch(tmp_path_factory) -> tuple[Any, list[Any], dict[str, list[Any]]]:
    """Episodes of four tasks with plain TRL: the rollout_func works without our trainer."""
    rollout = played()
    trainer = trainer_of(GRPOTrainer, tmp_path_factory.mktemp("env"), rollout)
    prompts = [one["prompt"] for one in rollout.dataset(SEEDS) for _ in range(jobs.GROUP)]
    trainer.model.train()
    return trainer, prompts, rollout(prompts, trainer)


def test_a_row_is_the_whole_episode_and_its_mask_the_sampled_tokens(batch):
    _, _, rows = batch
    lengths = {len(one.turns) for one in rows["ragen2_trajectory"]}
    assert max(lengths) > 1
    for i, trajectory in enumerate(rows["ragen2_trajectory"]):
        last = trajectory.turns[-1]
        whole = [*last.prompt_ids_T.tolist(), *last.completion.ids_T.tolist()]
        assert rows["prompt_ids"][i] + rows["completion_ids"][i] == whole
        sampled = [t for turn in trajectory.turns for t in turn.completion.ids_T.tolist()]
        mask = rows["env_mask"][i]
        assert [t for t, m in zip(rows["completion_ids"][i], mask, strict=True) if m] == sampled
        assert rows["ragen2_return"][i] == trajectory.reward


def test_trl_finds_the_log_probs_that_tokens_were_sampled_with(batch):
    trainer, _, rows = batch
    for i in range(0, 16, 5):
        prompt, ids = rows["prompt_ids"][i], rows["completion_ids"][i]
        tokens = torch.tensor([prompt + ids])
        with torch.no_grad():
            found, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, tokens, torch.ones_like(tokens), len(ids)
            )
        own = np.array(rows["env_mask"][i]) == 1
        gap = np.abs(found[0].numpy() - np.array(rows["logprobs"][i]))[own]
        assert gap.max() < 1e-4


def test_members_share_the_task_and_differ_in_luck(batch):
    _, prompts, rows = batch
    seeds = [one.prompt.seed for one in rows["ragen2_trajectory"]]
    assert seeds == [seed for seed in SEEDS for _ in range(jobs.GROUP)]
    assert [one.luck for one in rows["ragen2_trajectory"]] == [0, 1, 2, 3] * 4
    for prompt, one in zip(prompts, rows["ragen2_trajectory"], strict=True):
        shown = [(message["role"], message["content"]) for message in prompt]
        assert shown == [(message.role, message.content) for message in one.prompt.messages]


def test_the_same_call_gives_the_same_episodes_and_the_next_others(batch):
    trainer, prompts, rows = batch
    again, more = played(), []
    for _ in range(2):
        more.append(again(prompts, trainer)["completion_ids"])
    assert more[0] == rows["completion_ids"]
    assert more[1] != more[0]
    half = played()(prompts[:8], trainer)["completion_ids"]
    assert half == rows["completion_ids"][:8]


def test_the_network_comes_back_in_its_mode(batch):
    trainer, prompts, _ = batch
    for mode in (True, False):
        trainer.model.train(mode)
        played()(prompts[:4], trainer)
        assert trainer.model.training is mode
    trainer.model.train()


def test_a_run_with_evaluation_is_recorded_with_success(tmp_path):
    rollout = played()
    trainer = trainer_of(
        SNRGRPOTrainer,
        tmp_path,
        rollout,
        snr=SNRSettings(),
        eval_dataset=rollout.dataset(range(8)),
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        num_generations_eval=1,
        per_device_eval_batch_size=8,
        learning_rate=1e-3,
    )
    trainer.train()
    before, first = RunDirectory.open(tmp_path / "out" / "ragen2").records()
    assert before.step == 0
    for record in (before, first):
        success = record.metrics["eval/success"]
        assert record.metrics["eval/success_low"] <= success <= record.metrics["eval/success_high"]
        assert success in {k / 8 for k in range(9)}
    assert sorted(first.seeds) == list(SEEDS)
    assert first.metrics["rollout/env_errors"] == 0.0
    assert {"rollout/success", "filter/difficulty"} <= set(first.metrics)
    lines = (tmp_path / "out/ragen2/rollouts/step_000001.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["env"] for row in rows} == {"FrozenLake"}
    assert np.mean([row["solved"] for row in rows]) == first.metrics["rollout/success"]
    assert all(value is not None for row in rows for value in row["turns"][0]["logprobs"])


def test_triage_plays_flat_prompts_again_in_our_environment(tmp_path, monkeypatch):
    """Rollouts alone cannot tell a task that is too hard from rewards that see nothing."""
    played_again = []
    contrasts = EnvReplayer.contrasts

    def counted(self: EnvReplayer, group: Any, plays: int) -> Any:
        played_again.append((self.env.kind, group.prompt.seed, plays))
        return contrasts(self, group, plays)

    monkeypatch.setattr(EnvReplayer, "contrasts", counted)
    snr = SNRSettings(diagnostics=(Triage(replays=3),))
    trainer_of(SNRGRPOTrainer, tmp_path, played(), snr=snr).train()
    (record,) = RunDirectory.open(tmp_path / "out" / "ragen2").records()
    flat = [s for s, score in zip(record.seeds, record.scores, strict=True) if score == 0.0]
    assert flat
    assert played_again == [("FrozenLake", seed, 3) for seed in flat]
    assert record.metrics["triage/replay_errors"] == 0.0


def test_a_row_of_trl_cannot_forget(tmp_path):
    with pytest.raises(ConfigError, match=r"rollout.history is 'window'.*use full"):
        EnvRollout(make("FrozenLake"), Rollout(history="window"))


def test_temperatures_must_agree(batch):
    trainer, prompts, _ = batch
    with pytest.raises(ConfigError, match=r"rollout.temperature is 0.5, but TRL trains at temp"):
        EnvRollout(make("FrozenLake"), Rollout(temperature=0.5))(prompts, trainer)


def test_a_prompt_that_names_no_task_is_refused(batch):
    trainer, _, _ = batch
    with pytest.raises(ConfigError, match=r"make train_dataset and eval_dataset with EnvRollout"):
        played()([jobs.prompt(1)], trainer)


def test_split_weights_are_refused_by_name(batch):
    trainer, prompts, _ = batch
    trainer.is_fsdp_enabled = True
    try:
        with pytest.raises(ConfigError, match="EnvRollout needs whole weights on a process"):
            played()(prompts, trainer)
    finally:
        trainer.is_fsdp_enabled = False
