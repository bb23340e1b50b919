"""Settings of a rollout: how many episodes, how long, and how replies are sampled."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ragen2.component import Settings
from ragen2.policy import SamplingParams
from ragen2.rollout.reply import ReplyFormat


class Rollout(Settings):
    """How groups of episodes are played."""

    prompts: int = Field(8, ge=1, description="groups per step, each with its own task (P)")
    group_size: int = Field(16, ge=1, description="episodes of each group (G)")
    resample_rounds: int = Field(
        0,
        ge=0,
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
    actions_per_turn: int = Field(2, ge=1, description="actions taken from one reply")
    format_penalty: float = Field(
        -0.1, le=0.0, description="added to the return for each reply that is not valid"
    )
    temperature: float = Field(1.0, gt=0.0, le=10.0, description="sampling temperature")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus mass of sampling; 1 is off")
    top_k: int = Field(0, ge=0, description="tokens sampling may choose from; 0 is all")
    max_tokens: int = Field(128, ge=1, description="tokens of one reply at most")
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

    def luck_of(self, member: int) -> int:
        """The luck that an episode is played with: its own, or that of the group's first."""
        return 0 if self.luck == "shared" else member

    @property
    def form(self) -> ReplyFormat:
        """What replies must look like."""
        return ReplyFormat(thinking=self.thinking, max_actions=self.actions_per_turn)

    @property
    def sampling(self) -> SamplingParams:
        """How replies are sampled; writing stops at the end of the answer."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            stop=("</answer>",),
        )

    @property
    def visible_turns(self) -> int:
        """Turns a prompt holds; 0 is all."""
        return {"full": 0, "window": self.window, "current": 1}[self.history]
