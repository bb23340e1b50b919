"""Alarms in whole runs: what each response does, what is kept, and that resume changes nothing."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.config import Checkpoints, RunConfig, dump_config
from ragen2.diagnostics import Collapse
from ragen2.envs import FrozenLake
from ragen2.errors import RunError
from ragen2.filtering import KeepAll
from ragen2.rollout import Rollout
from ragen2.runs.checkpoints import checkpoint_folder, checkpoint_step, list_checkpoints
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train
from ragen2.trainer.state import AlarmState, read_state
from ragen2.types import Update

CELLS = re.compile(r"You \(\d+,\d+\) Goal \(\d+,\d+\)")
FADES = 8
"""Updates after which the agent's reasoning no longer depends on its prompt."""


class Fader:
    """Says what it sees; once it has faded, its words are as likely under any prompt."""

    def __init__(self, fades: float = FADES, returns: float = math.inf) -> None:
        self.updates = 0
        self.fades, self.returns = fades, returns
        self.policy = ScriptedPolicy(self.reply, self.logp)

    @staticmethod
    def reply(prompt: str, rng) -> str:
        move = rng.choice(["Up", "Down", "Left", "Right"])
        return f"{CELLS.findall(prompt)[-1]}</think><answer>{move}</answer>"

    def logp(self, prompt: str, text: str) -> float:
        if self.fades <= self.updates < self.returns:
            return -1.0
        return -0.5 if text in prompt else -2.0

    def update(self, samples, objective, *, scale: float) -> Update:
        self.updates += 1
        return Update({"loss": 0.0}, 1, 1)

    def save(self, folder: Path) -> None:
        (folder / "updates.json").write_text(json.dumps(self.updates))

    def load(self, folder: Path) -> None:
        self.updates = json.loads((folder / "updates.json").read_text())

    def describe(self):
        return {}


def config(response: str = "warn", *, steps: int = 16, **warning) -> RunConfig:
    return RunConfig.model_validate(
        {
            "steps": steps,
            "env": FrozenLake(slip=0.0, max_turns=1),
            "rollout": Rollout(prompts=4, group_size=4, max_tokens=64),
            "filter": KeepAll(),
            "diagnostics": (Collapse(resamples=100),),
            "evaluation": {"every": 99, "tasks": 1, "probe_prompts": 0},
            "checkpoints": {"every": 3, "keep": 1, "rollouts_every": 99},
            "warning": {"response": response, "baseline": 3, **warning},
        }
    )


@pytest.fixture
def new_run(tmp_path) -> Callable[..., RunDirectory]:
    def make(configuration: RunConfig, name: str = "run") -> RunDirectory:
        return RunDirectory.create(tmp_path / name, dump_config(configuration))

    return make


def trained(configuration: RunConfig, run: RunDirectory, agent: Fader | None = None, **more):
    agent = agent or Fader()
    return train(configuration, agent.policy, agent, run, **more)


def saved(run: RunDirectory) -> list[int]:
    return [checkpoint_step(folder) for folder in list_checkpoints(run.path)]


def levels(run: RunDirectory) -> list[float]:
    return [record.metrics["warning/level"] for record in run.records()[1:]]


ALARM = FADES + 2
"""The second step that measures the faded agent: step FADES + 1 is the first."""
TOLD = re.compile(r"early warning: grounding is being lost: [a-z ]+ fell to 0 from a baseline of ")


def note_of(run: RunDirectory, step: int) -> str:
    return next(record.note for record in run.records() if record.step == step)


# --- responses -------------------------------------------------------------------------------------


def test_warn_notes_the_alarm_once_and_the_run_goes_on(new_run):
    run = new_run(config())
    assert trained(config(), run).step == 16
    assert levels(run) == [0.0] * (ALARM - 1) + [1.0] * (17 - ALARM)
    noted = [record.step for record in run.records() if record.note]
    assert noted == [ALARM]
    assert TOLD.match(note_of(run, ALARM))
    statistics = [record.metrics["warning/statistic"] for record in run.records()[1:]]
    assert statistics[: ALARM - 2] == [0.0] * (ALARM - 2)
    assert 0.2 < statistics[ALARM - 2] < 1.0 <= statistics[ALARM - 1]


