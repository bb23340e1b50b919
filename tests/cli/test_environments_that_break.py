"""Plug-ins that end the program, hang or return nonsense: never a success, a hang or a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, settings
from ragen2.backends.settings import EMBEDDED

Program = Callable[..., Done]

ENV = '''"""A bandit that breaks."""
import time
from typing import Literal
from ragen2.envs import Bandit, Episode, Step
from ragen2.envs.bandit import BanditEpisode

class Mine(Bandit):
    """Breaks."""
    kind: Literal["Mine"] = "Mine"
    max_turns: int = 2
    max_actions: int = 9
    def start(self, seed, luck):
        episode = super().start(seed, luck)
        episode.__class__ = MyEpisode
        episode.breaks = {when}
        return episode

class MyEpisode(BanditEpisode):
    """Breaks."""
    def step(self, action):
        if self.breaks:
            {step}
        return super().step(action)
'''
SMALL = settings(
    "plugins=['mine.py']",
    "env.kind=Mine",
    "env.step_timeout=1",
    "steps=1",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=0",
)
STEPS = {
    "raise SystemExit(0)": "SystemExit: 0",
    "import sys; sys.exit()": "SystemExit",
    "while True: pass": "TimeoutError: it took more than 1 seconds",
    "time.sleep(10**6)": "TimeoutError: it took more than 1 seconds",
    "return None": "returned None; it must be a Step",
    "return Step('much', done=True)": "gave the reward 'much'; it must be a finite number",
    "return Step(float('nan'), done=True)": "gave the reward nan; it must be a finite number",
    "return Step(1.0, done='yes')": "gave done 'yes'; it must be True or False",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_breaks_ends_its_episode(program: Program, tmp_path: Path, step: str) -> None:
    in_training = "seed >= 100_000 and luck == 0"
    (tmp_path / "mine.py").write_text(ENV.replace("{step}", step).replace("{when}", in_training))
    done = program("train", *SMALL, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines = (tmp_path / "run" / "rollouts" / "step_000001.jsonl").read_text().splitlines()
    played = [json.loads(line) for line in lines]
    assert any(one["stop"] != "env_error" for one in played)
    acted = [one for one in played if one["luck"] == 0 and one["turns"][0]["actions"]]
    assert acted, "the model gave no action to break on"
    assert {one["stop"] for one in acted} == {"env_error"}
    assert all(one["error"].rstrip().endswith(STEPS[step]) for one in acted)
    assert STEPS[step] in done.stderr


@pytest.mark.parametrize("verb", ["train", "eval", "preflight"])
def test_an_environment_that_breaks_every_episode_is_no_success(
    program: Program, tmp_path: Path, verb: str
) -> None:
    text = ENV.replace("{step}", "raise SystemExit(0)").replace("{when}", "True")
    (tmp_path / "mine.py").write_text(text)
    model = (EMBEDDED,) if verb == "eval" else ()
    done = program(verb, *model, *SMALL, *settings("evaluation.tasks=1"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("ragen2: all ")
    assert line.endswith(": SystemExit: 0")


@pytest.mark.parametrize("verb", ["train", "eval", "preflight"])
@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("raise SystemExit(0)", "start of task N raised SystemExit: 0 (mine.py, line 13)"),
        ("time.sleep(10**6)", "start of task N raised TimeoutError: it took more than 1 seconds "
         "(mine.py, line 13); mend it, or raise env.step_timeout"),
        ("return 7", "start of task N returned a value of type int; it must be an Episode"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_start_ends_the_program(
    program: Program, tmp_path: Path, verb: str, start: str, told: str
) -> None:
    text = ENV.replace("episode = super()", f"{start}\n        episode = super()")
    (tmp_path / "mine.py").write_text(text.replace("{step}", "pass").replace("{when}", "False"))
    model = (EMBEDDED,) if verb == "eval" else ()
    done = program(verb, *model, *SMALL)
    assert done.returncode == 2
    *phases, line = done.stderr.splitlines()
    assert len(phases) <= 1  # preflight says what it is doing
    before, _, after = told.partition(" N ")
    assert line.startswith(f"ragen2: Mine: {before} ")
    assert line.endswith(f" {after}")


@pytest.mark.parametrize(
    "shown", ["7", "None", "b'x'", "[][0]", "(_ for _ in ()).throw(SystemExit)"]
)
def test_an_observation_that_is_no_text_is_one_line(
    program: Program, tmp_path: Path, shown: str
) -> None:
    text = ENV.replace("{step}", "pass").replace("{when}", "False")
    text += f"    @property\n    def observation(self):\n        return {shown}\n"
    (tmp_path / "mine.py").write_text(text)
    done = program("train", *SMALL)
    (line,) = done.stderr.splitlines()
    assert line.startswith("ragen2: Mine: observation of task ")
    assert done.returncode == 2


KEPT = {
    "raise SystemExit(0)": "the program was ended from inside by SystemExit: 0 (mine.py, line 8)",
    "raise ValueError('boo')": "a plug-in raised ValueError: boo (mine.py, line 8); mend it",
    "return None": "filter mine: keep returned None; it must be an array of 2 truth values, one for each "
    "prompt",
    "return scores_P": "filter mine: keep returned array([",
    "return scores_P[:1] > 0": "filter mine: keep returned array([",
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_filter_that_breaks_is_one_line(program: Program, tmp_path: Path, kept: str) -> None:
    (tmp_path / "mine.py").write_text(
        '"""A filter that breaks."""\n'
        "from typing import Literal\n"
        "from ragen2.filtering import Filter\n"
        "class Mine(Filter):\n"
        '    """Breaks."""\n'
        "    kind: Literal['mine'] = 'mine'\n"
        "    def keep(self, scores_P):\n"
        f"        {kept}\n"
    )
    done = program("train", *SMALL, *settings("env.kind=Bandit", "filter.kind=mine"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"ragen2: {KEPT[kept]}")


def test_a_module_that_breaks_is_one_line_too(program: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        '"""A filter that breaks."""\n'
        "from typing import Literal\n"
        "from ragen2.filtering import Filter\n"
        "class Mine(Filter):\n"
        '    """Breaks."""\n'
        "    kind: Literal['mine'] = 'mine'\n"
        "    def keep(self, scores_P):\n"
        "        raise ValueError('boo')\n"
    )
    module = settings("plugins=['mine']", "env.kind=Bandit", "filter.kind=mine")
    done = program("train", *SMALL, *module)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "ragen2: a plug-in raised ValueError: boo (mine.py, line 8); mend it"
    )


def test_a_task_that_begins_by_luck_is_one_line(program: Program, tmp_path: Path) -> None:
    text = ENV.replace("{step}", "pass").replace("{when}", "luck")
    text += "    @property\n    def observation(self):\n        return f'luck {self.breaks}'\n"
    (tmp_path / "mine.py").write_text(text)
    done = program("train", *SMALL)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        " does not begin the same for all of its group; the first observation must depend on the seed "
        "alone, never on luck"
    )


def test_an_image_that_is_none_is_one_line(program: Program, tmp_path: Path) -> None:
    text = ENV.replace("{step}", "pass").replace("{when}", "False")
    text += "    @property\n    def shown_image(self):\n        import numpy\n        return numpy.zeros(3)\n"
    (tmp_path / "mine.py").write_text(text)
    done = program("train", *SMALL)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.endswith("is (3,) of float64; it must be height x width x 3 bytes")


def test_an_environment_without_a_word_about_itself_is_listed(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(ENV.replace('    """Breaks."""\n', ""))
    done = program("envs", "list", "--plugin", "mine.py")
    assert done.returncode == 0, done.stderr
    assert "Mine" in done.stdout
