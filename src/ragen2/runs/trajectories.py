"""Trajectories as JSON lines, with everything needed to replay, audit or re-score them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ragen2.errors import RunError
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

Find = Callable[[str], Image] | None


def group_lines(group: Group, step: int, knows_success: bool = True) -> list[str]:
    """One line per trajectory; null where success or a log-prob is not known."""
    lines = []
    for one in group.trajectories:
        data = _trajectory(one, step)
        if not knows_success:
            data["solved"] = None
        lines.append(json.dumps(data, ensure_ascii=False))
    return lines


def images_of(group: Group) -> Iterator[Image]:
    """Every image that the lines of a group name; the same one may come more than once."""
    for trajectory in group.trajectories:
        for message in trajectory.prompt.messages:
            yield from message.images
        for turn in trajectory.turns:
            yield from turn.images
            if turn.shown_image is not None:
                yield turn.shown_image


def groups_of(lines: Iterable[str], image: Callable[[str], Image] | None = None) -> list[Group]:
    """The groups that ``group_lines`` wrote, in order; their members may stand anywhere.

    ``image`` finds an image by its name (``ImageStore.read``); None leaves images out.
    """
    members: dict[Prompt, list[Trajectory]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            trajectory = _read_trajectory(json.loads(line), image)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"line {number} is not a trajectory of a run's rollouts ({error!r}); "
                "give a rollouts/step_*.jsonl file as training wrote it"
            ) from error
        members.setdefault(trajectory.prompt, []).append(trajectory)
    return [Group(prompt, tuple(trajectories)) for prompt, trajectories in members.items()]


def _trajectory(trajectory: Trajectory, step: int) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "env": trajectory.prompt.env,
        "seed": trajectory.prompt.seed,
        "luck": trajectory.luck,
        "step": step,
        "messages": [_message(message) for message in trajectory.prompt.messages],
        "turns": [_turn(turn) for turn in trajectory.turns],
        "reward": trajectory.reward,
        "solved": trajectory.solved,
        "stop": trajectory.stop.value,
        "error": trajectory.error,
    }


def _message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    return {**written, "images": _names(message.images)} if message.images else written


def _names(images: Iterable[Image]) -> list[str]:
    return [image.digest for image in images]


def _seen(turn: Turn) -> dict[str, Any]:
    """What only a turn of an agent that is shown images has."""
    seen: dict[str, Any] = {"images": _names(turn.images)} if turn.images else {}
    return {**seen, "shown_image": turn.shown_image.digest} if turn.shown_image else seen


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_ids": turn.prompt_ids_T.tolist(),
        "ids": turn.completion.ids_T.tolist(),
        "logprobs": [
            None if math.isnan(value) else round(value, 6)
            for value in turn.completion.logprobs_T.tolist()
        ],
        "text": turn.completion.text,
        "finish": turn.completion.finish.value,
        "reasoning": turn.reply.reasoning,
        "reasoning_span": list(turn.reasoning_span),
        "actions": list(turn.reply.actions),
        "action_span": list(turn.action_span),
        "executed": list(turn.executed),
        "valid": turn.reply.valid,
        "problem": turn.reply.problem,
        "observation": turn.observation,
        "reward": turn.reward,
        "penalty": turn.penalty,
        **_seen(turn),
    }


def _read_trajectory(data: dict[str, Any], image: Find) -> Trajectory:
    messages = tuple(
        Message(one["role"], one["content"], _read_images(one, image)) for one in data["messages"]
    )
    return Trajectory(
        Prompt(data["env"], data["seed"], messages),
        data["luck"],
        tuple(_read_turn(turn, image) for turn in data["turns"]),
        StopReason(data["stop"]),
        data["solved"],
        data["error"],
    )


def _read_images(data: dict[str, Any], image: Find) -> tuple[Image, ...]:
    return tuple(image(name) for name in data.get("images", ())) if image else ()


def _read_turn(data: dict[str, Any], image: Find) -> Turn:
    start, end = data["reasoning_span"]
    # Files of runs before spans of actions were recorded have none.
    action_start, action_end = data.get("action_span", (0, 0))
    return Turn(
        prompt_ids_T=np.array(data["prompt_ids"], dtype=np.int64),
        completion=Completion(
            np.array(data["ids"], dtype=np.int64),
            np.array(data["logprobs"], dtype=np.float64),
            data["text"],
            Finish(data["finish"]),
        ),
        reply=Reply(data["reasoning"], tuple(data["actions"]), data["problem"]),
        reasoning_span=(start, end),
        observation=data["observation"],
        reward=data["reward"],
        penalty=data["penalty"],
        executed=tuple(data["executed"]),
        action_span=(action_start, action_end),
        images=_read_images(data, image),
        shown_image=image(data["shown_image"]) if image and "shown_image" in data else None,
    )
