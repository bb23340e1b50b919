"""Every environment through Gymnasium: its own checker is content, and endings are told apart."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402  # after the skip

from ragen2.envs import Env, make  # noqa: E402
from ragen2.envs.base import HELD_OUT_SEEDS  # noqa: E402
from ragen2.errors import ConfigError, EnvError  # noqa: E402
from ragen2.integrations.gymnasium import MAX_OBSERVATION, UnicodeText, register_all  # noqa: E402
from ragen2.reference import built_in_kinds  # noqa: E402

KINDS = [member.model_fields["kind"].default for member in built_in_kinds(Env)]


def test_every_environment_has_an_id():
    assert set(register_all()) >= {f"ragen2/{kind}-v0" for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_gymnasiums_own_checker_has_nothing_to_say(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(f"ragen2/{kind}-v0").unwrapped)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_episode_as_without_gymnasium(kind):
    env = gymnasium.make(f"ragen2/{kind}-v0").unwrapped
    observation, info = env.reset(seed=7, options={"luck": 3})
    episode = make(kind).start(7, 3)
    assert observation == episode.observation
    assert (info["seed"], info["luck"]) == (7, 3)
    assert "<answer>" in info["instruction"]
    action = episode.expert()[0]
    observation, reward, terminated, truncated, info = env.step(action)
    step = episode.step(action)
    assert (observation, reward) == (episode.observation, step.reward)
    assert terminated is step.done
    assert truncated is False or terminated is False
    assert info == {"solved": step.solved, "valid": step.valid, "effective": step.effective}


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_offered_where_there_are_any(kind):
    env = gymnasium.make(f"ragen2/{kind}-v0").unwrapped
    has_picture = make(kind).start(0, 0).image() is not None
    assert ("rgb_array" in env.metadata["render_modes"]) == has_picture
    if not has_picture:
        with pytest.raises(ConfigError, match="has no render_mode 'rgb_array'; it has: ansi"):
            gymnasium.make(f"ragen2/{kind}-v0", render_mode="rgb_array")


def test_a_solved_episode_is_terminated():
    env = gymnasium.make("ragen2/Sudoku-v0", blanks=2)
    env.reset(seed=0)
    for action in env.unwrapped.episode.expert():
        _, _, terminated, truncated, info = env.step(action)
    assert (terminated, truncated, info["solved"]) == (True, False, True)


def test_a_spent_budget_truncates():
    env = gymnasium.make("ragen2/Sudoku-v0", blanks=2, max_actions=3)
    env.reset(seed=0)
    ends = [env.step("nonsense")[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_solving_with_the_last_action_is_termination_not_truncation():
    env = gymnasium.make("ragen2/Sudoku-v0", blanks=2, max_actions=2)
    env.reset(seed=0)
    ends = [env.step(action)[2:4] for action in env.unwrapped.episode.expert()]
    assert ends == [(False, False), (True, False)]


def test_the_only_action_of_a_task_ends_it():
    env = gymnasium.make("ragen2/Bandit-v0")
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step("nonsense")
    assert (terminated, truncated, info["valid"]) == (True, False, False)


def test_without_a_seed_tasks_are_drawn_from_those_for_training():
    env = gymnasium.make("ragen2/FrozenLake-v0")
    env.reset(seed=1)
    drawn = [env.reset()[1] for _ in range(5)]
    env.reset(seed=1)
    assert [env.reset()[1] for _ in range(5)] == drawn
    assert len({info["seed"] for info in drawn}) == 5
    assert len({info["luck"] for info in drawn}) == 5
    assert min(info["seed"] for info in drawn) >= HELD_OUT_SEEDS


def test_luck_may_be_chosen_without_a_seed():
    env = gymnasium.make("ragen2/FrozenLake-v0")
    assert env.reset(options={"luck": np.int64(4)})[1]["luck"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"luk": 1}, "unknown reset option 'luk'; did you mean 'luck'?"),
        ({"luck": "much"}, "reset option luck must be a whole number, got 'much'"),
    ],
)
def test_wrong_reset_options_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        gymnasium.make("ragen2/FrozenLake-v0").reset(options=options)
    assert str(error.value) == message


def test_settings_reach_the_environment_and_mistakes_are_explained():
    env = gymnasium.make("ragen2/FrozenLake-v0", size=7)
    assert env.unwrapped.env.size == 7
    with pytest.raises(ConfigError, match="did you mean 'size'"):
        gymnasium.make("ragen2/FrozenLake-v0", sizes=7)


def test_an_action_that_is_not_text_is_refused():
    env = gymnasium.make("ragen2/FrozenLake-v0")
    env.reset(seed=0)
    with pytest.raises(EnvError, match="FrozenLake takes text, got 3; pass the action as a str"):
        env.step(3)


def test_a_step_before_reset_says_what_to_do():
    env = gymnasium.make("ragen2/FrozenLake-v0").unwrapped
    with pytest.raises(EnvError, match="FrozenLake has not been started; call reset first"):
        env.step("Up")


def test_observations_are_made_to_fit_their_space():
    space = UnicodeText(MAX_OBSERVATION)
    for text in ("", "naïve √ 東京\n\t", "😀\x00\ud800", "x" * (MAX_OBSERVATION + 1)):
        assert space.fit(text) in space
    assert space.fit("naïve √ 東京\n") == "naïve √ 東京\n"
    assert space.fit("a😀b") == "a\ufffdb"
    assert repr(space) == f"UnicodeText({MAX_OBSERVATION})"


def test_both_render_modes_show_the_state():
    text = gymnasium.make("ragen2/Sudoku-v0", render_mode="ansi")
    observation, _ = text.reset(seed=3)
    assert text.render() == observation
    picture = gymnasium.make("ragen2/Sudoku-v0", render_mode="rgb_array")
    picture.reset(seed=3)
    assert picture.render().shape == (112, 112, 3)


def test_several_environments_step_together():
    envs = gymnasium.make_vec("ragen2/Sudoku-v0", num_envs=2, vectorization_mode="sync")
    observations, _ = envs.reset(seed=[1, 2])
    expected = tuple(make("Sudoku").start(seed, 0).observation for seed in (1, 2))
    assert tuple(observations) == expected


def test_shared_memory_is_refused_rather_than_read_wrongly():
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.make_vec("ragen2/Sudoku-v0", num_envs=2, vectorization_mode="async")


def test_an_id_can_be_made_by_naming_the_module():
    code = (
        "import gymnasium; env = gymnasium.make('ragen2.integrations.gymnasium:ragen2/Bandit-v0'); "
        "env.reset(seed=0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["FrozenLake", "Sokoban"])
def test_an_image_observation_is_the_picture_that_is_rendered(kind):
    env = gymnasium.make(
        f"ragen2/{kind}-v0", observation="image+text", cell_px=14, render_mode="rgb_array"
    )
    observation, _ = env.reset(seed=3)
    episode = make(kind, observation="image+text", cell_px=14).start(3, 0)
    assert observation["text"] == episode.observation
    assert np.array_equal(observation["image"], episode.shown_image)
    assert np.array_equal(env.render(), observation["image"])
    action = episode.expert()[0]
    moved, *_ = env.step(action)
    assert not np.array_equal(moved["image"], observation["image"])
    assert np.array_equal(env.render(), moved["image"])


def test_gymnasiums_checker_is_content_with_images():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("ragen2/FrozenLake-v0", observation="image").unwrapped)


def test_an_image_of_another_size_than_the_space_is_refused(tmp_path):
    levels = tmp_path / "levels.txt"
    rooms = ["######\n#@ $.#\n######\n", "#####\n#@$.#\n#####\n", "######\n#@$. #\n######\n"]
    levels.write_text("".join(f"; {number}\n{room}\n" for number, room in enumerate(rooms)))
    env = gymnasium.make("ragen2/Sokoban-v0", observation="image", levels=str(levels))
    env.reset(seed=HELD_OUT_SEEDS)
    with pytest.raises(EnvError, match="make one environment for each size"):
        env.reset(seed=HELD_OUT_SEEDS + 1)
