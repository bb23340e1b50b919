"""SearchQA: answer a question by searching a corpus of passages, several times where it takes that.

Without files it asks about a generated world of 20,000 passages, whose one-, two- and three-hop
questions need one, two and three searches; with files, about any corpus. The reward is exact match, else
token F1 where it is high enough, as SQuAD defines both.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ragen2.envs.base import HELD_OUT_SEEDS, Easier, Env, Episode, Step, Waits
from ragen2.envs.search_qa.records import (
    Passage,
    SearchQuestion,
    read_passages,
    read_questions,
    split_questions,
)
from ragen2.envs.search_qa.retrieval import (
    LocalRetriever,
    RetrievalClient,
    Retriever,
    searchable_text,
)
from ragen2.envs.search_qa.world import load_world
from ragen2.envs.toolkit.text_index import DenseIndex, TextIndex, load_encoder
from ragen2.envs.toolkit.wording import pick
from ragen2.errors import EnvError
from ragen2.seeding import stream

_TASK = "Answer the question by searching a collection of passages."
VERBS = ("search", "finish")
MAX_ACTION_CHARS = 1000
"""What counts of an action; no sensible query or answer is longer."""
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s|$)")


class SearchQA(Env):
    """Search passages, read, and answer."""

    kind: Literal["SearchQA"] = "SearchQA"
    questions: str | None = Field(
        None, description="question file or hub id; none: questions about the generated world"
    )
    held_out_questions: str | None = Field(
        None, description="questions for evaluation; none: a tenth of `questions` is set apart"
    )
    passages: str | None = Field(
        None, description="passage file or hub id; none: the contexts that `questions` carries"
    )
    num_passages: int = Field(
        20_000, ge=200, le=50_000, description="passages of the generated world"
    )
    world_seed: int = Field(0, ge=0, description="which generated world")
    min_hops: int = Field(1, ge=1, le=3, description="least searches a generated question needs")
    max_hops: int = Field(3, ge=1, le=3, description="most searches a generated question needs")
    retriever: Literal["bm25", "dense", "server"] = Field(
        "bm25", description="by words, by meaning (an encoder), or whatever a server does"
    )
    encoder: str = Field(
        "sentence_transformers:sentence-transformers/all-MiniLM-L6-v2",
        description="package:model that embeds texts for the dense retriever",
    )
    server_url: str = Field("http://127.0.0.1:8000", description="where the retrieval server is")
    server_protocol: Literal["ragen", "search_r1"] = Field(
        "ragen", description="dialect of the retrieval server"
    )
    server_timeout_seconds: float = Field(30.0, gt=0.0, description="patience with the server")
    max_searches: int = Field(4, ge=1, description="searches of one episode")
    top_k: int = Field(3, ge=1, le=50, description="passages a search shows at most")
    passage_chars: int = Field(
        600, ge=40, description="longer passages are cut at the end of a sentence"
    )
    results_chars: int = Field(
        2000, ge=40, description="passages that would make all results longer are left out"
    )
    f1_threshold: float = Field(
        0.3, ge=0.0, le=1.0, description="least token F1 that an inexact answer is paid for"
    )

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"
    renamed: ClassVar[Mapping[str, str]] = {"heldout_questions": "held_out_questions"}

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.min_hops > self.max_hops:
            raise ValueError(f"min_hops {self.min_hops} is above max_hops {self.max_hops}")
        if self.questions is None and self.max_hops > self.max_searches:
            raise ValueError(
                f"questions of {self.max_hops} hops need max_searches {self.max_hops} or more, "
                f"got {self.max_searches}"
            )
        if self.questions is None and (self.held_out_questions or self.passages):
            raise ValueError("passages and held_out_questions need questions; name a question file")
        return self

    @property
    def instruction(self) -> str:
        """Rules, the two actions and a worked reply."""
        return (
            f"{_TASK} Actions: {self._actions} "
            "Example: <think>I need the founder of Acme</think><answer>search[Acme]</answer>"
        )

    @property
    def rules(self) -> str:
        """What there is to find out, and what the two actions do."""
        return f"{_TASK} {self._actions}"

    @property
    def action_forms(self) -> tuple[str, ...]:
        """Searching and answering."""
        return ("search[words]", "finish[answer]")

    @property
    def _actions(self) -> str:
        return (
            "search[words] shows the passages that fit best, finish[answer] gives your "
            f"answer and ends. You have {self.max_searches} searches; take one action a reply. "
            "If a passage names something you need to know more about, search for that next. "
            "Keep the answer short: a name, a year, yes or no."
        )

    @property
    def waits_for(self) -> Waits:
        """Searching by words is quick; an encoder computes, a server keeps one waiting."""
        waits: dict[str, Waits] = {"bm25": "nothing", "dense": "cores", "server": "server"}
        return waits[self.retriever]

    @property
    def easier(self) -> Easier:
        """Generated questions of fewer hops."""
        return tuple(
            {"min_hops": min(self.min_hops, most), "max_hops": most}
            for most in range(1, self.max_hops if self.questions is None else 1)
        )

    def start(self, seed: int, luck: int) -> SearchEpisode:
        """Question from ``seed``; luck changes nothing."""
        del luck
        return SearchEpisode(self, self.question(seed), self.open_retriever())

    def question(self, seed: int) -> SearchQuestion:
        """The question of ``seed``; held-out seeds and training seeds share none."""
        held_out = seed < HELD_OUT_SEEDS
        if self.questions is None:
            rng = stream("SearchQA", "question", self.world_seed, seed)
            hops = int(rng.integers(self.min_hops, self.max_hops + 1))
            world = load_world(self.num_passages, self.world_seed)
            return world.question(hops, rng, held_out=held_out)
        training, evaluation = _load_questions(self.questions, self.held_out_questions)
        side = evaluation if held_out else training
        return side[seed % len(side)]

    def open_retriever(self) -> Retriever:
        """What answers the searches, as the settings ask; indices are built once and shared."""
        if self.retriever == "server":
            return RetrievalClient(
                self.server_url,
                self.server_protocol,
                timeout_seconds=self.server_timeout_seconds,
            )
        source = self.passages or self.questions
        world = (self.num_passages, self.world_seed) if source is None else None
        return _open_local(source, world, self.encoder if self.retriever == "dense" else None)


@lru_cache(maxsize=8)
def _load_questions(
    source: str, held_out_source: str | None
) -> tuple[list[SearchQuestion], list[SearchQuestion]]:
    questions = read_questions(source)
    if held_out_source is None:
        return split_questions(questions)
    held_out = read_questions(held_out_source)
    known = {question.text for question in held_out}
    training = [question for question in questions if question.text not in known]
    if not training:
        raise EnvError(
            f"every question of {source} is also in {held_out_source}; give another file"
        )
    return training, held_out


@lru_cache(maxsize=4)
def _open_local(
    source: str | None, world: tuple[int, int] | None, encoder: str | None
) -> LocalRetriever:
    passages = load_world(*world).passages if world else read_passages(source or "")
    texts = [searchable_text(passage) for passage in passages]
    if encoder is None:
        return LocalRetriever(passages, TextIndex.cached(texts))
    return LocalRetriever(passages, DenseIndex(texts, load_encoder(encoder)))


class SearchEpisode(Episode):
    """One question, some searches, one answer."""

    def __init__(self, env: SearchQA, question: SearchQuestion, retriever: Retriever) -> None:
        self.env = env
        self.question = question
        self._retriever = retriever
        self._queries: list[str] = []
        self._results: list[Passage] = []
        self._seen_titles: list[str] = []
        self._answer: str | None = None

    @property
    def done(self) -> bool:
        """Whether an answer was given."""
        return self._answer is not None

    @property
    def searches_left(self) -> int:
        """Searches still allowed."""
        return self.env.max_searches - len(self._queries)

    @property
    def observation(self) -> str:
        """The question, always; then what the last search found."""
        lines = [f"Question: {self.question.text}"]
        if self.done:
            return "\n".join([*lines, "You have answered."])
        left = self.searches_left
        lines.append(f"Searches left: {left}" if left else "No searches left: finish[answer] now.")
        if self._queries:
            lines.append(f"Results of search {len(self._queries)}:")
            lines.append(
                show_passages(self._results, self.env.passage_chars, self.env.results_chars)
            )
        return "\n".join(lines)

    def step(self, action: str) -> Step:
        """Search or finish; anything else, and a search too many, changes nothing."""
        verb, body = read_action(action)
        if self.done:
            return Step(0.0, True, self._is_solved, valid=bool(verb), effective=False)
        if not verb:
            return Step(0.0, False, valid=False, effective=False)
        if verb == "search":
            return self._search(body)
        self._answer = body
        reward = answer_reward(body, self.question.answers, self.env.f1_threshold)
        return Step(reward, True, solved=self._is_solved)

    def expert(self) -> tuple[str, ...]:
        """Look up what was not seen yet, in the order of the chain, then give the right answer."""
        if self.done:
            return ()
        queries = [] if self._queries else [self.question.opening or self.question.text]
        known = {*self._seen_titles, *self._queries, *queries}
        queries += [title for title in self.question.gold_titles if title not in known]
        searches = [_write("search", query) for query in queries[: self.searches_left]]
        return (*searches, _write("finish", self.question.answers[0]))

    def random_action(self, rng: np.random.Generator) -> str:
        """A search for a few words of the question, or an answer taken from what is in sight."""
        words = self.question.text.rstrip("?").split()
        if self.searches_left and rng.random() < 0.7:
            first = int(rng.integers(len(words)))
            return _write("search", " ".join(words[first : first + 3]))
        choices = [passage.title for passage in self._results if passage.title] or words
        return _write("finish", choices[int(rng.integers(len(choices)))])

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """What the question is about, what has been read, and why this action follows."""
        verb, body = read_action(actions[0]) if actions else ("", "")
        subject = self.question.opening or self.question.text
        last = self._seen_titles[0] if self._seen_titles else subject
        if verb == "search" and not self._queries:
            return pick(
                rng,
                f"The question starts from {subject}. I look that up first.",
                f"I know nothing about {subject} yet, so I search for it.",
                f"To begin, I need the passage on {subject}.",
            )
        if verb == "search":
            return pick(
                rng,
                f"The question starts from {subject}. That led me to {body}; I search for it.",
                f"I asked about {subject} and read of {body}. Now I need more on {body}.",
                f"From {last} the way goes on to {body}, so I look up {body}.",
            )
        if verb == "finish":
            return pick(
                rng,
                f"The question was about {subject}. The passages say {body}, so I answer that.",
                f"I followed {subject} through the passages and found {body}.",
                f"What I read about {last} gives the answer: {body}.",
            )
        return f"Nothing is left to do about {subject}."

    @property
    def _is_solved(self) -> bool:
        return self._answer is not None and exact_match(self._answer, self.question.answers)

    def _search(self, query: str) -> Step:
        if not self.searches_left:
            return Step(0.0, False, effective=False)
        self._results = self._retriever.search(query, self.env.top_k)
        self._queries.append(query)
        self._seen_titles = [passage.title for passage in self._results] + self._seen_titles
        return Step(0.0, False)


def read_action(action: str) -> tuple[str, str]:
    """(verb, text) of ``search[text]`` or ``finish[text]``; two empty strings for anything else.

    Case and spaces are forgiven, and so are a missing last bracket and words after it.
    """
    head, bracket, rest = action[: 2 * MAX_ACTION_CHARS].partition("[")
    verb = head.strip().lower()
    inside, closing, _ = rest.rpartition("]")
    body = " ".join((inside if closing else rest).split())[:MAX_ACTION_CHARS]
    body = body.encode("utf-8", "replace").decode()  # encoders choke on half of a surrogate pair
    return (verb, body) if bracket and verb in VERBS and body else ("", "")


def show_passages(passages: list[Passage], passage_chars: int, results_chars: int) -> str:
    """Numbered passages, each cut to its limit; those beyond the limit of all are left out."""
    shown: list[str] = []
    for number, passage in enumerate(passages, start=1):
        text = cut_at_sentence(" ".join(passage.text.split()), passage_chars)
        line = f"[{number}] {passage.title}: {text}" if passage.title else f"[{number}] {text}"
        if shown and sum(map(len, shown)) + len(shown) + len(line) > results_chars:
            break
        shown.append(line)
    return "\n".join(shown) or "nothing found"


def cut_at_sentence(text: str, limit: int) -> str:
    """At most ``limit`` characters, ending with a whole sentence where there is one."""
    if len(text) <= limit:
        return text
    ends = [end.end() for end in _SENTENCE_END.finditer(text, 0, limit + 1) if end.end() <= limit]
    if ends:
        return text[: ends[-1]]
    return text[: limit - 4].rsplit(" ", 1)[0] + " ..."


def _write(verb: str, body: str) -> str:
    """An action; ``||`` separates actions, so it may not stand inside one."""
    return f"{verb}[{' '.join(body.split()).replace('||', '|')}]"


CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
"""Answers that are right or wrong, with nothing in between."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def fold_answer(text: str) -> str:
    """SQuAD's normal form: lower case, no punctuation, no articles, single spaces.

    An answer of articles and signs alone (the band The The) would fold to nothing, which any other
    such answer equals; it keeps its words instead.
    """
    lower = text.lower()
    folded = " ".join(_ARTICLES.sub(" ", lower.translate(_NO_PUNCTUATION)).split())
    return folded or " ".join(lower.split())


def exact_match(answer: str, right: Iterable[str]) -> bool:
    """Whether ``answer`` is one of the right ones after folding."""
    folded = fold_answer(answer)
    return any(folded == fold_answer(one) for one in right)


def f1_score(answer: str, right: Iterable[str]) -> float:
    """Greatest token F1 over the right answers, in [0, 1]; yes and no score 1 or 0."""
    return max((_f1(fold_answer(answer), fold_answer(one)) for one in right), default=0.0)


def answer_reward(answer: str, right: Iterable[str], f1_threshold: float) -> float:
    """1 for an exact match, else the F1 where it reaches the threshold, else 0."""
    right = tuple(right)
    if exact_match(answer, right):
        return 1.0
    overlap = f1_score(answer, right)
    return overlap if overlap >= f1_threshold else 0.0


def _f1(answer: str, right: str) -> float:
    if answer in CLOSED_ANSWERS or right in CLOSED_ANSWERS:
        return float(answer == right)
    answer_words, right_words = answer.split(), right.split()
    shared = sum((Counter(answer_words) & Counter(right_words)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(answer_words), shared / len(right_words)
    return 2 * precision * recall / (precision + recall)
