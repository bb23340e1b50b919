"""OpenEnv serves our environments: over the wire an episode is what it is at hand."""

from __future__ import annotations

import re
import runpy
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from openenv import GenericEnvClient

from ragen2.envs import FrozenLake
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.errors import EnvError
from ragen2.integrations.openenv import TextAction, TextEnvironment, app_of

ENV = FrozenLake(max_actions=6)
PAGE = Path(__file__).parents[3] / "docs/integrations/exports.md"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of ours in a thread."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app_of(ENV, sessions=4), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


def played(client: Any, seed: int, luck: int) -> list[tuple[Any, ...]]:
    """The expert's way, and after its end the last move again until the server says done."""
    shown = client.reset(seed=seed, luck=luck)
    found = [(shown.observation["text"], shown.observation["actions_left"], shown.done)]
    plan = list(ENV.start(seed, luck).expert()) or ["Up"]
    for at in range(ENV.max_actions):
        step = client.step({"text": plan[at % len(plan)]})
        seen = step.observation
        found.append((seen["text"], seen["actions_left"], step.reward, seen["solved"], step.done))
        if step.done:
            break
    return found


def expected(seed: int, luck: int) -> list[tuple[Any, ...]]:
    episode = ENV.start(seed, luck)
    found: list[tuple[Any, ...]] = [(episode.observation, ENV.max_actions, False)]
    plan = list(episode.expert()) or ["Up"]
    for at in range(ENV.max_actions):
        step = episode.step(plan[at % len(plan)])
        left = ENV.max_actions - at - 1
        is_over = step.done or left == 0
        found.append((episode.observation, left, step.reward, step.solved, is_over))
        if is_over:
            break
    return found


def test_episodes_over_the_wire_are_those_at_hand(url: str) -> None:
    solved = 0
    with GenericEnvClient(base_url=url).sync() as client:
        for seed in range(6):
            found = played(client, seed, luck=seed + 1)
            assert found == expected(seed, luck=seed + 1)
            solved += found[-1][3]
            state = client.state()
            assert (state["seed"], state["luck"], state["env"]) == (seed, seed + 1, "FrozenLake")
            assert state["step_count"] == len(found) - 1
    assert solved, "some were solved"


def test_sessions_do_not_see_each_other(url: str) -> None:
    with (
        GenericEnvClient(base_url=url).sync() as one,
        GenericEnvClient(base_url=url).sync() as other,
    ):
        first = one.reset(seed=1, luck=0).observation
        other.reset(seed=2, luck=0)
        other.step({"text": "Down"})
        again = one.step({"text": "nonsense"}).observation
    assert again["text"] == first["text"]
    assert not again["valid"]
    assert first["instruction"] == ENV.instruction


def test_without_a_seed_a_task_that_is_not_held_out_is_drawn() -> None:
    env = TextEnvironment(ENV)
    seeds = set()
    for _ in range(5):
        env.reset()
        seeds.add(env.state.seed)
    assert len(seeds) == 5
    assert min(seeds) >= HELD_OUT_SEEDS
    env.reset(seed=7)
    assert (env.state.seed, env.state.luck, env.state.step_count) == (7, 0, 0)


def test_what_cannot_be_done_is_told() -> None:
    env = TextEnvironment(ENV)
    with pytest.raises(EnvError, match="no episode under way; call reset first"):
        env.step(TextAction(text="Up"))
    with pytest.raises(EnvError, match="reset takes seed and luck, got map; leave it out"):
        env.reset(map="4x4")
    env.reset(seed=0)
    for _ in range(ENV.max_actions):
        is_over = env.step(TextAction(text="nonsense")).done
    assert is_over
    with pytest.raises(EnvError, match="no episode under way"):
        env.step(TextAction(text="Up"))


def test_the_example_of_the_page_makes_a_server(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if "app_of" in block]
    file = tmp_path / "server.py"
    file.write_text(example)
    made = runpy.run_path(str(file))
    assert {route.path for route in made["app"].routes} >= {"/reset", "/step", "/schema", "/ws"}
