"""Where SearchQA sends a query: an index of its own, by words or by meaning, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ragen2.envs.search_qa.records import Passage


class Index(Protocol):
    """Finds positions in a sequence of texts."""

    def search(self, query: str, top: int) -> list[tuple[int, float]]:
        """(position, score) of the ``top`` best, best first."""


class Retriever(Protocol):
    """Finds passages."""

    def search(self, query: str, top: int) -> list[Passage]:
        """The ``top`` best passages, best first."""


class LocalRetriever:
    """Passages in memory, found through an index of their searchable texts."""

    def __init__(self, passages: Sequence[Passage], index: Index) -> None:
        self.passages = passages
        self.index = index

    def search(self, query: str, top: int) -> list[Passage]:
        """The ``top`` best passages, best first."""
        return [self.passages[position] for position, _ in self.index.search(query, top)]


def searchable_text(passage: Passage) -> str:
    """What an index reads of a passage.

    The title counts twice: on HotpotQA two searches then find both gold passages of 97.0% of the
    questions, with the title once 96.0%.
    """
    return f"{passage.title} {passage.title} {passage.text}"
