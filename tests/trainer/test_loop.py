"""The whole loop, with a policy of one number and a learner of a few lines."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from ragen2.algorithms import DrGRPO
from ragen2.backends.learner.optimiser import TensorGradient
from ragen2.backends.scripted import ScriptedPolicy
from ragen2.config import RunConfig, dump_config
from ragen2.diagnostics import Collapse, Ema, Reward, Surface
from ragen2.envs import Env, FrozenLake, Step
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.frozen_lake import LakeEpisode
from ragen2.errors import EnvError
from ragen2.filtering import KeepAll, Nonzero, Soft, TopP, TrajectoryControl
from ragen2.rollout import Rollout
from ragen2.runs.checkpoints import checkpoint_folder, list_checkpoints
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.seeding import stream
from ragen2.trainer.batch import SEEDS_PER_RUN, training_tasks
from ragen2.trainer.loop import train
from ragen2.trainer.state import OfferedTasks, TrainerState, read_state
from ragen2.trainer.step_ledger import next_emas
from ragen2.types import Update

GOLDEN = Path(__file__).with_name("golden_steps.jsonl")
CELLS = re.compile(r"You \((\d+),(\d+)\) Goal \((\d+),(\d+)\)")


class Walker:
    """Walks toward the goal with chance sigmoid(weight), else anywhere; learns by REINFORCE."""

    def __init__(self, lr: float = 3.0) -> None:
        self.weight = -1.0
        self.lr = lr
        self.scales: list[float] = []
        self.policy = ScriptedPolicy(self.reply, self.logp)

    @property
    def chance(self) -> float:
        return 1 / (1 + math.exp(-self.weight))

    def reply(self, prompt: str, rng: np.random.Generator) -> str:
        row, column, goal_row, goal_column = map(int, CELLS.findall(prompt)[-1])
        if rng.random() < self.chance:
            word = "toward"
            across = "Right" if goal_column > column else "Left"
            down = "Down" if goal_row > row else "Up"
            move = down if goal_row != row else across
        else:
            word, move = "wander", str(rng.choice(["Up", "Down", "Left", "Right"]))
        return f"{word} from ({row},{column})</think><answer>{move}</answer>"

    @staticmethod
    def logp(prompt: str, text: str) -> float:
        """Likelier where the text names the cell the prompt names."""
        cell = text.rsplit(" from ", maxsplit=1)[-1]
        return -0.5 if f"You {cell}" in prompt else -2.0

    def update(self, samples, objective, *, scale: float) -> Update:
        gradient, tokens = 0.0, 0
        for sample in samples:
            written = self.policy.tokenizer.decode(sample.ids_T[sample.loss_mask_T].tolist())
            advantage = float(sample.advantages_T[sample.loss_mask_T][0])
            up, down = written.count("toward"), written.count("wander")
            gradient += advantage * (up * (1 - self.chance) - down * self.chance)
            tokens += int(sample.loss_mask_T.sum())
        self.weight += self.lr * scale * gradient / len(samples)
        self.scales.append(scale)
        return Update({"loss": -gradient, "weight": self.weight}, tokens, 1)

    def save(self, folder: Path) -> None:
        (folder / "weight.json").write_text(json.dumps(self.weight))

    def load(self, folder: Path) -> None:
        self.weight = json.loads((folder / "weight.json").read_text())

    def describe(self):
        return {"weights": "1"}


class Listener:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.phases: list[str] = []

    def record(self, record: StepRecord) -> None:
        self.records.append(record)

    def phase(self, name: str) -> None:
        self.phases.append(name)


def config(**changes) -> RunConfig:
    settings = {
        "steps": 4,
        "env": FrozenLake(slip=0.0),
        "rollout": Rollout(prompts=4, group_size=4, max_tokens=64),
        "diagnostics": (Surface(), Reward(), Collapse(resamples=100)),
        "evaluation": {"every": 3, "tasks": 16, "probe_prompts": 4, "probe_traces": 3},
        "checkpoints": {"every": 2, "keep": 2},
    }
    return RunConfig.model_validate(settings | changes)


@pytest.fixture
def new_run(tmp_path) -> Callable[[RunConfig], RunDirectory]:
    def make(configuration: RunConfig, name: str = "run") -> RunDirectory:
        return RunDirectory.create(tmp_path / name, dump_config(configuration))

    return make


def trained(configuration: RunConfig, run: RunDirectory, walker: Walker | None = None, **more):
    walker = walker or Walker()
    state = train(configuration, walker.policy, walker, run, **more)
    return walker, state


def comparable(records: list[StepRecord]) -> list[dict]:
    return [record.model_dump(exclude={"seconds"}) for record in records]


# --- what a run does -------------------------------------------------------------------------------


def test_reinforcement_teaches_the_walker(new_run):
    configuration = config(
        steps=12,
        rollout=Rollout(prompts=8, group_size=8, max_tokens=64),
        evaluation={"every": 12, "tasks": 128},
    )
    run = new_run(configuration)
    walker, state = trained(configuration, run)
    records = run.records()
    assert state.step == 12
    assert walker.chance > 0.6
    assert records[-1].metrics["eval/success"] > records[0].metrics["eval/success"] + 0.2


def test_there_is_a_record_for_every_step_and_one_before_training(new_run):
    run = new_run(config())
    trained(config(), run)
    assert [record.step for record in run.records()] == [0, 1, 2, 3, 4]


def test_held_out_tasks_are_played_at_both_ends_and_when_due(new_run):
    run = new_run(config())
    trained(config(), run)
    played = [r.step for r in run.records() if "eval/success" in r.metrics]
    assert played == [0, 3, 4]


def test_the_record_before_training_holds_the_evaluation_only(new_run):
    run = new_run(config())
    trained(config(), run)
    first = run.records()[0]
    families = {name.rpartition("/")[0] for name in first.metrics}
    assert families == {"eval", "collapse/probe"}
    assert (first.kept, first.seeds, first.regime) == ([], [], None)
    assert list(first.seconds) == ["evaluate"]


def test_a_step_records_every_metric_by_its_name(new_run):
    run = new_run(config())
    trained(config(), run)
    found = set(run.records()[1].metrics)
    by_loop = {name for name in found if name.startswith(("filter/", "update/"))}
    by_difficulty = {name for name in by_loop if name.startswith("filter/kept_ratio_")}
    assert by_difficulty <= {
        f"filter/kept_ratio_{name}_solved" for name in ("never", "sometimes", "always")
    }
    assert by_difficulty
    assert by_loop - by_difficulty == {
        "filter/kept",
        "filter/kept_ratio",
        "filter/kept_signal",
        "filter/difficulty",
        "filter/difficulty_gap",
        "filter/variance_beside_success",
        "filter/rounds",
        "filter/coverage",
        "update/loss",
        "update/weight",
        "update/steps",
        "update/tokens",
    }
    families = {name.rpartition("/")[0] for name in found - by_loop}
    assert families == {"rollout", "reward", "collapse/first_turn", "warning"}
    assert {"rollout/success", "reward/mean", "collapse/first_turn/mi_estimate"} <= found


def test_a_record_says_which_prompts_were_kept_and_why(new_run):
    run = new_run(config())
    trained(config(), run)
    for record in run.records()[1:]:
        assert len(record.kept) == len(record.scores) == len(record.seeds) == 4
        assert record.metrics["filter/kept"] == sum(record.kept)
        assert record.metrics["filter/kept_ratio"] == sum(record.kept) / 4
        expected = TopP().keep(np.array(record.scores)).tolist()
        assert record.kept == expected


def test_a_run_that_measures_trajectories_only_has_their_regime(new_run):
    wide = Collapse(scopes=("trajectory",), resamples=100)
    configuration = config(
        rollout=Rollout(prompts=8, group_size=8, max_tokens=64), steps=1, diagnostics=(wide,)
    )
    run = new_run(configuration)
    trained(configuration, run)
    assert run.records()[1].regime == "diverse_grounded"


def test_the_regime_of_a_walker_that_names_its_cell_is_grounded(new_run):
    configuration = config(rollout=Rollout(prompts=8, group_size=8, max_tokens=64), steps=1)
    run = new_run(configuration)
    trained(configuration, run)
    record = run.records()[1]
    assert record.regime == "diverse_grounded"
    assert record.metrics["collapse/first_turn/retrieval_above_chance"] > 0.3


def test_phases_are_timed_and_announced_in_order(new_run):
    listener, run = Listener(), new_run(config())
    trained(config(), run, sinks=[listener])
    each = ["rollout", "score", "diagnose", "filter", "update"]
    assert listener.phases == ["evaluate", *each, *each, *each, "evaluate", *each, "evaluate"]
    seconds = run.records()[3].seconds
    assert list(seconds) == [*each, "evaluate", "step"]
    assert seconds["step"] == pytest.approx(sum(v for k, v in seconds.items() if k != "step"))


def test_sinks_see_what_is_on_disk(new_run):
    listener, run = Listener(), new_run(config())
    trained(config(), run, sinks=[listener])
    assert listener.records == run.records()


def test_rollouts_are_saved_as_often_as_asked_one_trajectory_a_line(new_run):
    configuration = config(checkpoints={"every": 4, "keep": 1, "rollouts_every": 2})
    run = new_run(configuration)
    trained(configuration, run)
    files = sorted((run.path / "rollouts").iterdir())
    assert [file.name for file in files] == ["step_000002.jsonl", "step_000004.jsonl"]
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert len(lines) == 16
    assert [line["seed"] for line in lines[::4]] == run.records()[2].seeds


def test_checkpoints_are_left_when_due_and_at_the_end(new_run):
    configuration = config(steps=5)
    run = new_run(configuration)
    walker, state = trained(configuration, run)
    assert [folder.name for folder in list_checkpoints(run.path)] == ["step_000004", "step_000005"]
    assert read_state(checkpoint_folder(run.path, 5)) == state
    saved = json.loads((checkpoint_folder(run.path, 5) / "weight.json").read_text())
    assert saved == walker.weight


# --- tasks -----------------------------------------------------------------------------------------


def test_training_tasks_are_never_held_out_and_never_repeat_within_a_run():
    seeds = [group[0].seed for step in range(1, 50) for group in training_tasks(config(), step)]
    assert min(seeds) >= HELD_OUT_SEEDS
    assert len(set(seeds)) == len(seeds)


def test_members_of_a_group_share_the_task_and_differ_in_luck():
    for group in training_tasks(config(), 3):
        assert len({task.seed for task in group}) == 1
        assert [task.luck for task in group] == [0, 1, 2, 3]


def test_runs_of_different_seeds_do_not_share_tasks():
    one, other = (
        {group[0].seed for step in range(1, 200) for group in training_tasks(config(seed=s), step)}
        for s in (0, 1)
    )
    assert not one & other
    assert SEEDS_PER_RUN >= 200 * 4


# --- steps without an update -----------------------------------------------------------------------


def silent(prompt: str, rng: np.random.Generator) -> str:
    return "the same</think><answer>Fly</answer>"


def test_a_step_whose_filter_keeps_nothing_is_recorded_with_its_reason_and_skipped(new_run):
    run, walker = new_run(config()), Walker()
    walker.policy = ScriptedPolicy(silent)
    _, state = trained(config(), run, walker)
    assert state.step == 4
    assert walker.scales == []
    for record in run.records()[1:]:
        assert record.note.startswith("no update: all 4 prompts have zero reward_variance")
        assert record.kept == [False] * 4
        assert record.metrics["filter/kept"] == 0.0
        assert record.metrics["update/steps"] == record.metrics["update/tokens"] == 0.0
        assert "update/loss" not in record.metrics


def test_a_step_with_an_update_has_no_note(new_run):
    run = new_run(config())
    trained(config(), run)
    assert [record.note for record in run.records()] == [""] * 5


def test_a_batch_without_any_sampled_token_is_skipped_with_its_reason(new_run):
    configuration = config(filter=KeepAll(), steps=1)
    run, walker = new_run(configuration), Walker()
    walker.policy.max_context = 10
    trained(configuration, run, walker)
    record = run.records()[1]
    assert record.note == "no update: no kept prompt has a sampled token"
    assert record.metrics["update/steps"] == 0.0


class BrokenLake(FrozenLake):
    """Pays NaN on every task that is trained on."""

    kind: Literal["BrokenLake"] = "BrokenLake"

    def start(self, seed: int, luck: int) -> LakeEpisode:
        episode = super().start(seed, luck)
        if seed < HELD_OUT_SEEDS:
            return episode
        return BrokenEpisode(self, episode.lake, stream(seed, luck))


class BrokenEpisode(LakeEpisode):
    """One of those plays."""

    def step(self, action: str) -> Step:
        return dataclasses.replace(super().step(action), reward=math.nan)


Env.registry.pop("BrokenLake")  # known to this file only


def test_a_reward_that_is_no_number_stops_the_run_and_names_the_task(new_run):
    configuration = config(env=BrokenLake())
    with pytest.raises(
        EnvError, match=r"^all 16 episodes of BrokenLake .* on task 100000: .* gave the reward nan"
    ):
        trained(configuration, new_run(configuration))


# --- what the learner is given ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss_scale", "scale"), [("none", lambda r: 1.0), ("linear", lambda r: r), ("sqrt", math.sqrt)]
)
def test_the_loss_is_scaled_by_the_kept_ratio_as_asked(new_run, loss_scale, scale):
    configuration = config(loss_scale=loss_scale, filter=TopP(mass=0.5))
    run = new_run(configuration)
    walker, _ = trained(configuration, run)
    ratios = [r.metrics["filter/kept_ratio"] for r in run.records()[1:]]
    assert walker.scales == pytest.approx([scale(ratio) for ratio in ratios if ratio])
    assert min(ratios) < 1.0


def test_the_learner_trains_on_kept_prompts_only(new_run):
    class Noting(Walker):
        def update(self, samples, objective, *, scale):
            counts.append(len(samples))
            return super().update(samples, objective, scale=scale)

    counts: list[int] = []
    run = new_run(config())
    trained(config(), run, Noting())
    kept = [int(record.metrics["filter/kept"]) for record in run.records()[1:]]
    assert counts == [4 * number for number in kept if number]


def test_a_number_that_is_not_finite_is_absent_with_its_reason_and_the_record_can_be_read(new_run):
    class Diverging(Walker):
        def update(self, samples, objective, *, scale):
            return Update({"loss": math.nan, "grad_norm": math.inf, "lr": 0.1}, 1, 1)

    run = new_run(config())
    trained(config(), run, Diverging())
    record = run.records()[1]
    assert record.metrics["update/lr"] == 0.1
    assert record.absent == {
        "update/loss": "not finite: nan",
        "update/grad_norm": "not finite: inf",
    }


def test_soft_weights_reach_the_samples(new_run):
    configuration = config(filter=Soft(), algorithm=DrGRPO(), steps=1)
    run, learner = new_run(configuration), Keeping()
    trained(configuration, run, learner)
    record = run.records()[1]
    scores = np.array(record.scores)
    expected = []
    for score, group in zip(scores, played_groups(run, 1), strict=True):
        centred = group - group.mean()
        expected += [score / scores.max() * a for a in centred] if score > 0 else []
    assert learner.advantages == pytest.approx(expected)


def test_members_that_the_control_leaves_out_are_not_trained_on(new_run):
    configuration = config(filter=TrajectoryControl(share=0.5), algorithm=DrGRPO(), steps=1)
    run, learner = new_run(configuration), Keeping()
    trained(configuration, run, learner)
    assert run.records()[1].kept == [True] * 4
    expected = []
    for group in played_groups(run, 1):
        (mask,) = TrajectoryControl(share=0.5).members([group])
        expected += (group - group.mean())[mask].tolist()
    assert len(learner.advantages) == 8
    assert learner.advantages == pytest.approx(expected)


class Keeping(Walker):
    """Keeps the advantage of each sample of the last update."""

    def update(self, samples, objective, *, scale):
        self.advantages = [float(s.advantages_T[s.loss_mask_T][0]) for s in samples]
        return super().update(samples, objective, scale=scale)


def played_groups(run: RunDirectory, step: int) -> list[np.ndarray]:
    """Returns of the members of each group of a step, as saved."""
    lines = (run.path / "rollouts" / f"step_{step:06d}.jsonl").read_text().splitlines()
    found: dict[int, list[float]] = {}
    for line in map(json.loads, lines):
        found.setdefault(line["seed"], []).append(line["reward"])
    return [np.array(rewards) for rewards in found.values()]


# --- resampling ------------------------------------------------------------------------------------

FEW = Rollout(prompts=4, group_size=2, max_tokens=64, resample_rounds=30)


def test_rounds_are_played_until_enough_groups_are_live(new_run):
    configuration = config(filter=Nonzero(), rollout=FEW)
    run = new_run(configuration)
    trained(configuration, run, Walker(lr=0.0))
    records = run.records()[1:]
    assert max(record.metrics["filter/rounds"] for record in records) > 1.0
    for record in records:
        assert record.metrics["filter/kept"] == 4.0
        assert len(record.kept) == len(record.seeds) == 4 * record.metrics["filter/rounds"]
        assert record.metrics["update/steps"] == 1.0
        assert record.metrics["rollout/turns"] > 0.0
    seeds = [seed for record in records for seed in record.seeds]
    assert len(set(seeds)) == len(seeds)


def test_everything_that_was_played_is_saved_and_diagnosed(new_run):
    configuration = config(filter=Nonzero(), rollout=FEW, steps=1)
    run = new_run(configuration)
    trained(configuration, run)
    record = run.records()[1]
    groups = played_groups(run, 1)
    assert len(groups) == len(record.seeds)
    dead = np.mean([np.ptp(group) == 0.0 for group in groups])
    assert record.metrics["reward/dead_ratio"] == pytest.approx(float(dead))


def test_when_every_prompt_is_dead_resampling_ends_and_says_so(new_run):
    configuration = config(
        filter=Nonzero(),
        rollout=Rollout(prompts=4, group_size=4, max_tokens=64, resample_rounds=2),
        stops={"empty_steps": 3},
        steps=10,
    )
    run, walker = new_run(configuration), Walker()
    walker.policy = ScriptedPolicy(silent)
    _, state = trained(configuration, run, walker)
    assert state.step == 3
    dead = "no update: every prompt is dead: none of 12 played in 3 rounds passed the filter"
    assert [record.note.startswith(dead) for record in run.records()[1:]] == [True] * 3
    assert run.records()[-1].note.endswith(
        "the run ends here: the filter kept no prompt for 3 steps in a row"
    )
    assert [folder.name for folder in list_checkpoints(run.path)][-1] == "step_000003"


# --- early stops -----------------------------------------------------------------------------------


class Fading(Walker):
    """Plays as ever for some steps, and the same for everyone from then on."""

    def update(self, samples, objective, *, scale):
        found = super().update(samples, objective, scale=scale)
        if len(self.scales) == 2:
            self.policy._reply = silent
        return found


@pytest.mark.parametrize("diagnostics", [(Surface(), Reward()), (Surface(),)])
def test_a_run_whose_reward_variance_collapsed_ends_with_a_checkpoint(new_run, diagnostics):
    configuration = config(
        steps=20,
        filter=KeepAll(),
        diagnostics=diagnostics,
        stops={"variance_steps": 3, "variance_baseline": 2},
        checkpoints={"every": 100, "keep": 2},
    )
    run = new_run(configuration)
    _, state = trained(configuration, run, Fading())
    assert state.step == 5
    assert state.stopped.startswith("reward variance collapsed: 3 steps in a row")
    assert run.records()[-1].note == f"the run ends here: {state.stopped}"
    assert [folder.name for folder in list_checkpoints(run.path)] == ["step_000005"]
    assert read_state(checkpoint_folder(run.path, 5)) == state


def test_a_run_that_hardly_ever_succeeds_ends_with_a_checkpoint(new_run):
    configuration = config(
        steps=20,
        filter=KeepAll(),
        evaluation={"every": 2, "tasks": 4, "probe_prompts": 0},
        stops={"success_evaluations": 2, "variance_steps": 0},
        checkpoints={"every": 100, "keep": 2},
    )
    run, walker = new_run(configuration), Walker()
    walker.policy = ScriptedPolicy(silent)
    _, state = trained(configuration, run, walker)
    assert state.step == 4
    assert run.records()[-1].note.endswith("held-out success below 0.01 at 2 evaluations in a row")
    assert [folder.name for folder in list_checkpoints(run.path)] == ["step_000004"]


def test_stops_that_are_off_let_a_run_go_on(new_run):
    configuration = config(
        steps=8, stops={"variance_steps": 0, "empty_steps": 0, "success_evaluations": 0}
    )
    run, walker = new_run(configuration), Walker()
    walker.policy = ScriptedPolicy(silent)
    assert trained(configuration, run, walker)[1].step == 8


def test_a_run_that_ended_by_itself_can_be_gone_on_with(new_run):
    configuration = config(steps=8, stops={"empty_steps": 2})
    run, walker = new_run(configuration), Walker()
    walker.policy = ScriptedPolicy(silent)
    _, state = trained(configuration, run, walker)
    assert state.step == 2
    _, state = trained(
        configuration, run, Walker(), state=read_state(list_checkpoints(run.path)[-1])
    )
    assert (state.step, state.stopped) == (8, "")


def test_a_resumed_run_stops_where_the_whole_one_does(new_run):
    configuration = config(
        steps=20,
        filter=KeepAll(),
        stops={"variance_steps": 4, "variance_baseline": 2},
        checkpoints={"every": 4, "keep": 5},
    )
    whole, broken = new_run(configuration, "whole"), new_run(configuration, "broken")
    _, state = trained(configuration, whole, Fading())
    assert state.step == 6
    listener = Listener()
    trained(
        configuration,
        broken,
        Fading(),
        sinks=[listener],
        stop_asked=lambda: listener.records[-1].step == 4,
    )
    folder = checkpoint_folder(broken.path, 4)
    again = Fading()
    again.load(folder)
    again.policy._reply = silent
    trained(configuration, broken, again, state=read_state(folder))
    assert comparable(broken.records()) == comparable(whole.records())


# --- coverage and the probe ------------------------------------------------------------------------


def test_coverage_is_the_share_of_tasks_of_the_last_steps_that_were_updated_on(new_run):
    configuration = config(steps=6, filter=TopP(mass=0.5))
    run = new_run(configuration)
    _, state = trained(configuration, run)
    offered, used = set(), set()
    for record, diet in zip(run.records()[1:], state.recent, strict=True):
        assert diet.kept == tuple(record.kept)
        offered.update(diet.tasks)
        used.update(task for task, kept in zip(diet.tasks, diet.kept, strict=True) if kept)
        assert record.metrics["filter/coverage"] == pytest.approx(len(used) / len(offered))


def test_coverage_forgets_steps_that_are_long_past(new_run):
    configuration = config(steps=1)
    old = OfferedTasks(tasks=tuple(range(100)), kept=(False,) * 100)
    run = new_run(configuration)
    before = TrainerState(step=0, recent=(old, *[OfferedTasks(tasks=(), kept=())] * 19))
    trained(configuration, run, state=before)
    record = run.records()[-1]
    assert record.metrics["filter/coverage"] == record.metrics["filter/kept_ratio"]


def test_equal_prompts_are_one_task_whatever_their_seeds(new_run):
    """A lake of 2 x 2 without holes has few boards: seeds differ, prompts come again."""
    configuration = config(env=FrozenLake(slip=0.0, size=2, hole_ratio=0.0), steps=4)
    run = new_run(configuration)
    _, state = trained(configuration, run)
    tasks = [task for diet in state.recent for task in diet.tasks]
    seeds = [seed for record in run.records() for seed in record.seeds]
    assert len(set(seeds)) == len(seeds) == len(tasks)
    assert len(set(tasks)) <= 12


class Graded(Walker):
    """A gradient of two numbers: summed advantage, and tokens."""

    def gradient(self, samples, objective):
        advantages = sum(float(s.advantages_T.sum()) for s in samples)
        tokens = sum(int(s.loss_mask_T.sum()) for s in samples)
        return TensorGradient(torch.tensor([advantages, float(tokens)]))


def test_the_probe_runs_when_due_and_changes_nothing_else(new_run):
    probed = config(probe={"every": 3, "buckets": 2})
    run, plain = new_run(probed, "probed"), new_run(config(), "plain")
    walker, _ = trained(probed, run, Graded())
    other, _ = trained(config(), plain)
    assert walker.weight == other.weight
    steps = [r.step for r in run.records() if any(n.startswith("probe/") for n in r.metrics)]
    assert steps == [3]
    assert "probe" in run.records()[3].seconds
    found = run.records()[3].metrics
    assert {"probe/bucket_1/task_norm", "probe/bucket_2/task_norm", "probe/all/task_norm"} <= set(
        found
    )
    for with_probe, without in zip(run.records(), plain.records(), strict=True):
        kept = {n: v for n, v in with_probe.metrics.items() if not n.startswith("probe/")}
        assert kept == without.metrics


# --- diagnostics -----------------------------------------------------------------------------------


def test_reasoning_that_cannot_be_scored_is_absent_with_its_reason(new_run):
    configuration = config(rollout=Rollout(prompts=4, group_size=4, thinking=False))
    run = new_run(configuration)
    trained(configuration, run)
    for record in run.records()[1:]:
        reason = "0 reasoning traces to score, 2 are needed"
        assert record.absent["collapse/first_turn"] == reason
        probed = "eval/success" in record.metrics
        assert record.absent.get("collapse/probe") == (reason if probed else None)
        assert record.regime is None
        assert not [name for name in record.metrics if name.startswith("collapse/")]


def test_a_diagnostic_measures_only_when_due_and_the_regime_stays(new_run):
    configuration = config(diagnostics=(Surface(), Collapse(every=3, resamples=100)))
    run = new_run(configuration)
    trained(configuration, run)
    records = run.records()[1:]
    first_turn = "collapse/first_turn/"
    measured = [any(n.startswith(first_turn) for n in record.metrics) for record in records]
    assert measured == [True, False, True, False]
    assert all(record.absent == {} for record in records)
    assert records[1].regime == records[0].regime
    assert records[3].regime == records[2].regime


def test_without_a_diagnostic_that_needs_them_nothing_is_scored(new_run):
    class Deaf(ScriptedPolicy):
        def score(self, pairs, temperature=1.0):
            raise AssertionError("nobody asked for scores")

    configuration = config(
        diagnostics=(Surface(),), evaluation={"every": 3, "tasks": 16, "probe_prompts": 0}
    )
    run, walker = new_run(configuration), Walker()
    walker.policy = Deaf(walker.reply)
    trained(configuration, run, walker)
    assert all(record.regime is None and record.absent == {} for record in run.records())


def test_the_moving_average_of_each_scope_is_kept_in_the_state(new_run):
    wide = Collapse(scopes=("first_turn", "turns", "trajectory"), resamples=100)
    configuration = config(diagnostics=(wide,))
    run = new_run(configuration)
    _, state = trained(configuration, run)
    assert {"first_turn", "turn_2", "trajectory", "probe"} <= set(state.ema)
    first = run.records()[1].metrics
    assert first["collapse/first_turn/mi_zscore_ema"] == pytest.approx(
        first["collapse/first_turn/mi_zscore"]
    )


def test_the_moving_average_of_earlier_steps_is_what_z_scores_divide_by(new_run):
    configuration = config(steps=3)
    run = new_run(configuration)
    before = {"first_turn": Ema(1.0, 2.0), "turn_7": Ema(3.0, 4.0)}
    _, state = trained(configuration, run, state=TrainerState(step=2, ema=before))
    prefix, found = "collapse/first_turn/", run.records()[-1].metrics
    for suffix, mi, old in (("", "mi_estimate", 1.0), ("_seq", "mi_seq_estimate", 2.0)):
        value = found[f"{prefix}{mi}"]
        spread_now = value / found[f"{prefix}mi_zscore{suffix}"] - 1e-3
        average = 0.9 * old + 0.1 * spread_now
        assert getattr(state.ema["first_turn"], f"std{suffix}") == pytest.approx(average)
        assert found[f"{prefix}mi_zscore_ema{suffix}"] == pytest.approx(value / (average + 1e-3))
    assert state.ema["turn_7"] == Ema(3.0, 4.0)


def test_averages_are_read_off_the_metrics_scope_by_scope():
    metrics = {
        "collapse/turn_2/marginal_std_ema": 0.5,
        "collapse/turn_2/marginal_std_ema_seq": 6.0,
        "collapse/turn_2/mi_estimate": 9.0,
    }
    before = {"turn_2": Ema(1.0, 1.0), "probe": Ema(2.0, 3.0)}
    assert next_emas(before, metrics) == {"turn_2": Ema(0.5, 6.0), "probe": Ema(2.0, 3.0)}
    assert before["turn_2"] == Ema(1.0, 1.0)


def test_wider_scopes_are_measured_when_they_are_due(new_run):
    wide = Collapse(scopes=("turns", "trajectory"), every=3, resamples=100)
    configuration = config(diagnostics=(Collapse(resamples=100), wide))
    run = new_run(configuration)
    trained(configuration, run)

    def steps(scope: str) -> list[int]:
        return [r.step for r in run.records() if f"collapse/{scope}/mi_estimate" in r.metrics]

    assert steps("first_turn") == [1, 2, 3, 4]
    assert steps("turn_2") == steps("trajectory") == [1, 3]
    assert steps("probe") == [0, 3, 4]


def test_the_probe_set_is_the_same_prompts_every_time(new_run):
    class Frozen(Walker):
        def update(self, samples, objective, *, scale):
            return Update({}, 1, 1)

    run = new_run(config())
    trained(config(), run, Frozen())
    probes = [
        {name: value for name, value in record.metrics.items() if "/probe/" in name}
        for record in run.records()
        if "eval/success" in record.metrics
    ]
    # A policy that does not change is measured alike; only the seed of the resampling is the step's.
    estimates = ("mi_estimate", "retrieval_accuracy", "num_traces", "num_prompts")
    for name in estimates:
        assert len({found[f"collapse/probe/{name}"] for found in probes}) == 1
    assert probes[0]["collapse/probe/num_traces"] == 12.0


# --- stop and resume -------------------------------------------------------------------------------


def test_the_same_configuration_gives_the_same_records(new_run):
    first, second = new_run(config(), "one"), new_run(config(), "two")
    trained(config(), first)
    trained(config(), second)
    assert comparable(first.records()) == comparable(second.records())


def test_the_records_are_the_recorded_ones(new_run):
    """Recorded from this very run; when a change is meant, its steps.jsonl is the new recording."""
    configuration = config(steps=2, evaluation={"every": 1, "tasks": 8})
    run = new_run(configuration)
    trained(configuration, run)
    golden = [StepRecord.model_validate_json(line) for line in GOLDEN.read_text().splitlines()]
    for found, expected in zip(run.records(), golden, strict=True):
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-9, abs=1e-12)
        assert found.scores == pytest.approx(expected.scores)
        for name in ("step", "absent", "regime", "kept", "seeds", "note"):
            assert getattr(found, name) == getattr(expected, name), name


def test_another_seed_gives_other_records(new_run):
    first, second = new_run(config(), "one"), new_run(config(seed=1), "two")
    trained(config(), first)
    trained(config(seed=1), second)
    assert comparable(first.records()) != comparable(second.records())


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_stopped_run_goes_on_to_the_same_records_and_weights(new_run, stop_after):
    every_scope = Collapse(scopes=("first_turn", "turns", "trajectory"), resamples=100)
    configuration = config(diagnostics=(Surface(), Reward(), every_scope))
    whole, broken = new_run(configuration, "whole"), new_run(configuration, "broken")
    walker, state = trained(configuration, whole)

    first = Listener()
    _, stopped = trained(
        configuration,
        broken,
        sinks=[first],
        stop_asked=lambda: first.records[-1].step == stop_after,
    )
    assert stopped.step == stop_after
    folder = checkpoint_folder(broken.path, stop_after)
    again = Walker()
    again.load(folder)
    trained(configuration, broken, again, state=read_state(folder))

    assert comparable(broken.records()) == comparable(whole.records())
    assert again.weight == walker.weight
    assert read_state(checkpoint_folder(broken.path, 4)) == state


def test_a_run_that_lost_steps_since_its_checkpoint_does_them_again(new_run):
    whole, broken = new_run(config(), "whole"), new_run(config(), "broken")
    trained(config(), whole)

    class Failing(Walker):
        def update(self, samples, objective, *, scale):
            if len(self.scales) == 3:
                raise KeyboardInterrupt
            return super().update(samples, objective, scale=scale)

    with pytest.raises(KeyboardInterrupt):
        trained(config(), broken, Failing())
    folder = checkpoint_folder(broken.path, 2)
    broken.rewind(2)
    again = Walker()
    again.load(folder)
    trained(config(), broken, again, state=read_state(folder))
    assert comparable(broken.records()) == comparable(whole.records())


def test_a_finished_run_has_nothing_to_do(new_run):
    run = new_run(config())
    _, state = trained(config(), run)
    before = run.steps_file.read_bytes()
    assert trained(config(), run, state=state)[1] == state
    assert run.steps_file.read_bytes() == before


def test_a_resumed_run_goes_on_with_the_regime_and_average_it_had(new_run):
    configuration = config(diagnostics=(Collapse(every=50, resamples=100),))
    run = new_run(configuration)
    ema = {"first_turn": Ema(1.0, 2.0)}
    state = TrainerState(step=2, ema=ema, regime="template_collapse")
    _, after = trained(configuration, run, state=state)
    assert after.ema["first_turn"] == Ema(1.0, 2.0)
    assert (after.step, after.regime) == (4, "template_collapse")
    assert {record.regime for record in run.records()} == {"template_collapse"}
