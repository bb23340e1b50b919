"""SearchQA: answer a question by searching a corpus of passages, several times where it takes that.

Without files it asks about a generated world of 20,000 passages, whose one-, two- and three-hop
questions need one, two and three searches; with files, about any corpus.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ragen2.envs.base import HELD_OUT_SEEDS, Env, Waits
from ragen2.envs.search_qa.episode import SearchEpisode
from ragen2.envs.search_qa.records import Question, read_passages, read_questions, split_questions
from ragen2.envs.search_qa.retrieval import LocalRetriever, Retriever, searchable_text
from ragen2.envs.search_qa.world import load_world
from ragen2.envs.toolkit.dense_index import DenseIndex, load_encoder
from ragen2.envs.toolkit.text_index import TextIndex
from ragen2.errors import EnvError
from ragen2.seeding import stream


class SearchQA(Env):
    """Search passages, read, and answer."""

    kind: Literal["SearchQA"] = "SearchQA"
    questions: str | None = Field(
        None, description="question file or hub id; none: questions about the generated world"
    )
    heldout_questions: str | None = Field(
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

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.min_hops > self.max_hops:
            raise ValueError(f"min_hops {self.min_hops} is above max_hops {self.max_hops}")
        if self.questions is None and self.max_hops > self.max_searches:
            raise ValueError(
                f"questions of {self.max_hops} hops need max_searches {self.max_hops} or more, "
                f"got {self.max_searches}"
            )
        if self.questions is None and (self.heldout_questions or self.passages):
            raise ValueError("passages and heldout_questions need questions; name a question file")
        return self

    @property
    def instruction(self) -> str:
        """Rules, the two actions and a worked reply."""
        return (
            "Answer the question by searching a collection of passages. "
            "Actions: search[words] shows the passages that fit best, finish[answer] gives your "
            f"answer and ends. You have {self.max_searches} searches; take one action a reply. "
            "If a passage names something you need to know more about, search for that next. "
            "Keep the answer short: a name, a year, yes or no. "
            "Example: <think>I need the founder of Acme</think><answer>search[Acme]</answer>"
        )

    @property
    def waits_for(self) -> Waits:
        """Searching by words is quick; an encoder computes, a server keeps one waiting."""
        waits: dict[str, Waits] = {"bm25": "nothing", "dense": "cores", "server": "server"}
        return waits[self.retriever]

    def start(self, seed: int, luck: int) -> SearchEpisode:
        """Question from ``seed``; luck changes nothing."""
        del luck
        return SearchEpisode(self, self.question(seed), self.open_retriever())

    def question(self, seed: int) -> Question:
        """The question of ``seed``; held-out seeds and training seeds share none."""
        held_out = seed < HELD_OUT_SEEDS
        if self.questions is None:
            rng = stream("SearchQA", "question", self.world_seed, seed)
            hops = int(rng.integers(self.min_hops, self.max_hops + 1))
            world = load_world(self.num_passages, self.world_seed)
            return world.question(hops, rng, held_out=held_out)
        training, evaluation = _load_questions(self.questions, self.heldout_questions)
        side = evaluation if held_out else training
        return side[seed % len(side)]

    def open_retriever(self) -> Retriever:
        """What answers the searches, as the settings ask; indices are built once and shared."""
        if self.retriever == "server":
            from ragen2.envs.search_qa.client import RetrievalClient

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
    source: str, heldout_source: str | None
) -> tuple[list[Question], list[Question]]:
    questions = read_questions(source)
    if heldout_source is None:
        return split_questions(questions)
    held_out = read_questions(heldout_source)
    known = {question.text for question in held_out}
    training = [question for question in questions if question.text not in known]
    if not training:
        raise EnvError(f"every question of {source} is also in {heldout_source}; give another file")
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
