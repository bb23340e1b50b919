"""Completion text -> Reply: the reasoning Z and the actions A inside what the model wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ragen2.policy import ChatTokenizer
from ragen2.types import Completion, Finish, IntArray, Reply

ACTION_SEPARATOR = "||"
THINK_TAGS = ("<think>", "</think>")
ANSWER_TAGS = ("<answer>", "</answer>")
_SEPARATORS = re.compile(r"\|\|?|[,;\n]|\band then\b|\bthen\b", re.IGNORECASE)
_NUMBERING = re.compile(r"^(?:\d+\s*[.):]\s*|[-•]\s*|\*\s+)")
_QUOTES = {"'": "'", '"': '"', "`": "`", "[": "]", "(": ")", "<": ">", "*": "*"}
_VERBS = re.compile(r"^(?:i )?(?:go|move|step|walk|push|slide|turn) ")


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What a reply must look like, and how its answer is read."""

    thinking: bool = True
    max_actions: int = 2
    splits: bool = True
    """Whether ``||`` parts an answer into actions; else it is one action as a whole."""
    prefilled: bool = True
    """Whether the prompt opens the reply; where it does not, the model writes the first tag itself."""
    think_tags: tuple[str, str] = THINK_TAGS
    names: Mapping[str, str] = field(default_factory=dict)
    """Actions by the words that stand for them, in lower case; empty where actions are free text."""
    refuses_surplus: bool = False
    """Whether more actions than are taken make a reply invalid."""

    @property
    def opening(self) -> str:
        """The tag that a reply begins with."""
        return self.think_tags[0] if self.thinking else ANSWER_TAGS[0]

    @property
    def prefill(self) -> str:
        """What the prompt opens the assistant's turn with; part of the prompt, never sampled."""
        return self.opening if self.prefilled else ""


def parse_reply(completion: Completion, form: ReplyFormat) -> Reply:
    """Read reasoning and actions; a malformed reply keeps what is there and says what is wrong.

    Text before, between and after the two parts is passed over.
    """
    text = form.prefill + completion.text
    parts = _parts(text, form)
    if parts is None:
        return Reply(_open_reasoning(text, form), (), _problem(text, completion, form))
    (start, end), (answer_start, answer_end) = parts
    actions = read_actions(text[answer_start:answer_end], form)
    problem = _action_problem(actions, form)
    return Reply(text[start:end].strip(), actions[: form.max_actions], problem)


def read_actions(answer: str, form: ReplyFormat) -> tuple[str, ...]:
    """The actions that an answer names, in order.

    Where names are fixed, ``1. "up", then Right.`` is Up and Right; what is none of them stays as written.
    """
    if not form.splits:
        return (answer.strip(),) if answer.strip() else ()
    if not form.names:
        pieces = (piece.strip() for piece in answer.split(ACTION_SEPARATOR))
        return tuple(piece for piece in pieces if piece)
    found: list[str] = []
    for piece in _SEPARATORS.split(answer):
        found += _named(piece.strip(), form.names)
    return tuple(found)


def reasoning_span(
    completion: Completion, form: ReplyFormat, tokenizer: ChatTokenizer
) -> tuple[int, int]:
    """Half-open token range of the reasoning; a token that straddles a tag belongs to the tag.

    It starts at the first sampled token where the prompt has opened the reply, and ends before the token in
    which the closing tag begins (or at the end, when that is missing).
    """
    text = form.prefill + completion.text
    start_character = _reasoning_start(text, form) - len(form.prefill)
    if not form.thinking or start_character < 0:
        return 0, 0
    ids_T = completion.ids_T
    start = tokens_around(ids_T, start_character, tokenizer)
    end_character = completion.text.find(form.think_tags[1], start_character)
    if end_character < 0:
        is_ended = completion.finish is Finish.EOS
        return start, max(start, len(ids_T) - int(is_ended))
    return start, max(start, tokens_within(ids_T, end_character, tokenizer))


