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
from ragen2.audit.rollouts import Chat, LoggedPrompt, holds_images
from ragen2.audit.text_model import StepTexts, text_scores
from ragen2.errors import ModelError
from ragen2.policy import ChatTokenizer, Pair
from ragen2.scoring import Trace, cross_score
from ragen2.types import FloatArray, IntArray, Message, Role, ScoreMatrix

API_KEY = "OPENAI_API_KEY"
TIMEOUT = 30.0
Kind = Literal["text", "model", "server"]
IMAGES = "prompts hold images"
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
    """A local model; text is tokenised with its own tokenizer, chat rendered by its template."""

    kind: Kind = "model"

    def __init__(self, policy: LocalModel, name: str) -> None:
        self.policy = policy
        self.name = name

    def score_steps(self, steps: Sequence[Prompts]) -> Iterator[StepScores]:
        """Each step by itself."""
        return map(self.score, steps)

    def score(self, prompts: Prompts) -> StepScores:
        """Every trace under every distinct prompt."""
        unused: Counter[str] = Counter()
        traces: list[tuple[Trace, TextTrace]] = []
        readable, unused[IMAGES] = _readable(prompts)
        for one in readable:
            trace = Trace(
                self._context(one), self._ids(self.policy.tokenizer.encode(one.reasoning))
            )
            if not len(trace.reasoning_ids_T):
                unused["reasoning without tokens"] += 1
            else:
                traces.append((trace, one))
        fitting = self._fitting(traces)
        if len(fitting) < len(traces):
            unused["longer than the model's context"] = len(traces) - len(fitting)
        matrix = cross_score([trace for trace, _ in fitting], self.policy) if fitting else None
        reason = "" if matrix else _too_few(unused)
        return StepScores(matrix, reason, +unused, tuple(one for _, one in fitting))

    def _context(self, trace: TextTrace) -> IntArray:
        encode = self.policy.tokenizer.encode
        if isinstance(trace.prompt, str):
            ids = encode(trace.prompt)
        else:
            ids = self.policy.tokenizer.start(_messages(trace.prompt))
        return self._ids([*ids, *encode(trace.lead)])

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
