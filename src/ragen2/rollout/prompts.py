"""What an agent reads: the system message, worked examples, and the message of each turn."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ragen2.component import Settings, suggest
from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.envs.guard import action_forms_of, start_episode, text_of
from ragen2.errors import ConfigError, EnvError, MissingMethod
from ragen2.rollout.reply import ACTION_SEPARATOR, THINK_TAGS, ReplyFormat, render_reply
from ragen2.rollout.settings import Rollout
from ragen2.rollout.wording import (
    NAME,
    SYSTEM_NAMES,
    TURN_NAMES,
    WORDINGS,
    Part,
    Wording,
    fill_parts,
    joined,
)
from ragen2.runs.checkpoints import SETTINGS
from ragen2.runs.toml_files import read_toml_file
from ragen2.seeding import stream
from ragen2.types import Image, Message

logger = logging.getLogger(__name__)

Style = Literal["auto", "reference", "brief", "native"]
EXAMPLE_SEED = HELD_OUT_SEEDS + 10**12
"""Tasks from here on are shown as worked examples; no run plays as far as this."""
EXAMPLES_TRIED = 8
WARM_START = "warmstart.toml"
CHECKPOINTS = "checkpoints"


class PromptSettings(Settings):
    """What the agent is shown besides the environment's own observations."""

    style: Style = Field(
        "auto",
        description="reference: the parts of the reference prompt and a worked example of another task; "
        "brief: the shortest; native: for models that think by themselves; auto: what the model was taught "
        "with, else reference",
    )
    system: str = Field(
        "",
        max_length=100_000,
        description="own text of the system message, in place of the style's",
    )
    turn: str = Field(
        "",
        max_length=100_000,
        description="own text of the message of each turn, in place of the style's",
    )
    template: str = Field(
        "",
        description="a TOML file with `system` and `turn`; read when the run starts, and kept with it",
    )
    examples: int | None = Field(
        None,
        ge=0,
        le=8,
        description="worked replies to other tasks, each an exchange before the task; left out, 1 in the "
        "reference style, 0 in others",
    )
    prefill: bool = Field(
        True,
        description="the prompt opens the reply with its first tag; off, the model writes that too",
    )
    think_tags: tuple[str, str] = Field(
        THINK_TAGS, description="what encloses the reasoning of a reply"
    )
    template_arguments: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="passed to the model's chat template, such as enable_thinking",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_template(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not (file := data.get("template")):
            return data
        return {**data, **template_texts(Path(str(file))), "template": ""}

    @field_validator("system", "turn")
    @classmethod
    def _known_names(cls, value: str, info: ValidationInfo) -> str:
        known = SYSTEM_NAMES if info.field_name == "system" else TURN_NAMES
        for name in NAME.findall(value):
            if name not in known:
                raise ValueError(f"{{{name}}} is not known here; {suggest(name, known)}")
        return value

    @field_validator("think_tags")
    @classmethod
    def _two_tags(cls, value: tuple[str, str]) -> tuple[str, str]:
        if not all(tag.strip() for tag in value) or value[0] == value[1]:
            raise ValueError(f"must be an opening and a closing tag, got {list(value)}")
        return value

    @property
    def wording(self) -> Wording:
        """The texts of the style, with those of one's own over them."""
        found = WORDINGS["reference" if self.style == "auto" else self.style]
        return replace(
            found,
            system=self.system or found.system,
            turn=self.turn or found.turn,
            examples=found.examples if self.examples is None else self.examples,
        )

    def form(self, env: Env, rollout: Rollout) -> ReplyFormat:
        """What replies must look like. The thinking of a native style is opened by the model itself."""
        opens = self.prefill and not (self.style == "native" and rollout.thinking)
        return replace(rollout.form(env), prefilled=opens, think_tags=self.think_tags)


def taught_prompt(model: str) -> dict[str, Any] | None:
    """The ``[prompt]`` table that a model of ours was last taught or trained with; None for any other model.

    Models of versions that had one style alone were taught with the brief one.
    """
    embedded = Path(str(resources.files("ragen2") / "models"))
    is_embedded = model in os.listdir(embedded)
    folder = embedded / model if is_embedded else Path(os.path.expanduser(model))
    run = folder.parent.parent if folder.parent.name == CHECKPOINTS else folder
    for file in (folder / WARM_START, folder / SETTINGS, run / "run.toml"):
        try:
            is_there = file.is_file()
        except (OSError, ValueError):  # a name that no file can have
            return None
        if not is_there:
            continue
        try:
            table = read_toml_file(file).get("prompt", {})
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error
        return {"style": "brief", **(table if isinstance(table, dict) else {})}
    return None


@dataclass(frozen=True, slots=True)
class TurnState:
    """What the message of a turn tells."""

    observation: str
    actions_left: int
    turn: int = 1
    reward: float | None = None
    """What the turn before earned; None in the first."""
    problem: str = ""
    """What was wrong with the last reply."""
    image: Image | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """What every prompt of a task begins with."""

    system: Message
    exchanges: tuple[tuple[Message, str], ...] = ()
    """Worked examples: what was shown, and the whole reply to it."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The same as chat."""
        chat = [(user, Message("assistant", reply)) for user, reply in self.exchanges]
        return (self.system, *(message for exchange in chat for message in exchange))


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """Writes the messages of the episodes of one environment."""

    env: Env
    form: ReplyFormat
    wording: Wording
    examples: tuple[tuple[str, str], ...] = ()
    """Observations of other tasks, each with a worked reply."""

    @classmethod
    def of(cls, env: Env, rollout: Rollout, prompt: PromptSettings) -> PromptWriter:
        """For one run."""
        form, wording = prompt.form(env, rollout), prompt.wording
        # One more than are shown: a task is never its own example.
        found = worked_examples(env, form, wording.examples + 1) if wording.examples else ()
        return cls(env, form, wording, found)

    def opening(self, observation: str) -> Opening:
        """What comes before a task that begins with ``observation``."""
        others = [one for one in self.examples if one[0] != observation][: self.wording.examples]
        system = Message("system", joined(self.system_parts()))
        exchanges = [
            (self.turn(TurnState(shown, self.env.max_actions)), reply) for shown, reply in others
        ]
        return Opening(system, tuple(exchanges))

    def turn(self, state: TurnState) -> Message:
        """What is shown at the start of a turn."""
        images = () if state.image is None else (state.image,)
        return Message("user", joined(self.turn_parts(state)), images)

    def system_parts(self) -> list[Part]:
        """The system message in parts."""
        values = self._common | {
            "instruction": text_of(self.env, "instruction"),
            "rules": text_of(self.env, "rules"),
            "form": self._form,
            "turns": str(self.env.max_turns),
            "max_actions": str(self.env.max_actions),
        }
        return fill_parts(self.wording.system, values)

    def turn_parts(self, state: TurnState) -> list[Part]:
        """The message of a turn in parts."""
        values = self._common | {
            "problem": f"Your last reply was not valid: {state.problem}." if state.problem else "",
            "reward": "" if state.reward is None else f"{state.reward:g}",
            "turn": str(state.turn) if self.env.max_turns > 1 else "",
            "turns": str(self.env.max_turns) if self.env.max_turns > 1 else "",
            "observation": state.observation,
            "actions_left": str(state.actions_left),
            "budget": self._budget(state.actions_left),
        }
        return fill_parts(self.wording.turn, values)

    def first(self, seed: int) -> tuple[Message, ...]:
        """The messages that a task begins with."""
        shown = start_episode(self.env, seed, 0).observation
        return *self.opening(shown).messages, self.turn(TurnState(shown, self.env.max_actions))

    def _budget(self, left: int) -> str:
        """Nothing where an episode is one action; not "actions left 3", which reads like a move."""
        if self.env.max_actions == 1:
            return ""
        return f"You may take {left} more action{'s' if left != 1 else ''}."

    @property
    def _common(self) -> dict[str, str]:
        opened, closed = self.form.think_tags
        most = self.form.max_actions
        return {
            "actions": ", ".join(action_forms_of(self.env)),
            "answer": answer_phrase(self.env, most),
            "count": "action"
            if most == 1
            else f"up to {most} actions joined by {ACTION_SEPARATOR}",
            "thoughts": text_of(self.env, "thoughts"),
            "think": opened,
            "end_think": closed,
        }

    @property
    def _form(self) -> str:
        wording = self.wording
        text = wording.with_thinking if self.form.thinking else wording.without_thinking
        return joined(fill_parts(text, self._common))


def worked_examples(env: Env, form: ReplyFormat, count: int) -> tuple[tuple[str, str], ...]:
    """The expert's first replies to ``count`` tasks that begin differently.

    None where images are shown, or where an environment of someone else's has no expert.
    """
    found: dict[str, str] = {}
    tried = 0 if env.shows_images else EXAMPLES_TRIED * count
    for seed in range(EXAMPLE_SEED, EXAMPLE_SEED + tried):
        try:
            episode = start_episode(env, seed, 0)
            plan = episode.expert()[: form.max_actions]
            reasoning = episode.explain(plan, stream("example", env.kind, seed))
            if plan:
                reply = render_reply(reasoning, plan, replace(form, prefilled=False))
                found[episode.observation] = reply
        except MissingMethod as error:
            _say_once(f"{error}: its prompts have no worked example")
            break
        except EnvError:  # whoever plays the environment is told; an example is not needed
            break
        if len(found) == count:
            break
    return tuple(found.items())


@cache
def _say_once(line: str) -> None:
    logger.warning("%s", line)


def template_texts(file: Path) -> dict[str, str]:
    """``system`` and ``turn`` of a template file."""
    try:
        texts = read_toml_file(file)
    except OSError as error:
        raise ValueError(f"template {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"template {file} is not valid TOML: {error}") from error
    odd = [name for name, text in texts.items() if name not in ("system", "turn")]
    if odd or not texts or not all(isinstance(text, str) for text in texts.values()):
        found = ", ".join(texts) or "nothing"
        raise ValueError(f"template {file} must hold the texts `system` and `turn`, found {found}")
    return texts


def answer_phrase(env: Env, most: int) -> str:
    """What goes between the tags of an answer, in words that cannot pass for one."""
    forms = action_forms_of(env)
    if not forms:
        return text_of(env, "answer_form")
    listed = ", ".join(forms)
    if most == 1:
        return f"one of: {listed}"
    count, many = ("one or two", "two") if most == 2 else (f"one to {most}", "several")
    return f"{count} of: {listed}; {many} are joined by {ACTION_SEPARATOR}"
