"""check_env: the environment contract as a suite that anyone can run on their own environment."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ragen2.envs.base import HELD_OUT_SEEDS, Env, Step, image_name
from ragen2.envs.check.process_replay import ProcessReplay, record, replay_there
from ragen2.envs.check.transcript import (
    PlayedAction,
    Transcript,
    expert_play,
    legal_action,
    odd_play,
    random_play,
    replay,
    take,
)
from ragen2.envs.guard import action_forms_of, missing_methods, start_episode, text_of
from ragen2.errors import EnvError, FailedCheck, RagenError
from ragen2.seeding import stream

STEP_SECONDS = 10.0
"""A step that takes longer counts as hanging."""
SEEDS_ELSEWHERE = 3
"""How many seeds another process plays and gives every odd action; the others get a few here."""
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
TOLERANCE = 1e-6
SHOWN = ("instruction", "rules", "thoughts", "answer_form")
"""Texts of an environment that prompts are made of."""

Claim = Callable[["Trial"], str]
SeedClaim = Callable[["Trial", int], str]


@dataclass(frozen=True, slots=True)
class Trial:
    """One environment under check; plays are kept, as several claims look at the same ones."""

    env: Env
    seeds: tuple[int, ...]
    _plays: dict[tuple[str, int], Transcript] = field(default_factory=dict)
    _elsewhere: list[ProcessReplay] = field(default_factory=list)
    _missing: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def elsewhere(self) -> ProcessReplay:
        """The first seeds in another process, which is started once."""
        if not self._elsewhere:
            seeds = self.seeds[:SEEDS_ELSEWHERE]
            self._elsewhere.append(replay_there(self.env, seeds, STEP_SECONDS))
        return self._elsewhere[0]

    @property
    def missing(self) -> tuple[str, ...]:
        """Optional methods that its episodes lack; asked for after another process has started some."""
        if not self._missing:
            self._missing.append(missing_methods(self.env))
        return self._missing[0]

    def random(self, seed: int) -> Transcript:
        """A play of random legal actions, under luck 3."""
        if ("random", seed) not in self._plays:
            self._plays["random", seed] = random_play(self.env, seed, 3)
        return self._plays["random", seed]

    def expert(self, seed: int) -> Transcript:
        """A play of the expert, under luck 0."""
        if ("expert", seed) not in self._plays:
            self._plays["expert", seed] = expert_play(self.env, seed, 0)
        return self._plays["expert", seed]

    def odd(self, seed: int) -> Transcript:
        """A few odd actions in a row, others for each seed."""
        if ("odd", seed) not in self._plays:
            self._plays["odd", seed] = odd_play(self.env, seed)
        return self._plays["odd", seed]

    def plays(self, seed: int) -> dict[str, Transcript]:
        """Those that the environment can play; a few odd actions always."""
        found: dict[str, Transcript] = {}
        if "random_action" not in self.missing:
            found["random"] = self.random(seed)
        if "expert" not in self.missing:
            found["expert"] = self.expert(seed)
        return found | {"odd": self.odd(seed)}


LUCK = {"random": 3, "expert": 0, "odd": 0}
"""Of each play."""


def some_seeds(count: int) -> list[int]:
    """So many seeds, half of them held out: an environment may have few held-out tasks."""
    half = count // 2
    return [*range(count - half), *range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + half)]


def check_env(env: Env, seeds: Iterable[int] | None = None) -> list[str]:
    """Run the whole contract; return the claims that hold, or raise at the first that does not.

    The error is a ``FailedCheck`` that names the claim, the seed and what was found. Twenty seeds are
    tried where none are given. Claims about optional methods that are missing are left out
    (``unchecked_claims``).
    """
    trial = Trial(env, tuple(some_seeds(20) if seeds is None else seeds))
    if not trial.seeds:
        raise EnvError(f"{env.kind} cannot be checked on no seeds; give at least one")
    holding: list[str] = []
    for claim, find_problem in _CLAIMS.items():
        if claim in _NEEDS and set(_NEEDS[claim]) & set(trial.missing):
            continue
        problem = find_problem(trial)
        if problem:
            raise FailedCheck(f"{env.kind}: not true that {claim}: {problem}")
        holding.append(claim)
    return holding


def unchecked_claims(env: Env) -> dict[str, str]:
    """Claims about optional methods that are missing, each with which."""
    missing = missing_methods(env)
    found = {claim: [one for one in needs if one in missing] for claim, needs in _NEEDS.items()}
    return {
        claim: f"{env.kind} has no {', no '.join(lacking)}"
        for claim, lacking in found.items()
        if lacking
    }


def expert_steps(env: Env, seed: int, luck: int = 0) -> list[Step]:
    """What each action of the expert did, until the end or ``max_actions``."""
    return [line.step for line in expert_play(env, seed, luck).lines]


def _on_every_seed(find: SeedClaim) -> Claim:
    """The same question for every seed; an exception is an answer too."""

    def find_problem(trial: Trial) -> str:
        for seed in trial.seeds:
            try:
                problem = find(trial, seed)
            except RagenError:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever an environment raises is the finding
                problem = f"it raised {type(error).__name__}: {error}"
            if problem:
                return f"seed {seed}: {problem}"
        return ""

    return find_problem


def _prompt(env: Env, seed: int, luck: int) -> tuple[str, str]:
    """What a member is shown first: text, and name of the image."""
    episode = env.start(seed, luck)
    return episode.observation, image_name(episode)


def _differs_elsewhere(trial: Trial) -> str:
    there = trial.elsewhere
    if there.records_problem:
        return there.records_problem
    for seed in trial.seeds[:SEEDS_ELSEWHERE]:
        # Through JSON, as the other process did: lists for tuples, the same floats.
        here = json.loads(json.dumps(record(trial.env, seed)))
        for name, mine, other in zip(
            here, here.values(), there.records[seed].values(), strict=True
        ):
            if mine != other:
                return f"seed {seed}: {name} is {str(mine)[:60]!r} here, {str(other)[:60]!r} there"
    return ""


def _odd_action_breaks(trial: Trial) -> str:
    return trial.elsewhere.odd_action_problem


def _odd_action_matters(trial: Trial, seed: int) -> str:
    for line in trial.odd(seed).lines:
        shown = ascii(line.action[:20])
        if not math.isfinite(line.step.reward):
            return f"reward {line.step.reward} for {shown}"
        if not isinstance(line.observation, str):
            return f"the observation after {shown} is {type(line.observation).__name__}, not text"
        if line.step.effective and not line.step.valid:
            return f"{shown} is not valid, yet effective"
    return ""


def _differs_from_itself(trial: Trial, seed: int) -> str:
    name, played = next(iter(trial.plays(seed).items()))
    again = replay(trial.env.start(seed, LUCK[name]), played)
    if played.first_observation != again.first_observation:
        return "first observations differ"
    if played.first_image != again.first_image:
        return "first images differ"
    return "" if played == again else "two plays differ"


def _luck_shows(trial: Trial, seed: int) -> str:
    prompts = {_prompt(trial.env, seed, luck) for luck in range(4)}
    return "" if len(prompts) == 1 else f"{len(prompts)} prompts for four members"


def _out_of_range(trial: Trial, seed: int) -> str:
    low, high = trial.env.reward_range
    for name, play in trial.plays(seed).items():
        total = play.total_reward
        if not low - TOLERANCE <= total <= high + TOLERANCE:
            return f"{name} play returns {total}, not in [{low}, {high}]"
    return ""


def _goes_on_after_the_end(trial: Trial, seed: int) -> str:
    for name, played in trial.plays(seed).items():
        if not played.done or name == "odd":
            continue
        episode = trial.env.start(seed, LUCK[name])
        replay(episode, played)
        after = episode.step(played.lines[0].action)
        if not after.done or after.reward != 0.0:
            return f"a step after the end gives {after}"
        if "expert" not in trial.missing and episode.expert():
            return f"the expert still wants {episode.expert()[0]!r}"
    return ""


def _is_slow(trial: Trial, seed: int) -> str:
    for play in trial.plays(seed).values():
        for line in play.lines:
            if line.seconds > STEP_SECONDS:
                return f"{line.action[:20]!a} took {line.seconds:.1f} seconds"
    return ""


def _cares_for_spaces(trial: Trial, seed: int) -> str:
    legal = legal_action(trial.env, seed)
    if not legal:  # nobody names one
        return ""
    plain = take(trial.env.start(seed, 0), legal)
    spaced = take(trial.env.start(seed, 0), f"  {legal} \n")
    if plain.step != spaced.step or _shown(plain) != _shown(spaced):
        return f"{legal[:40]!r} between spaces does something else"
    if take(trial.env.start(seed, 0), legal.upper()).step.valid != plain.step.valid:
        return f"{legal[:40]!r} in capitals is valid: {not plain.step.valid}"
    return ""


def _shown(line: PlayedAction) -> tuple[str, str]:
    return line.observation, line.image


def _cannot_be_written(trial: Trial, seed: int) -> str:
    episode = trial.env.start(seed, 0)
    plan = episode.expert()
    if not plan:
        return "the expert has no plan at the start"
    for action in (*plan, legal_action(trial.env, seed) or plan[0]):
        parts = isinstance(action, str) and "||" in action and not trial.env.one_action
        if not isinstance(action, str) or not action.strip() or parts:
            return f"{action!r} cannot stand in a reply"
    reasoning = episode.explain(plan[:2], stream("check", "explain"))
    if not reasoning.strip() or any(tag in reasoning for tag in TAGS):
        return f"the reasoning {reasoning!r} cannot stand between tags"
    return ""


def _picture_is_wrong(trial: Trial, seed: int) -> str:
    picture = trial.env.start(seed, 0).image()
    if picture is None:
        return ""
    is_rgb = picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8
    return "" if is_rgb else f"it has shape {picture.shape} and type {picture.dtype}"


def _image_is_not_shown(trial: Trial, seed: int) -> str:
    is_due = trial.env.shows_images
    for play in trial.plays(seed).values():
        shown = [play.first_image, *(line.image for line in play.lines)]
        if is_due and not all(shown):
            return f"shown_image is None in state {shown.index('')} of a play"
        if not is_due and any(shown):
            return "an image is shown, but shows_images is False"
    return ""


def _expert_fails(trial: Trial) -> str:
    env = trial.env
    plays = [trial.expert(seed) for seed in trial.seeds]
    solved = sum(play.solved for play in plays)
    if not solved:
        return f"it solves none of {len(plays)} tasks"
    best = max(play.total_reward for play in plays)
    if env.reward_kind == "binary" and abs(best - env.reward_range[1]) > TOLERANCE:
        return f"its best return is {best}, not {env.reward_range[1]}"
    if env.stochastic:
        return ""
    if solved < len(plays):
        seed = next(s for s, play in zip(trial.seeds, plays, strict=True) if not play.solved)
        return f"it solves {solved} of {len(plays)} deterministic tasks, not seed {seed}"
    if "random_action" in trial.missing:
        return ""
    for seed, play in zip(trial.seeds, plays, strict=True):
        other = trial.random(seed).total_reward
        if other > play.total_reward + TOLERANCE:
            return f"seed {seed}: it returns {play.total_reward}, a random player {other}"
    return ""


def _reasoning_is_one_text(trial: Trial) -> str:
    prompts, texts = set(), set()
    for seed in trial.seeds:
        episode = trial.env.start(seed, 0)
        prompts.add(_prompt(trial.env, seed, 0))
        texts.add(episode.explain(episode.expert()[:2], stream("check", "explain")))
    return "" if len(texts) > 1 or len(prompts) == 1 else f"{len(prompts)} prompts, one text"


def _cannot_be_shown(trial: Trial, seed: int) -> str:
    try:
        for name in SHOWN:
            text_of(trial.env, name)
        action_forms_of(trial.env)
        start_episode(trial.env, seed, 0).observation  # noqa: B018 - what is read is checked
    except EnvError as error:
        return str(error)
    return ""


def _no_example(trial: Trial) -> str:
    return "" if "<answer>" in trial.env.instruction else "there is no <answer>..</answer> in it"


_CLAIMS: dict[str, Claim] = {
    "another process plays the same episodes": _differs_elsewhere,
    "odd actions neither raise nor hang": _odd_action_breaks,
    "odd actions are survived": _on_every_seed(_odd_action_matters),
    "the same seed and luck give the same episode": _on_every_seed(_differs_from_itself),
    "the prompt depends on the seed, not on luck": _on_every_seed(_luck_shows),
    "every play stays in the stated reward range": _on_every_seed(_out_of_range),
    "an episode that is done stays done and pays nothing": _on_every_seed(_goes_on_after_the_end),
    f"a step takes at most {STEP_SECONDS:g} seconds": _on_every_seed(_is_slow),
    "case and spaces around an action do not matter": _on_every_seed(_cares_for_spaces),
    "actions and reasoning can stand in a reply": _on_every_seed(_cannot_be_written),
    "a picture is height x width x 3 bytes": _on_every_seed(_picture_is_wrong),
    "an image is shown in every state, or in none": _on_every_seed(_image_is_not_shown),
    "the expert solves the task and none does better": _expert_fails,
    "the reasoning follows the prompt": _reasoning_is_one_text,
    "prompts can be written": _on_every_seed(_cannot_be_shown),
    "the instruction shows a worked reply": _no_example,
}
"""What an environment promises. The other process comes first: it survives what hangs or exits."""
_NEEDS: dict[str, tuple[str, ...]] = {
    "actions and reasoning can stand in a reply": ("expert", "explain"),
    "the expert solves the task and none does better": ("expert",),
    "the reasoning follows the prompt": ("expert", "explain"),
}
"""Optional methods that a claim is about."""