def test_warn_keeps_no_more_checkpoints_than_before(new_run):
    run = new_run(config())
    trained(config(), run)
    assert saved(run) == [16]


def test_a_cleared_alarm_is_noted(new_run):
    run = new_run(config())
    trained(config(), run, Fader(returns=ALARM))
    first = ALARM + 3  # an alarm stays for three measurements
    assert levels(run)[ALARM - 1 : first] == [1.0, 1.0, 1.0, 0.0]
    assert note_of(run, first) == "early warning cleared"


def test_off_measures_no_warning_but_still_the_regime(new_run):
    run = new_run(config("off"))
    trained(config("off"), run)
    assert not [n for r in run.records() for n in r.metrics if n.startswith("warning/")]
    assert all(not record.note for record in run.records())
    assert run.records()[-1].regime == "template_collapse"


def test_checkpoint_keeps_the_last_healthy_state_and_saves_the_one_of_the_alarm(new_run):
    settings = config("checkpoint", steps=ALARM)
    run = new_run(settings)
    trained(settings, run)
    assert saved(run) == [6, ALARM]
    note = note_of(run, ALARM)
    assert TOLD.match(note)
    assert note.endswith("; the last healthy checkpoint, of step 6, is kept")


def test_the_healthy_checkpoint_is_never_pruned(new_run):
    # That of step 9 was taken at the first faded measurement, when a sum was on its way to the alarm.
    settings = config("checkpoint")
    run = new_run(settings)
    state = trained(settings, run)
    assert saved(run) == [6, 16]
    assert state.watch.pinned == (6,)


def test_a_run_that_recovers_keeps_the_pinned_checkpoint_and_marks_new_ones(new_run):
    settings = config("checkpoint", steps=20)
    run = new_run(settings)
    state = trained(settings, run, Fader(returns=ALARM))
    assert saved(run) == [6, 20]
    assert (state.watch.healthy, state.watch.pinned) == (20, (6,))


def test_a_healthy_run_keeps_what_it_would_keep_anyway(new_run):
    settings = config("checkpoint")
    run = new_run(settings)
    trained(settings, run, Fader(fades=math.inf))
    assert saved(run) == [16]


def test_an_alarm_before_the_first_checkpoint_says_that_there_is_no_healthy_one(new_run):
    rare = Checkpoints(every=9, keep=1, rollouts_every=99)
    settings = config("checkpoint", steps=6).model_copy(update={"checkpoints": rare})
    run = new_run(settings)
    trained(settings, run, Fader(fades=3))
    assert note_of(run, 5).endswith("; no checkpoint was taken in good health before it")


def test_a_run_that_was_never_grounded_is_told_so_once_and_goes_on(new_run):
    settings = config("stop")
    run = new_run(settings)
    assert trained(settings, run, Fader(fades=0)).step == 16
    assert levels(run) == [0.0] * 16
    (noted,) = [record.note for record in run.records() if record.note]
    assert noted.startswith(
        "early warning: reasoning was never grounded, so there is nothing to lose"
    )
    assert saved(run) == [16]


def test_stop_ends_the_run_with_a_checkpoint_and_resume_goes_on(new_run):
    settings = config("stop")
    run = new_run(settings)
    state = trained(settings, run)
    assert state.step == ALARM
    assert saved(run) == [6, ALARM]
    again = Fader()
    again.load(checkpoint_folder(run.path, ALARM))
    resumed = trained(settings, run, again, state=read_state(checkpoint_folder(run.path, ALARM)))
    assert resumed.step == 16
    assert levels(run)[ALARM:] == [1.0] * (16 - ALARM)


# --- commands --------------------------------------------------------------------------------------


def python(code: str) -> str:
    return f"{sys.executable} -c '{code}'"


