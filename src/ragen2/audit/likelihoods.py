"""Three estimates of how well a reasoning trace fits each prompt: its wording, a model, or a server.

All give a score matrix, so what is measured on it does not depend on where it comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, Protocol

import numpy as np

from ragen2.audit.reservoir import TextTrace
from ragen2.audit.rollouts import Chat, LoggedPrompt, SampledTokens, holds_images
from ragen2.audit.text_model import StepTexts, text_scores
from ragen2.errors import ModelError
from ragen2.policy import ChatTokenizer, Pair
from ragen2.rollout.context import opened_by_template
from ragen2.rollout.reply import THINK_TAGS, tokens_around, tokens_within
from ragen2.scoring import Trace, cross_score
from ragen2.scoring.traces import shared_opening
from ragen2.types import FloatArray, IntArray, Message, Role, ScoreMatrix

API_KEY = "OPENAI_API_KEY"
TIMEOUT = 30.0
Kind = Literal["text", "model", "server"]
IMAGES = "prompts hold images"
NO_IDS = "the log holds no token ids"
OTHER_IDS = "the log's token ids are another tokenizer's"
TAIL = 16
"""Tokens of a prompt in which the opening tag is looked for."""
SYSTEM_ROLES = frozenset({"system", "developer"})


def server_and_model(text: str, key_variable: str = API_KEY) -> tuple[str, str]:
    """``http://host:8000/v1#name`` -> its URL and the model's name; the server is asked for a missing one."""
    url, _, model = text.partition("#")
    return url, model or _only_model(url, key_variable)


@dataclass(frozen=True, slots=True)
class StepScores:
    """A score matrix, or the reason there is none, and the traces that could not take part."""

    matrix: ScoreMatrix | None
    reason: str = ""
    unused: Counter[str] = field(default_factory=Counter)
    traces: tuple[TextTrace, ...] = ()
    """The trace of each row of the matrix."""
    num_fitted: int | None = None
    """Without a model: traces that each prompt was fitted to."""
    retokenised: Counter[str] = field(default_factory=Counter)
    """Rows that a model scored as text tokenised again, by the reason."""


Prompts = Sequence[Sequence[TextTrace]]
"""One list of traces for each prompt of a step, in random order within each."""


class Likelihood(Protocol):
    """Scores the kept traces of each step under that step's prompts."""

    kind: Kind
    name: str

    def score_steps(self, steps: Sequence[Prompts]) -> Iterator[StepScores]:
        """The scores of one step after the other."""
        ...


class LocalModel(Protocol):
    """A local model: it has a tokenizer and scores tokens."""

    max_context: int

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The tokenizer that prompts must be made with."""
        ...

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token, one array per pair."""
        ...


class TextServer(Protocol):
    """A server that scores text after text."""

    def score_texts(self, pairs: Sequence[tuple[str, str]]) -> list[FloatArray]:
        """Log-prob of every token of each continuation."""
        ...


class WordLikelihood:
    """No model at all: the wording of the other traces of each prompt, and of the prompt.

    How wording is compared is settled once, from all steps together: two ways of scoring differ in scale,
    and a log that changed between them would seem to change.
    """

    kind: Kind = "text"
    name = "wording of the log's own reasoning traces"

    def score_steps(self, steps: Sequence[Prompts]) -> Iterator[StepScores]:
        """Part of each prompt's traces are fitted to, the others scored."""
        texts = [
            StepTexts(
                [opening(traces[0].prompt) for traces in prompts],
                [[trace.reasoning for trace in traces] for traces in prompts],
            )
            for prompts in steps
        ]
        for prompts, found in zip(steps, text_scores(texts), strict=True):
            if isinstance(found, str):
                yield StepScores(None, found)
                continue
            left_out = len(prompts) - len(found.prompts)
            unused = Counter({"prompts with too few traces": left_out} if left_out else {})
            rows = tuple(prompts[place][index] for place, index in found.rows)
            yield StepScores(found.matrix, "", unused, rows, found.num_fitted)


