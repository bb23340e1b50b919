"""Settings of a rollout: how many episodes, how long, and how replies are sampled."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ragen2.component import Settings
from ragen2.envs.base import Env
from ragen2.policy import SamplingParams
from ragen2.rollout.reply import ANSWER_TAGS, ReplyFormat

REFERENCE_PENALTY = -0.1
MOST_EPISODES = 1_000_000
"""Of one step: all of them are in memory at once."""


class Rollout(Settings):
    """How groups of episodes are played."""

    prompts: int = Field(
        8, ge=1, le=100_000, description="groups per step, each with its own task (P)"
    )
    group_size: int = Field(16, ge=1, le=100_000, description="episodes of each group (G)")
    resample_rounds: int = Field(
        0,
        ge=0,
        le=1000,
        description="extra batches of new tasks played at most until `prompts` groups pass the filter",
    )
    luck: Literal["own", "shared"] = Field(
        "own",
        description="each episode of a group has luck of its own, or all have the same, as in the reference",
    )
    history: Literal["full", "window", "current"] = Field(
        "full",
        description="what a prompt holds: all turns, the last `window` turns, or this turn alone",
    )
    window: int = Field(2, ge=1, description="turns a prompt holds when history is `window`")
    image_window: int = Field(
        0,
        ge=0,
        description="newest turns of a prompt that keep their images, older ones keep their text; "
        "0 keeps all",
    )
    thinking: bool = Field(True, description="replies hold <think>..</think> before the answer")
    actions_per_turn: int = Field(
        2,
        ge=1,
        description="actions taken from one reply; one where an answer is one action as a whole",
    )
    surplus_actions: Literal["cut", "invalid"] = Field(
        "cut",
        description="actions of a reply beyond those taken are passed over, or make it invalid",
    )
    format_penalty: float | None = Field(
        None,
        le=0.0,
        description="added to the return for each reply that is not valid; left out, as much as the dearest "
        "valid reply of the environment can cost, and at least 0.1",
    )
    preset: Literal["own", "reference"] = Field(
        "own",
        description="what settings that are left out come to: our values, or the reference system's",
    )
    temperature: float = Field(1.0, gt=0.0, le=10.0, description="sampling temperature")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus mass of sampling; 1 is off")
    top_k: int = Field(0, ge=0, description="tokens sampling may choose from; 0 is all")
    max_tokens: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="tokens of one reply at most; 0 is what the environment needs",
    )
    env_workers: int = Field(
        0,
        ge=0,
        le=1024,
        description="threads that step a slow environment; 0 chooses. Changes speed, not results",
    )
    cohorts: int = Field(
        0,
        ge=0,
        le=16,
        description="parts of a batch sampled in turn while the others' steps run; 0 is 2 for a slow "
        "environment, else 1",
    )

    @model_validator(mode="after")
    def _fits_into_memory(self) -> Self:
        episodes = self.prompts * self.group_size
        if episodes > MOST_EPISODES:
            raise ValueError(
                f"prompts x group_size must be at most {MOST_EPISODES:,} episodes per step, got "
                f"{self.prompts:,} x {self.group_size:,}"
            )
        return self

    def luck_of(self, member: int) -> int:
        """The luck that an episode is played with: its own, or that of the group's first."""
        return 0 if self.luck == "shared" else member

    def form(self, env: Env) -> ReplyFormat:
        """What replies must look like; no more actions are asked for than the environment takes."""
        names = {name.lower(): name for name in env.action_forms} if env.has_fixed_actions else {}
        return ReplyFormat(
            thinking=self.thinking,
            max_actions=self.most_actions(env),
            splits=not env.one_action,
            names={**env.synonyms, **names} if names else {},
            refuses_surplus=self.surplus_actions == "invalid",
        )

    def most_actions(self, env: Env) -> int:
        """Actions that are taken from one reply."""
        return 1 if env.one_action else min(self.actions_per_turn, env.max_actions)

    def penalty(self, env: Env) -> float:
        """What an invalid reply costs: never less than an honest one can, unless the settings say so."""
        if self.format_penalty is not None:
            return self.format_penalty
        if self.preset == "reference":
            return REFERENCE_PENALTY
        return min(REFERENCE_PENALTY, env.dearest_reply(self.most_actions(env)))

    def reply_tokens(self, env: Env) -> int:
        """Tokens of one reply at most."""
        return self.max_tokens or env.reply_tokens

    def sampling(self, env: Env) -> SamplingParams:
        """How replies are sampled; writing stops at the end of the answer."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.reply_tokens(env),
            stop=(ANSWER_TAGS[1],),
        )

    @property
    def visible_turns(self) -> int:
        """Turns a prompt holds; 0 is all."""
        return {"full": 0, "window": self.window, "current": 1}[self.history]