def test_a_command_is_told_the_run_the_step_and_the_reason(new_run, tmp_path):
    names = '"RAGEN2_RUN_DIR", "RAGEN2_STEP", "RAGEN2_REASON"'
    told = tmp_path / "told.json"
    code = f'import json, os; json.dump([os.environ[n] for n in ({names})], open("{told}", "w"))'
    settings = config("command", command=python(code))
    run = new_run(settings)
    assert trained(settings, run).step == 16
    folder, step, reason = json.loads(told.read_text())
    assert (Path(folder), step) == (run.path.resolve(), str(ALARM))
    assert f"early warning: {reason}; its command was run" == note_of(run, ALARM)


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (python('import sys; sys.exit("no mail today")'), "failed with exit code 1: no mail today"),
        (python("raise SystemExit(3)"), "failed with exit code 3"),
        ("/no/such/program", "could not be started: No such file or directory"),
    ],
)
def test_a_command_that_fails_is_told_and_ends_nothing(new_run, command, ending):
    settings = config("command", command=command)
    run = new_run(settings)
    assert trained(settings, run).step == 16
    assert note_of(run, ALARM).endswith(f"; its command {ending}")


def test_a_command_that_hangs_is_ended_with_all_that_it_started(new_run, tmp_path):
    pid = tmp_path / "pid"
    command = f"sh -c 'sleep 60 & echo $! > {pid}; wait'"
    settings = config("command", command=command, timeout=1.0)
    run = new_run(settings)
    assert trained(settings, run).step == 16
    assert note_of(run, ALARM).endswith("; its command was ended after 1 seconds")
    status = Path("/proc") / pid.read_text().strip() / "status"
    assert not status.exists() or "(zombie)" in status.read_text()


# --- resume ----------------------------------------------------------------------------------------


def comparable(run: RunDirectory) -> list[dict]:
    return [record.model_dump(exclude={"seconds"}) for record in run.records()]


class Killed(Exception):
    """Stands for kill -9: nothing after it is done."""


class Killer:
    """A sink that kills the run as soon as a step is recorded."""

    def __init__(self, step: int) -> None:
        self.step = step

    def record(self, record: StepRecord) -> None:
        if record.step == self.step:
            raise Killed

    def phase(self, name: str) -> None:
        """Nothing."""


@pytest.mark.parametrize("killed_at", [4, ALARM - 1, ALARM, ALARM + 1, 14])
def test_a_killed_run_ends_like_the_undisturbed_one(new_run, killed_at):
    settings = config("checkpoint")
    whole, broken = new_run(settings, "whole"), new_run(settings, "broken")
    state = trained(settings, whole)
    with pytest.raises(Killed):
        trained(settings, broken, sinks=[Killer(killed_at)])
    folder = list_checkpoints(broken.path)[-1]
    broken.rewind(checkpoint_step(folder))
    again = Fader()
    again.load(folder)
    assert trained(settings, broken, again, state=read_state(folder)) == state
    assert comparable(broken) == comparable(whole)
    assert saved(broken) == saved(whole)
    assert read_state(checkpoint_folder(broken.path, 16)) == state


def test_a_state_saved_before_there_were_alarms_can_be_resumed(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"step": 3}')
    assert read_state(tmp_path).watch == AlarmState()


def test_the_sums_of_the_rule_before_are_read_and_begin_anew(tmp_path):
    signal = {"num": 9, "baseline": 0.5, "statistic": 3.0, "drop": 1.0}
    warning = {"mi": signal, "retrieval": signal, "floor": 2.0, "is_raised": True, "statistic": 1.2}
    state = {"step": 3, "watch": {"warning": warning, "healthy": 2}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert read_state(tmp_path).watch == AlarmState(healthy=2)


def test_a_state_with_an_unknown_field_is_refused(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"step": 3, "watch": {"mood": 1}}')
    with pytest.raises(RunError, match=r"trainer_state\.json cannot be read"):
        read_state(tmp_path)
