"""Our environments in TRL, token for token: a ``rollout_func`` that plays episodes with TRL's own weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from ragen2.backends.sampling.hf import HFPolicy
from ragen2.envs.base import Env
from ragen2.errors import ConfigError
from ragen2.integrations.trl.policy import at_rest, policy_over
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.context import refuse_images
from ragen2.rollout.play import DEFAULT_PROMPT
from ragen2.rollout.prompts import PromptSettings, PromptWriter
from ragen2.trainer.update import conversation
from ragen2.types import Trajectory

TASK = "task"
"""Key of the last message of a prompt that names the task: TRL hands a rollout_func nothing but prompts."""


class EnvRollout:
    """Plays ``env``: pass it as ``rollout_func``, ``env_return`` as reward, and its ``dataset``.

    One row is one whole episode. The model's tokens are those that were sampled; what the environment
    said in between is in the row too, and out of the loss. Members of a group play one task under
    different luck, and draw from random streams that do not depend on how rows are spread over processes.
    """

    def __init__(
        self, env: Env, rollout: Rollout | None = None, prompt: PromptSettings = DEFAULT_PROMPT
    ) -> None:
        refuse_images(env, "a row of TRL")
        self.env = env
        self.rollout = rollout or Rollout()
        self.prompt = prompt
        self._writer = PromptWriter.of(env, self.rollout, prompt)
        if self.rollout.history != "full":
            raise ConfigError(
                f"rollout.history is {self.rollout.history!r}, but a row of TRL is one conversation that "
                "only grows; use full"
            )
        self._policy: tuple[Any, HFPolicy] | None = None
        self._calls = (-1, 0)

    def dataset(self, seeds: Iterable[int]) -> Any:
        """One row for each task, with the messages that an agent is shown first."""
        from datasets import Dataset

        return Dataset.from_dict({"prompt": [self._prompt(seed) for seed in seeds]})

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play one episode for each prompt of this process."""
        if self.rollout.temperature != trainer.temperature:
            raise ConfigError(
                f"rollout.temperature is {self.rollout.temperature:g}, but TRL trains at temperature "
                f"{trainer.temperature:g}; give both the same"
            )
        is_training = trainer.model.training
        size = trainer.num_generations if is_training else trainer.num_generations_eval
        first = trainer.accelerator.process_index * len(prompts)
        # A task that comes again in a later step is played under other luck.
        luck = trainer.state.global_step * size if is_training else 0
        tasks = [
            Task(_task(prompt), luck + (first + place) % size)
            for place, prompt in enumerate(prompts)
        ]
        groups = [list(members) for _, members in groupby(tasks, key=lambda one: one.seed)]
        policy, key = self._policy_over(trainer), self._key(trainer)
        with at_rest(policy.network):
            played = play(self.env, policy, groups, self.rollout, key=key, prompt=self.prompt)
        return _columns([one for group in played for one in group.trajectories])

    def _policy_over(self, trainer: Any) -> HFPolicy:
        network = trainer.accelerator.unwrap_model(trainer.model)
        if self._policy is None or self._policy[0] is not network:
            policy = policy_over(
                trainer, purpose="EnvRollout", without="use DDP, or env_tools with TRL's vLLM"
            )
            self._policy = network, policy
        return self._policy[1]

    def _key(self, trainer: Any) -> tuple[int | str, ...]:
        """Names the random streams of this call: by the step, and by the calls within it."""
        if not trainer.model.training:
            return (trainer.args.seed, "trl evaluate")
        step = trainer.state.global_step
        self._calls = (step, self._calls[1] + 1 if self._calls[0] == step else 0)
        return (trainer.args.seed, "trl", *self._calls)

    def _prompt(self, seed: int) -> list[dict[str, Any]]:
        *before, user = self._writer.first(seed)
        return [
            *({"role": one.role, "content": one.content, TASK: None} for one in before),
            {"role": user.role, "content": user.content, TASK: seed},
        ]


def env_return(ragen2_return: Sequence[float], **_: Any) -> list[float]:
    """The reward function that goes with ``EnvRollout``: what the environment paid in each episode."""
    return list(ragen2_return)


def _task(prompt: Any) -> int:
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    seed = last.get(TASK) if isinstance(last, dict) else None
    if seed is None:
        raise ConfigError(
            "a prompt does not say which task it is; make train_dataset and eval_dataset with "
            "EnvRollout.dataset"
        )
    return int(seed)


def _columns(trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
    """What TRL wants of a rollout_func, and the episodes themselves."""
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "prompt_ids",
            "completion_ids",
            "logprobs",
            "env_mask",
            "ragen2_return",
            "ragen2_trajectory",
        )
    }
    for one in trajectories:
        row = conversation(one)
        first_ids = one.turns[0].prompt_ids_T.tolist()
        values = (first_ids, row.ids, row.logprobs, row.mask, one.reward, one)
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    return columns
