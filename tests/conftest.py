"""Fixtures that several test rooms share; everything here is quick and needs no torch."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import command_line
import left_out
from ragen2.algorithms import Algorithm
from ragen2.consent import STATE, TRUSTED
from ragen2.diagnostics import Diagnostic
from ragen2.envs import Env
from ragen2.filtering import Filter
from ragen2.types import (
    Completion,
    Finish,
    Group,
    Image,
    Message,
    Prompt,
    Reply,
    StopReason,
    Trajectory,
    Turn,
)

# The same examples on every machine, and no verdict that depends on its speed.
settings.register_profile("ragen2", deadline=None, derandomize=True, database=None)
settings.load_profile("ragen2")

LONG_FILES = (
    "tests/test_examples_rl_loop.py",
    "tests/e2e/test_warm_starts.py",
    "tests/test_docs.py",
    "tests/conformance/test_envs.py",
    "tests/integrations/test_trl_peer.py",
    "tests/faults/",
    "tests/envs/test_code_problems.py",
    "tests/e2e/",
    "tests/cli/test_train_jobs.py",
)
"""Files of a minute or more: begun first, so that no worker is left alone with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, in their order, all else as it was found."""

    def place(item: pytest.Item) -> int:
        places = (at for at, name in enumerate(LONG_FILES) if item.nodeid.startswith(name))
        return next(places, len(LONG_FILES))

    items.sort(key=place)


def pytest_configure(config: pytest.Config) -> None:
    """The last lines of a run say what it left out; what tests trust, the user does not."""
    config.pluginmanager.register(left_out.LeftOut())
    os.environ[STATE] = tempfile.mkdtemp(prefix="ragen2-state-")


def pytest_unconfigure() -> None:
    """The interpreter that ran programs for the tests ends with them."""
    command_line.Warm.stop()
    shutil.rmtree(os.environ.pop(STATE), ignore_errors=True)


@pytest.fixture(autouse=True)
def leaves_alarms_alone() -> Iterator[None]:
    """A handler that a test leaves behind would take the time limits of all tests after it."""
    yield
    handler = signal.getsignal(signal.SIGALRM)
    name = getattr(handler, "__module__", None)
    assert handler == signal.SIG_DFL or name == "ragen2.time_limit", f"{handler} stays behind"


@pytest.fixture
def trusts_nothing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Where consent is kept in a test that begins without any."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv(STATE, str(folder))
    monkeypatch.delenv(TRUSTED, raising=False)
    return folder


@pytest.fixture
def own_kinds() -> Iterator[None]:
    """Kinds that a test defines are forgotten after it."""
    families = (Env, Filter, Algorithm, Diagnostic)
    before = [dict(family.registry) for family in families]
    yield
    for family, kinds in zip(families, before, strict=True):
        family.registry.clear()
        family.registry.update(kinds)


@pytest.fixture(scope="session")
def turn_of() -> Callable[..., Turn]:
    """A turn: ``turn_of(reward=1.0, ids=[5, 6])``; what is left out is plain and valid."""

    def make(
        *,
        prompt_ids: Sequence[int] = (1, 2),
        ids: Sequence[int] = (3, 4, 5),
        reasoning: str = "why",
        problem: str = "",
        reasoning_span: tuple[int, int] = (0, 1),
        reward: float = 0.0,
        penalty: float = 0.0,
        executed: Sequence[str] = ("Up",),
        finish: Finish = Finish.STOP,
        observation: str = "after",
        action_span: tuple[int, int] = (2, 3),
        images: Sequence[Image] = (),
        shown_image: Image | None = None,
    ) -> Turn:
        return Turn(
            prompt_ids_T=np.array(prompt_ids, dtype=np.int64),
            completion=Completion(
                np.array(ids, dtype=np.int64), np.full(len(ids), -0.5), "text", finish
            ),
            reply=Reply(reasoning, tuple(executed), problem),
            reasoning_span=reasoning_span,
            observation=observation,
            reward=reward,
            penalty=penalty,
            executed=tuple(executed),
            action_span=action_span,
            images=tuple(images),
            shown_image=shown_image,
        )

    return make


@pytest.fixture(scope="session")
def group_of(turn_of: Callable[..., Turn]) -> Callable[..., Group]:
    """A group of one-turn trajectories with these returns: ``group_of([0, 1, 1])``."""

    def make(rewards: Sequence[float], *, env: str = "FrozenLake", seed: int = 7) -> Group:
        prompt = Prompt(env, seed, (Message("system", "rules"), Message("user", f"task {seed}")))
        return Group(
            prompt,
            tuple(
                Trajectory(
                    prompt, luck, (turn_of(reward=reward),), StopReason.DONE, solved=reward > 0
                )
                for luck, reward in enumerate(rewards)
            ),
        )

    return make
