"""Chat pieces: start + sampled ids + bridge are the very ids the model's own template would give."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.backends.tokenizer import PLAIN_TEMPLATE, TemplateTokenizer
from ragen2.envs import FrozenLake
from ragen2.errors import ModelError
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.prompts import PromptSettings
from ragen2.types import Completion, Finish, Message

LLAMA_3 = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ '<<SYS>>\\n' + message['content'] + '\\n<</SYS>>\\n' }}"
    "{% elif message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' <|eot_id|>' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for message in messages %}{{ '<|start_header_id|>' "
    "+ ('model' if message['role'] == 'assistant' else 'user')"
    " + '<|end_header_id|>' + message['content'] | trim + '<|eot_id|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>model<|end_header_id|>' }}{% endif %}"
)
DEAF = (
    "{% for message in messages if message['role'] != 'system' %}"
    "{{ message['role'] + '<|end_header_id|>' + message['content'] + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant<|end_header_id|>' }}{% endif %}"
)
"""Leaves system messages out without a word."""
ADDED = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

SYSTEM = Message("system", "Cross the lake.")
USERS = [Message("user", f"  You (0,{i}) Goal (3,1)\nActions left {9 - i}\n") for i in range(3)]
REPLIES = ["goal is below</think><answer>Down || Down</answer>", "so left</think><answer>Left"]
TAKES_SYSTEM = {"embedded": True, "llama_3": True, "gemma": False, "deaf": False}


@pytest.fixture(scope="module")
def tokenizers(embedded: Any) -> dict[str, TemplateTokenizer]:
    def using(template: str | None) -> TemplateTokenizer:
        hf = copy.deepcopy(embedded[1].hf)
        hf.add_special_tokens({"additional_special_tokens": ADDED})
        hf.chat_template = template
        return TemplateTokenizer(hf, [hf.convert_tokens_to_ids("<|eot_id|>")])

    templates = {"llama_3": LLAMA_3, "llama_2": LLAMA_2, "gemma": GEMMA, "deaf": DEAF, "none": None}
    return {"embedded": embedded[1]} | {name: using(text) for name, text in templates.items()}


def rendered(tokenizer: TemplateTokenizer, *, takes_system: bool) -> str:
    """The whole dialogue by one call of the template."""
    first = USERS[0].content
    turns = [{"role": "system", "content": SYSTEM.content}, {"role": "user", "content": first}]
    if not takes_system:
        turns = [{"role": "user", "content": f"{SYSTEM.content}\n\n{first}"}]
    for reply, user in zip(REPLIES, USERS[1:], strict=True):
        turns.append({"role": "assistant", "content": reply})
        turns.append({"role": "user", "content": user.content})
    return str(tokenizer.hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def pieces(tokenizer: TemplateTokenizer, *, sampled_eos: bool) -> list[int]:
    """The same dialogue as play builds it, with or without sampled ends of message."""
    end = [next(iter(tokenizer.eos_ids))] if sampled_eos else []
    ids = tokenizer.start([SYSTEM, USERS[0]])
    for reply, user in zip(REPLIES, USERS[1:], strict=True):
        ids += [*tokenizer.encode(reply), *end, *tokenizer.bridge(user, after_eos=sampled_eos)]
    return ids


@pytest.mark.parametrize("sampled_eos", [False, True])
@pytest.mark.parametrize("name", TAKES_SYSTEM)
def test_pieces_are_token_for_token_what_the_template_gives(
    tokenizers: dict[str, TemplateTokenizer], name: str, sampled_eos: bool
) -> None:
    tokenizer = tokenizers[name]
    whole = tokenizer.encode(rendered(tokenizer, takes_system=TAKES_SYSTEM[name]))
    assert pieces(tokenizer, sampled_eos=sampled_eos) == whole


def test_without_a_template_pieces_read_as_one_plain_dialogue(
    tokenizers: dict[str, TemplateTokenizer],
) -> None:
    tokenizer = tokenizers["none"]
    text = tokenizer.hf.decode(pieces(tokenizer, sampled_eos=False))
    assert text == rendered(tokenizer, takes_system=True)


@pytest.mark.parametrize("name", ["embedded", "llama_3", "llama_2", "gemma", "deaf"])
def test_a_sampled_end_of_message_is_not_written_twice(
    tokenizers: dict[str, TemplateTokenizer], name: str
) -> None:
    tokenizer = tokenizers[name]
    end = next(iter(tokenizer.eos_ids))
    before = tokenizer.bridge(USERS[1], after_eos=False)
    after = tokenizer.bridge(USERS[1], after_eos=True)
    assert before.count(end) == after.count(end) + 1
    assert before[before.index(end) + 1 :] == after


def test_without_a_template_a_sampled_end_of_message_stays_and_nothing_is_lost(
    tokenizers: dict[str, TemplateTokenizer],
) -> None:
    tokenizer = tokenizers["none"]
    assert tokenizer.hf.chat_template == PLAIN_TEMPLATE
    bridge = tokenizer.bridge(Message("user", "next"), after_eos=True)
    assert tokenizer.hf.decode(bridge) == "\nUser: next\nAssistant: "


@pytest.mark.parametrize("name", ["gemma", "deaf"])
def test_a_template_without_system_role_gets_the_rules_in_the_first_user_turn(
    tokenizers: dict[str, TemplateTokenizer], name: str
) -> None:
    text = tokenizers[name].hf.decode(tokenizers[name].start([SYSTEM, Message("user", "go")]))
    assert "Cross the lake.\n\ngo" in text


def test_a_template_that_cannot_be_rendered_is_a_model_error(embedded: Any) -> None:
    hf = copy.deepcopy(embedded[1].hf)
    hf.chat_template = "{{ raise_exception('tools only') }}"
    with pytest.raises(ModelError, match="chat template of this model cannot be rendered: tools"):
        TemplateTokenizer(hf, [2])


@given(text=st.text(max_size=80))
def test_any_user_text_goes_through_a_bridge_unchanged(embedded: Any, text: str) -> None:
    tokenizer = embedded[1]
    ids = tokenizer.bridge(Message("user", text), after_eos=True)
    assert (
        tokenizer.hf.decode(ids) == f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )


THINKING = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>'"
    " + message['content'] + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% elif opens %}{{ '<think>\\n' }}{% endif %}{% endif %}"
)
"""Like those of models with a thinking mode that a caller may switch off."""


@pytest.fixture
def thinking(embedded: Any) -> TemplateTokenizer:
    hf = copy.deepcopy(embedded[1].hf)
    hf.add_special_tokens({"additional_special_tokens": ADDED})
    hf.chat_template = THINKING
    return TemplateTokenizer(hf, [hf.convert_tokens_to_ids("<|eot_id|>")])


def test_arguments_go_to_the_template_and_to_no_other_tokenizer(thinking):
    plain = thinking.render(USERS[:1])
    off = thinking.with_arguments({"enable_thinking": False})
    assert off.render(USERS[:1]) == plain + "<think>\n\n</think>\n\n"
    assert off.start(USERS[:1]) == off.encode(off.render(USERS[:1]))
    assert off.bridge(USERS[1], after_eos=True)[-3:] == off.start(USERS[:1])[-3:]
    assert thinking.render(USERS[:1]) == plain


@pytest.mark.parametrize("opens", [True, False])
def test_a_reply_is_opened_once_whoever_opens_it(thinking, opens):
    settings = PromptSettings(style="reference", template_arguments={"opens": opens})
    seen: list[str] = []
    policy = ScriptedPolicy(lambda prompt, rng: "")
    policy.tokenizer = thinking
    policy.sample = lambda requests, params: _replies(thinking, requests, seen)
    env = FrozenLake(slip=0.0, max_turns=2)
    (group,) = play(env, policy, [[Task(3, 0)]], Rollout(), key=(), prompt=settings)
    assert all(turn.reply.valid for turn in group.trajectories[0].turns)
    assert all(prompt.rstrip().endswith("<think>") for prompt in seen)
    assert all(
        not prompt.rstrip()[: -len("<think>")].rstrip().endswith("<think>") for prompt in seen
    )


def test_a_model_that_thinks_by_itself_opens_its_own_reply(thinking):
    seen: list[str] = []
    policy = ScriptedPolicy(lambda prompt, rng: "")
    policy.tokenizer = thinking
    text = "<think>x</think><answer>Up</answer>"
    policy.sample = lambda requests, params: _replies(thinking, requests, seen, text)
    native = PromptSettings(style="native")
    env = FrozenLake(slip=0.0, max_turns=1)
    (group,) = play(env, policy, [[Task(3, 0)]], Rollout(), key=(), prompt=native)
    turn = group.trajectories[0].turns[0]
    assert turn.reply.valid
    assert thinking.decode(turn.reasoning_ids_T.tolist()) == "x"
    assert seen[0].endswith("<|end_header_id|>")
    plain = Rollout(thinking=False)
    policy.sample = lambda requests, params: _replies(thinking, requests, seen, "Up</answer>")
    (group,) = play(env, policy, [[Task(3, 0)]], plain, key=(), prompt=native)
    assert group.trajectories[0].turns[0].reply.valid
    assert seen[-1].endswith("</think>\n\n<answer>")


def _replies(tokenizer, requests, seen, text="x</think><answer>Up</answer>"):
    seen.extend(tokenizer.hf.decode(one.prompt_ids_T.tolist()) for one in requests)
    ids = np.array(tokenizer.encode(text), dtype=np.int64)
    return [Completion(ids, np.zeros(len(ids)), text, Finish.STOP) for _ in requests]