def action_span(
    completion: Completion, form: ReplyFormat, tokenizer: ChatTokenizer
) -> tuple[int, int]:
    """Half-open token range of the text of the answer; ``(0, 0)`` when no action was read.

    It starts after the token in which ``<answer>`` ends and stops before the one in which
    ``</answer>`` begins: as for the reasoning, a token that straddles a tag belongs to the tag.
    """
    text = form.prefill + completion.text
    parts = _parts(text, form)
    if parts is None or not read_actions(text[slice(*parts[1])], form):
        return 0, 0
    start_character, end_character = (place - len(form.prefill) for place in parts[1])
    start = tokens_around(completion.ids_T, start_character, tokenizer)
    end = tokens_within(completion.ids_T, end_character, tokenizer)
    return (start, end) if start < end else (0, 0)


def tokens_within(ids_T: IntArray, characters: int, tokenizer: ChatTokenizer) -> int:
    """The most leading tokens whose text has at most this many characters."""
    low, high = 0, len(ids_T)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.decode(ids_T[:middle].tolist())) <= characters:
            low = middle
        else:
            high = middle - 1
    return low


def tokens_around(ids_T: IntArray, characters: int, tokenizer: ChatTokenizer) -> int:
    """The fewest leading tokens whose text has at least this many characters."""
    return tokens_within(ids_T, characters - 1, tokenizer) + 1 if characters else 0


def render_reply(reasoning: str, actions: Sequence[str], form: ReplyFormat) -> str:
    """The well-formed reply with this content, without what the prompt opens it with."""
    answer = f"{ANSWER_TAGS[0]}{f' {ACTION_SEPARATOR} '.join(actions)}{ANSWER_TAGS[1]}"
    think = f"{form.think_tags[0]}{reasoning}{form.think_tags[1]}" if form.thinking else ""
    return f"{think}{answer}".removeprefix(form.prefill)


def _parts(text: str, form: ReplyFormat) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Where reasoning and answer stand in a reply; None unless both are whole."""
    start = end = 0
    if form.thinking:
        start = _reasoning_start(text, form)
        end = text.find(form.think_tags[1], start) if start >= 0 else -1
    if start < 0 or end < 0:
        return None
    opened = text.find(ANSWER_TAGS[0], end)
    closed = text.find(ANSWER_TAGS[1], opened) if opened >= 0 else -1
    if closed < 0:
        return None
    return (start, end), (opened + len(ANSWER_TAGS[0]), closed)


def _reasoning_start(text: str, form: ReplyFormat) -> int:
    """Where the reasoning begins; below 0 without its opening tag."""
    tag = form.think_tags[0]
    found = text.find(tag)
    return found + len(tag) if found >= 0 else -1


def _named(piece: str, names: Mapping[str, str]) -> list[str]:
    """The actions that a piece of an answer names; itself where it names none."""
    if not piece:
        return []
    readings = _readings(piece)
    for reading in readings:
        if reading in names:
            return [names[reading]]
    words = readings[-1].split()
    if words and all(word in names for word in words):
        return [names[word] for word in words]
    return [piece]


def _readings(piece: str) -> list[str]:
    """A piece as it is, then with less and less of what people write around a name."""
    plain = " ".join(piece.lower().split())
    bare = _NUMBERING.sub("", plain).rstrip(".!:;").strip()
    while len(bare) > 2 and _QUOTES.get(bare[0]) == bare[-1]:
        bare = bare[1:-1].strip().rstrip(".!:;")
    return [plain, bare, _VERBS.sub("", bare)]


def _open_reasoning(text: str, form: ReplyFormat) -> str:
    opened, closed = form.think_tags
    return text.partition(opened)[2].split(closed)[0].strip() if form.thinking else ""


def _problem(text: str, completion: Completion, form: ReplyFormat) -> str:
    if completion.finish is Finish.LENGTH:
        return "cut at the token limit"
    rest = text
    for tag in (*(form.think_tags if form.thinking else ()), *ANSWER_TAGS):
        if tag not in rest:
            return f"no {tag}" if tag not in text else f"{tag} in the wrong place"
        rest = rest.partition(tag)[2]
    raise AssertionError(f"a reply with all its tags was not read: {text!r}")


def _action_problem(actions: tuple[str, ...], form: ReplyFormat) -> str:
    if not actions:
        return "no action in the answer"
    if form.refuses_surplus and len(actions) > form.max_actions:
        return f"{len(actions)} actions, only {form.max_actions} are taken"
    return ""
