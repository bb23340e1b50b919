"""What an agent reads: every style is true to the settings, and no part can be copied as an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from ragen2.backends.scripted import ByteTokenizer
from ragen2.config import RunConfig
from ragen2.envs import Bandit, Env, FrozenLake, make
from ragen2.rollout.context import opened_by_template, prompt_ids
from ragen2.rollout.prompts import (
    EXAMPLE_SEED,
    PromptSettings,
    PromptWriter,
    TurnState,
    taught_prompt,
)
from ragen2.rollout.reply import parse_reply
from ragen2.rollout.settings import Rollout
from ragen2.rollout.wording import fill_parts, joined
from ragen2.types import Completion, Finish, Message

BRIEF = PromptSettings(style="brief")
REFERENCE = PromptSettings(style="reference")
NATIVE = PromptSettings(style="native")
KINDS = sorted(Env.kinds())
OURS = [kind for kind in KINDS if Env.find(kind).__module__.startswith("ragen2.")]


def writer(env: Env, prompt: PromptSettings, **rollout: object) -> PromptWriter:
    return PromptWriter.of(env, Rollout(**rollout), prompt)


def test_the_brief_style_is_the_instruction_and_the_form():
    bandit = Bandit()
    assert writer(bandit, BRIEF).opening("").system == Message(
        "system", f"{bandit.instruction}\nReply <think>why</think><answer>action</answer>."
    )
    lake = FrozenLake()
    form = "Reply <think>why</think><answer>up to 2 actions joined by ||</answer>."
    assert writer(lake, BRIEF).opening("").system.content == f"{lake.instruction}\n{form}"
    plain = writer(lake, BRIEF, thinking=False).opening("").system.content
    assert plain.endswith("\nReply <answer>up to 2 actions joined by ||</answer>.")


def test_a_brief_turn_is_the_observation_and_what_is_left():
    shown = writer(FrozenLake(), BRIEF).turn(TurnState("You (0,0)", 3, reward=0.5))
    assert shown == Message("user", "You (0,0)\nActions left 3")


@pytest.mark.parametrize("prompt", [BRIEF, REFERENCE, NATIVE])
def test_a_problem_is_told_before_the_observation(prompt):
    shown = writer(FrozenLake(), prompt).turn(TurnState("You (0,0)", 3, problem="no <answer>"))
    lines = shown.content.split("\n")
    assert lines[0] == "Your last reply was not valid: no <answer>."
    assert lines.index("You (0,0)") > 0


def test_a_turn_of_the_reference_style_tells_number_reward_state_and_budget():
    first = writer(FrozenLake(), REFERENCE).turn(TurnState("You (0,0)", 10)).content
    assert first == "Turn 1 of 5.\nYou (0,0)\nYou may take 10 more actions."
    third = TurnState("You (0,1)", 1, turn=3, reward=-0.2)
    assert writer(FrozenLake(), REFERENCE).turn(third).content == (
        "The last turn earned -0.2.\nTurn 3 of 5.\nYou (0,1)\nYou may take 1 more action."
    )


def test_an_environment_of_one_action_has_no_budget_and_one_of_one_turn_no_number():
    shown = writer(make("Countdown", max_turns=1), REFERENCE).turn(TurnState("Numbers: 1 2", 1))
    assert shown.content == "Numbers: 1 2"


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("prompt", [REFERENCE, NATIVE], ids=["reference", "native"])
def test_rules_and_actions_of_every_environment_are_in_the_system_message(kind, prompt):
    env = make(kind)
    text = writer(env, prompt).first(200_000)[0].content
    assert env.rules in text
    assert "Example:" not in env.rules
    assert "<answer>" not in env.rules
    for form in env.action_forms:
        assert form in text
    if not env.action_forms:
        assert f"<answer> {env.answer_form} </answer>" in text


@pytest.mark.parametrize("kind", OURS)
def test_no_environment_of_one_action_is_told_of_several(kind):
    env = make(kind)
    most = Rollout().most_actions(env)
    system, *exchange, _ = (one.content for one in writer(env, REFERENCE).first(200_000))
    assert ("joined by ||" in system) == (most > 1 and bool(env.action_forms))
    assert most > 1 or "||" not in "".join(exchange)


@pytest.mark.parametrize("kind", OURS)
def test_the_example_is_a_valid_reply_to_a_task_that_is_not_played(kind):
    env = make(kind)
    made = writer(env, REFERENCE)
    system, shown, reply, user = made.first(200_000)
    assert [one.role for one in (system, shown, reply, user)] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert shown.content != user.content
    form = replace(made.form, prefilled=False)
    ids = np.zeros(0, dtype=np.int64)
    read = parse_reply(Completion(ids, np.zeros(0), reply.content, Finish.EOS), form)
    assert read.valid
    episode = env.start(EXAMPLE_SEED, 0)
    if shown.content.count(episode.observation):
        assert all(episode.step(action).valid for action in read.actions)
    assert made.first(200_001)[:3] == (system, shown, reply)


def test_a_task_is_never_its_own_example():
    env = FrozenLake()
    ours, another = writer(env, REFERENCE).first(EXAMPLE_SEED), writer(env, REFERENCE).first(3)
    shown = env.start(EXAMPLE_SEED, 0).observation
    assert shown in another[1].content
    assert shown not in ours[1].content
    assert len(ours) == len(another) == 4


def test_the_number_of_examples_is_a_setting():
    env = FrozenLake()
    assert len(writer(env, PromptSettings(style="reference", examples=0)).first(3)) == 2
    assert len(writer(env, PromptSettings(style="brief", examples=3)).first(3)) == 8


def test_images_have_no_example():
    assert writer(FrozenLake(observation="image"), REFERENCE).opening("").exchanges == ()


def test_replies_of_examples_are_carried_over_as_they_are():
    made = writer(FrozenLake(), REFERENCE)
    opening = made.opening("")
    ((asked, reply),) = opening.exchanges
    user, tokenizer = Message("user", "now"), ByteTokenizer()
    ids = prompt_ids(tokenizer, opening, [user], [], first=0, prefill_ids=[7])
    before = [*tokenizer.start([opening.system, asked]), *tokenizer.encode(reply)]
    assert ids == [*before, *tokenizer.bridge(user, after_eos=False), 7]


def test_words_of_ones_own_take_the_place_of_the_styles():
    own = PromptSettings(
        system="Rules: {rules}\nNow: {answer}", turn="{observation} ({actions_left})"
    )
    made = writer(FrozenLake(), own)
    assert made.turn(TurnState("You", 4)).content == "You (4)"
    assert made.opening("").system.content.startswith("Rules: You walk on a frozen lake.")


def test_an_unknown_name_in_a_text_is_refused_with_a_suggestion():
    with pytest.raises(
        ValidationError, match=r"\{observaton\} is not known here; did you mean 'observation'"
    ):
        PromptSettings(turn="{observaton}")
    with pytest.raises(ValidationError, match="known:"):
        PromptSettings(system="{observation}")


def test_braces_that_are_no_names_stay():
    assert joined(fill_parts("{a} {1: 2} {}", {"a": "{b}"})) == "{b} {1: 2} {}"


def test_a_line_whose_names_are_all_empty_is_left_out():
    found = fill_parts("x\n{a}\n{a} and {b}\n{a}{c}", {"a": "", "b": "B", "c": ""})
    assert joined(found) == "x\n and B"
    assert ("b", "B") in found


def test_a_template_file_is_read_once_and_kept_with_the_run(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('turn = "{observation}!"')
    settings = PromptSettings(template=str(file))
    file.unlink()
    assert (settings.turn, settings.template) == ("{observation}!", "")
    assert PromptSettings(**settings.model_dump()) == settings


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("turn = 3", "must hold the texts `system` and `turn`, found turn"),
        ('turns = "x"', "must hold the texts `system` and `turn`, found turns"),
        ("", "found nothing"),
        ("turn = ", "is not valid TOML"),
    ],
)
def test_a_template_file_that_is_none_is_refused(content, told, tmp_path: Path):
    (tmp_path / "mine.toml").write_text(content)
    with pytest.raises(ValidationError, match=told):
        PromptSettings(template=str(tmp_path / "mine.toml"))
    with pytest.raises(ValidationError, match="cannot be read"):
        PromptSettings(template=str(tmp_path / "absent.toml"))


def test_tags_must_be_two():
    with pytest.raises(ValidationError, match="an opening and a closing tag"):
        PromptSettings(think_tags=("<t>", "<t>"))


def test_the_embedded_models_are_asked_as_they_were_taught():
    assert RunConfig().prompt.style == "brief"
    assert taught_prompt("ragen2-tiny-vl") == {"style": "brief"}


def test_a_model_of_anyone_else_is_asked_in_the_reference_style():
    assert RunConfig(model={"path": "org/model"}).prompt.style == "reference"
    kept = RunConfig(model={"path": "org/model"}, prompt={"prefill": False}).prompt
    assert (kept.style, kept.prefill) == ("reference", False)


def test_a_model_goes_on_with_the_prompt_it_was_trained_with(tmp_path: Path):
    step = tmp_path / "checkpoints" / "step_000004"
    step.mkdir(parents=True)
    (tmp_path / "run.toml").write_text("[prompt]\nstyle = 'native'\nprefill = false\n")
    for path in (tmp_path, step):
        found = RunConfig(model={"path": str(path)}).prompt
        assert (found.style, found.prefill) == ("native", False)
    assert RunConfig(model={"path": str(step)}, prompt={"style": "brief"}).prompt.style == "brief"
    (tmp_path / "run.toml").write_text("seed = 1\n")  # of a version with one style
    assert RunConfig(model={"path": str(tmp_path)}).prompt.style == "brief"


class Opening(ByteTokenizer):
    """A template that opens the reasoning itself, and takes arguments."""

    def start(self, messages):
        return [*super().start(messages), *self.encode("<think>\n")]


def test_a_template_that_opens_the_reasoning_is_seen():
    assert opened_by_template(Opening(), "<think>")
    assert not opened_by_template(ByteTokenizer(), "<think>")
    assert not opened_by_template(Opening(), "<answer>")


def test_settings_can_be_written_and_read():
    settings = PromptSettings(style="native", template_arguments={"enable_thinking": False})
    assert PromptSettings(**json.loads(settings.model_dump_json())) == settings