class PolicyLikelihood:
    """A local model. The tokens that a log holds are scored as they are, if they are this model's.

    Else text is tokenised with the model's own tokenizer, chat rendered by its template.
    """

    kind: Kind = "model"

    def __init__(self, policy: LocalModel, name: str, temperature: float = 1.0) -> None:
        self.policy = policy
        self.name = name
        self.temperature = temperature

    @property
    def template_opens(self) -> bool:
        """Whether the model's chat template opens replies with the think tag."""
        return opened_by_template(self.policy.tokenizer, THINK_TAGS[0])

    def score_steps(self, steps: Sequence[Prompts]) -> Iterator[StepScores]:
        """Each step by itself."""
        return map(self.score, steps)

    def score(self, prompts: Prompts) -> StepScores:
        """Every trace under every distinct prompt."""
        unused: Counter[str] = Counter()
        traces: list[tuple[Trace, TextTrace]] = []
        retokenised: Counter[str] = Counter()
        readable, unused[IMAGES] = _readable(prompts)
        spans = [(one.tokens, one.tokens.reasoning_span) for one in readable if one.tokens]
        opening_T = shared_opening(tokens.ids_T[: span[0]] for tokens, span in spans if span)
        for one in readable:
            trace = self._sampled(one, opening_T)
            if trace is None:
                retokenised[NO_IDS if one.tokens is None else OTHER_IDS] += 1
                trace = Trace(self._context(one), self._tokenised(one))
            if not len(trace.reasoning_ids_T):
                unused["reasoning without tokens"] += 1
            else:
                traces.append((trace, one))
        fitting = self._fitting(traces)
        if len(fitting) < len(traces):
            unused["longer than the model's context"] = len(traces) - len(fitting)
        matrix = (
            cross_score([trace for trace, _ in fitting], self.policy, self.temperature)
            if fitting
            else None
        )
        reason = "" if matrix else _too_few(unused)
        rows = tuple(one for _, one in fitting)
        return StepScores(matrix, reason, +unused, rows, retokenised=retokenised)

    def _sampled(self, trace: TextTrace, opening_T: IntArray) -> Trace | None:
        """The trace as the tokens of the log; None without any, or where they do not spell its text.

        As in training, one whose tokens are recorded follows the prompt and what opens all of them.
        """
        tokens = trace.tokens
        if tokens is None:
            return None
        first, last = tokens.reasoning_span or self._found(trace, tokens)
        reasoning_T = tokens.ids_T[first:last]
        spelled = self.policy.tokenizer.decode(reasoning_T.tolist()).strip()
        is_left_out = tokens.reasoning_span is not None and first == last  # as training left it out
        if not is_left_out and (not spelled or spelled not in trace.reasoning):
            return None
        if tokens.reasoning_span is None:
            return Trace(self._led(tokens.prompt_ids_T.tolist(), trace.lead), reasoning_T)
        return Trace(np.concatenate([tokens.prompt_ids_T, opening_T]), reasoning_T)

    def _found(self, trace: TextTrace, tokens: SampledTokens) -> tuple[int, int]:
        """Where the reasoning is among the tokens of its reply; an empty range if nowhere.

        A server that keeps reasoning apart takes white space off it, which its tokens still have.
        """
        text = self.policy.tokenizer.decode(tokens.ids_T.tolist())
        at = text.find(trace.before + trace.reasoning + trace.after)
        if at >= 0:
            start = at + len(trace.before)
            return self._span(tokens.ids_T, start, start + len(trace.reasoning))
        core = trace.reasoning.strip()
        at = text.find(core)
        if at < 0:
            return 0, 0
        start, rest = len(text[:at].rstrip()), text[at + len(core) :]
        return self._span(tokens.ids_T, start, len(text) - len(rest.lstrip()))

    def _tokenised(self, trace: TextTrace) -> IntArray:
        """The reasoning's tokens as a sampler writes them: those of the whole reply around it."""
        encode = self.policy.tokenizer.encode
        text = trace.before + trace.reasoning + trace.after
        ids_T = self._ids(encode(text))
        if self.policy.tokenizer.decode(ids_T.tolist()) != text:
            return self._ids(encode(trace.reasoning))
        start = len(trace.before)
        first, last = self._span(ids_T, start, start + len(trace.reasoning))
        return ids_T[first:last]

    def _span(self, ids_T: IntArray, start: int, end: int) -> tuple[int, int]:
        """Tokens of these characters; as in training, one that straddles an end is the tag's."""
        tokenizer = self.policy.tokenizer
        first = tokens_around(ids_T, start, tokenizer)
        last = tokens_within(ids_T, end, tokenizer)
        while last > first and not tokenizer.decode(ids_T[last - 1 : last].tolist()):
            last -= 1  # the end of the message, which has no text
        return first, max(first, last)

    def _context(self, trace: TextTrace) -> IntArray:
        tokenizer = self.policy.tokenizer
        if isinstance(trace.prompt, str):
            return self._led(tokenizer.start_text(trace.prompt), trace.lead)
        return self._led(tokenizer.start(_messages(trace.prompt)), trace.lead)

    def _led(self, ids: Sequence[int], lead: str) -> IntArray:
        """A prompt with the opening tag behind it, unless it ends with it."""
        tokenizer = self.policy.tokenizer
        if lead and tokenizer.decode(ids[-TAIL:]).rstrip().endswith(lead):
            return self._ids(ids)
        return self._ids([*ids, *tokenizer.encode(lead)])

    def _ids(self, ids: Sequence[int]) -> IntArray:
        return np.array(ids, dtype=np.int64)

    def _fitting(self, traces: list[tuple[Trace, TextTrace]]) -> list[tuple[Trace, TextTrace]]:
        """Traces that fit after every prompt; a prompt too long for its own traces goes with them."""
        limit = self.policy.max_context
        own = [
            pair
            for pair in traces
            if len(pair[0].prompt_ids_T) + len(pair[0].reasoning_ids_T) <= limit
        ]
        longest = max((len(trace.prompt_ids_T) for trace, _ in own), default=0)
        return [pair for pair in own if longest + len(pair[0].reasoning_ids_T) <= limit]


