"""``ragen2 envs``: list what there is, play it with typed words, check it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_line import Done, assert_refused, settings
from ragen2.cli.app import app
from ragen2.envs import Env, make
from ragen2.reference import built_in_kinds

Program = Callable[..., Done]

FICKLE = '''"""An environment whose prompt depends on luck."""
from typing import Literal
from ragen2.envs import Bandit
from ragen2.envs.bandit import BanditEpisode

class FickleEpisode(BanditEpisode):
    luck = 0
    @property
    def observation(self):
        return f"{super().observation} {self.luck}"

class Fickle(Bandit):
    """No two members of a group read the same."""
    kind: Literal["Fickle"] = "Fickle"
    def start(self, seed, luck):
        episode = super().start(seed, luck)
        episode.__class__ = FickleEpisode
        episode.luck = luck
        return episode
'''


def plan_of(env: Env, seed: int) -> tuple[str, ...]:
    """What the expert would type."""
    return env.start(seed, 0).expert()


def test_list_shows_every_environment_with_what_it_is(program: Program) -> None:
    done = program("envs", "list")
    assert (done.returncode, done.stderr) == (0, "")
    for member in built_in_kinds(Env):
        assert member.model_fields["kind"].default in done.stdout
    assert "Walk from the start to the goal on ice with holes." in done.stdout


def test_list_fits_80_columns_with_two_lines_each() -> None:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["envs", "list"], catch_exceptions=False)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    own = [member.model_fields["kind"].default for member in built_in_kinds(Env)]
    starts = [number for number, line in enumerate(lines) if line.split(maxsplit=1)[0] in own]
    assert [lines[number + 1][:2] for number in starts] == ["  "] * len(own)
    assert all(not lines[number + 2].startswith(" ") for number in starts[:-1])
    assert "Bandit      1 turn, 1 action, stochastic, text, dense reward 0 to 1" in lines


def test_list_shows_an_environment_of_ones_own(program: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FICKLE)
    done = program("envs", "list", "--plugin", "mine.py")
    assert done.returncode == 0
    assert "No two members of a group read the same." in done.stdout


def test_show_prints_what_a_model_reads(program: Program, tmp_path: Path) -> None:
    done = program("envs", "show", "FrozenLake", "--seed", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert make("FrozenLake").start(3, 0).observation in done.stdout
    assert "Every reply has two parts:" in done.stdout
    assert "style reference; a reply may have 200 tokens; an invalid one costs 0.1" in done.stdout
    taught = program("envs", "show", "FrozenLake", "--model", "ragen2-tiny")
    assert (taught.returncode, taught.stderr) == (0, "")
    assert "style brief" in taught.stdout
    assert re.search(r"^\d+ tokens$", taught.stdout, re.MULTILINE)
    (tmp_path / "mine.toml").write_text('turn = "NOW {observation}"')
    own = program("envs", "show", "FrozenLake", *settings("prompt.template=mine.toml"))
    assert "NOW You (" in own.stdout


def test_show_refuses_what_is_no_style_or_name(program: Program, tmp_path: Path) -> None:
    for words, told in (
        (
            ("--style", "loud"),
            "prompt.style must be 'auto', 'reference', 'brief' or 'native', got 'loud'",
        ),
        (settings("prompt.turn={now}"), "prompt.turn: {now} is not known here"),
    ):
        done = program("envs", "show", "FrozenLake", *words)
        assert done.returncode == 2
        assert done.stderr.startswith(f"ragen2: {told}")
        assert len(done.stderr.splitlines()) == 1


def test_the_experts_words_solve_a_lake(program: Program) -> None:
    plan = plan_of(make("FrozenLake", slip=0), seed=3)
    given = f"{' || '.join(plan[:2])}\n" + "".join(f"{action}\n" for action in plan[2:])
    done = program("envs", "play", "FrozenLake", "--seed", "3", *settings("slip=0"), given=given)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"solved, total reward 1 in {len(plan)} actions" in done.stdout
    assert "not solved" not in done.stdout


def test_settings_reach_the_game(program: Program) -> None:
    shown = make("FrozenLake", size=6, observation="grid").start(0, 0).observation
    done = program("envs", "play", "FrozenLake", *settings("size=6", "observation=grid"))
    for row in shown.splitlines():
        assert row in done.stdout


def test_a_hint_is_the_experts_plan(program: Program) -> None:
    env = make("FrozenLake")
    done = program("envs", "play", "FrozenLake", "--seed", "5", given="hint\nquit\n")
    assert f"the expert would: {' || '.join(plan_of(env, 5))}" in done.stdout


def test_an_unknown_action_is_told_and_costs_nothing(program: Program) -> None:
    done = program("envs", "play", "FrozenLake", given="Jump\nquit\n")
    assert "unknown action 'Jump'" in done.stdout
    assert done.stdout.count("10 left>") == 2


def test_help_and_an_empty_line_show_what_can_be_typed(program: Program) -> None:
    done = program("envs", "play", "FrozenLake", given="help\n\nquit\n")
    assert done.stdout.count("type an action") == 3


@pytest.mark.parametrize("given", ["", "quit\n", "Q\n"])
def test_an_end_of_input_or_quit_stops(program: Program, given: str) -> None:
    done = program("envs", "play", "Bandit", given=given)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith("stopped")


def test_actions_run_out(program: Program) -> None:
    far = settings("max_actions=1", "slip=0", "size=8", "min_distance=4", "hole_ratio=0")
    done = program("envs", "play", "FrozenLake", *far, given="Up\n")
    assert "out of actions, total reward 0" in done.stdout


@pytest.mark.parametrize("kind", ["FrozenLake", "Bandit"])
def test_check_passes_for_what_is_built_in(program: Program, kind: str) -> None:
    done = program("envs", "check", kind, "--seeds", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok  the same seed and luck give the same episode" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{kind} passed on 5 seeds"


def test_check_names_the_claim_that_does_not_hold(program: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FICKLE)
    done = program("envs", "check", "Fickle", "--plugin", "mine.py")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "ragen2: Fickle: not true that the prompt depends on the seed, not on luck"
    )


HALF = '''"""An environment that was begun and not finished."""
from typing import ClassVar, Literal
from ragen2.envs import Env
from ragen2.envs.base import Episode

class HalfEpisode(Episode):
    observation = "nothing yet"

class Half(Env):
    """Has no rules and no start."""
    kind: Literal["Half"] = "Half"

class Hollow(Env):
    """Starts, but its episodes cannot be played."""
    kind: Literal["Hollow"] = "Hollow"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    @property
    def instruction(self):
        return "do it"
    def start(self, seed, luck):
        return HalfEpisode()
'''


@pytest.mark.parametrize("verb", [("list",), ("check", "Half"), ("play", "Half")])
def test_an_unfinished_environment_is_told_in_one_line(
    program: Program, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    (tmp_path / "mine.py").write_text(HALF)
    done = program("envs", *verb, "--plugin", "mine.py")
    line = "env kind 'Half' lacks instruction, reward_range, start; define them in class Half"
    assert (done.returncode, done.stderr) == (2, f"ragen2: {line}\n")


def test_an_unfinished_episode_is_told_in_one_line(program: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HALF)
    done = program("envs", "play", "Hollow", "--plugin", "mine.py")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "ragen2: Hollow: start of task 0 raised TypeError: Can't instantiate abstract class"
    )
    assert "step" in line


def test_an_unfinished_episode_fails_its_check(program: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HALF)
    done = program("envs", "check", "Hollow", "--plugin", "mine.py")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("ragen2: Hollow: not true that ")


def test_a_board_shown_as_an_image_is_painted_in_the_terminal(program: Program) -> None:
    env = make("FrozenLake", slip=0, observation="image")
    plan = plan_of(env, seed=3)
    given = "".join(f"{action}\n" for action in plan)
    done = program(
        *("envs", "play", "FrozenLake", "--seed", "3"),
        *settings("slip=0", "observation=image"),
        given=given,
    )
    assert done.returncode == 0
    assert "▀" * 56 in done.stdout
    assert "solved" in done.stdout


def test_a_new_environment_passes_its_check_as_it_is(program: Program, tmp_path: Path) -> None:
    made = program("envs", "new", "TeaShop")
    assert (made.returncode, made.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["tea_shop.py"]
    commands = [shlex.split(line)[1:] for line in made.stdout.splitlines()[1:]]
    assert [words[0] for words in commands] == ["envs", "envs", "preflight", "train"]
    checked = program(*commands[0])
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.splitlines()[-1] == "TeaShop passed on 20 seeds"
    assert checked.stdout.count("ok  ") == 16
    few = settings("rollout.prompts=2", "rollout.group_size=2", "rollout.max_tokens=8")
    for words in (commands[2], [*commands[3], "--dry-run"]):
        assert program(*words, *few).returncode == 0
    solved = program(*commands[1], given="hint\nquit\n")
    assert "the expert would: " in solved.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("tea shop",),
            "'tea shop' cannot name an environment; take letters and digits, a capital first: TeaShop",
        ),
        (
            ("bandit",),
            "'bandit' cannot name an environment; take letters and digits, a capital first: TeaShop",
        ),
        (("Bandit",), "there is an environment Bandit already; choose another name"),
        (("Episode",), "Episode is a name that every environment file uses; choose another"),
        (("Mine", "--out", "taken.py"), "taken.py exists already; choose another with --out"),
        (
            ("Mine", "--out", "mine.txt"),
            "--out mine.txt must end in .py: plug-ins are Python files",
        ),
        (
            ("Mine", "--out", "no/mine.py"),
            "--out no/mine.py cannot be written: No such file or directory",
        ),
    ],
)
def test_a_new_environment_that_cannot_be(
    program: Program, tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    (tmp_path / "taken.py").write_text("mine")
    assert_refused(program("envs", "new", *words), tmp_path, line, left=["taken.py"])
    assert (tmp_path / "taken.py").read_text() == "mine"