class ServerLikelihood:
    """A server that returns prompt log-probs; chat is rendered plainly, because it has no template."""

    kind: Kind = "server"

    def __init__(self, server: TextServer, name: str) -> None:
        self.server = server
        self.name = name

    def score_steps(self, steps: Sequence[Prompts]) -> Iterator[StepScores]:
        """Each step by itself."""
        return map(self.score, steps)

    def score(self, prompts: Prompts) -> StepScores:
        """Every trace under every distinct prompt, in one call."""
        unused: Counter[str] = Counter()
        traces, unused[IMAGES] = _readable(prompts)
        contexts: dict[str, int] = {}
        owners = [
            contexts.setdefault(plain(trace.prompt) + trace.lead, len(contexts)) for trace in traces
        ]
        if len(contexts) < 2:
            return StepScores(None, _too_few(unused), +unused)
        pairs = [(context, trace.reasoning) for trace in traces for context in contexts]
        values = self.server.score_texts(pairs)
        owner_N = np.array(owners, dtype=np.int64)
        own = [values[row * len(contexts) + owner] for row, owner in enumerate(owners)]
        matrix = ScoreMatrix(
            np.array([one.sum() for one in values]).reshape(len(traces), len(contexts)),
            np.array([len(one) for one in own], dtype=np.int64),
            owner_N,
        )
        return StepScores(matrix, unused=+unused, traces=tuple(traces))


def plain(prompt: LoggedPrompt) -> str:
    """A prompt as text; chat becomes one paragraph per message and waits for the assistant."""
    if isinstance(prompt, str):
        return prompt
    turns = "".join(f"{role.capitalize()}: {content}\n" for role, content in prompt)
    return f"{turns}Assistant: "


def opening(prompt: LoggedPrompt) -> str:
    """What the model saw before its first reply, as text: in later turns, without its own words."""
    if isinstance(prompt, str):
        return prompt
    before = takewhile(lambda message: message[0] != "assistant", prompt)
    return "\n".join(content for _, content in before)


def _only_model(url: str, key_variable: str) -> str:
    from ragen2.backends.remote.client import ServerClient
    from ragen2.backends.settings import ServerSettings

    try:
        settings = ServerSettings(retries=0, timeout=TIMEOUT, api_key_env=key_variable)
        with ServerClient(url, settings) as client:
            names = client.get(
                "v1/models", lambda answer: [str(one["id"]) for one in answer["data"]]
            )
    except ModelError as error:
        raise ModelError(
            f"--model {url}: the server does not say what it serves ({error}); "
            f"name the model as {url}#NAME"
        ) from error
    if len(names) != 1:
        raise ModelError(
            f"--model {url} serves {len(names)} models ({', '.join(names[:5])}); "
            f"name one as {url}#NAME"
        )
    return names[0]


def _readable(prompts: Prompts) -> tuple[list[TextTrace], int]:
    """Traces whose prompts are text, and how many others there are: a log has no pixels to score after."""
    traces = [trace for group in prompts for trace in group]
    readable = [trace for trace in traces if not holds_images(trace.prompt)]
    return readable, len(traces) - len(readable)


def _too_few(unused: Counter[str]) -> str:
    if unused[IMAGES]:
        return f"{IMAGES}, which a model cannot be shown here; leave --model out"
    return "fewer than two distinct prompts"


def _messages(chat: Chat) -> list[Message]:
    """Messages a template takes: three roles, and never two of one role in a row."""
    found: list[Message] = []
    for role, content in chat:
        known: Role = "assistant" if role == "assistant" else "user"
        if role in SYSTEM_ROLES:
            known = "system"
        if found and found[-1].role == known:
            found[-1] = Message(known, f"{found[-1].content}\n{content}")
        else:
            found.append(Message(known, content))
    return found
