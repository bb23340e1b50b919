"""One loop, several processes: the first runs it, the others carry out its orders with their share.

Groups are shared out whole, and so are the pairs to score and the micro-batches of an update. The first
process gets everything back, so that the filter, the diagnostics and the records see the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ragen2.errors import RagenError
from ragen2.rollout import Task, play

if TYPE_CHECKING:
    from ragen2.envs import Env
    from ragen2.policy import (
        ChatTokenizer,
        CriticSettings,
        Gradient,
        KLEstimator,
        Learner,
        Objective,
        Pair,
        Policy,
        Request,
        SamplingParams,
    )
    from ragen2.rollout import Rollout
    from ragen2.types import Completion, FloatArray, Group, Sample, Update

END = "end"
Item = TypeVar("Item")


class Crew(Protocol):
    """The processes of a job."""

    rank: int
    size: int
    is_busy: bool

    def tell(self, order: Any) -> None:
        """Hand an order to all others."""
        ...

    def hear(self) -> Any:
        """Wait for the next order."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order."""
        ...

    def leave(self) -> None:
        """End the job, once all have heard what was said."""
        ...

    def guard(self) -> AbstractContextManager[None]:
        """Turns the error over a lost process into one line."""
        ...


@dataclass(frozen=True, slots=True)
class Hand:
    """What each process does of an order; its methods are the orders."""

    crew: Crew
    policy: Policy
    learner: Learner

    def do(self, order: str, *words: Any) -> Any:
        """Carry an order out, together with all others."""
        self.crew.is_busy = True
        with self.crew.guard():
            done = getattr(self, order)(*words)
        self.crew.is_busy = False
        return done

    def play(
        self,
        env: Env,
        groups: Sequence[Sequence[Task]],
        rollout: Rollout,
        key: tuple[int | str, ...],
    ) -> list[Group]:
        """Every process plays each ``size``-th group."""
        mine = groups[self.crew.rank :: self.crew.size]
        hands = self._gathered(lambda: play(env, self.policy, mine, rollout, key=key))
        return [hands[at % self.crew.size][at // self.crew.size] for at in range(len(groups))]

    def score(self, pairs: Sequence[Pair], temperature: float) -> list[FloatArray]:
        """Every process scores a stretch: neighbours share beginnings, which are read once."""
        rank, size = self.crew.rank, self.crew.size
        mine = pairs[len(pairs) * rank // size : len(pairs) * (rank + 1) // size]
        hands = self._gathered(lambda: self.policy.score(mine, temperature))
        return [scores for hand in hands for scores in hand]

    def update(self, samples: Sequence[Sample], objective: Objective, scale: float) -> Update:
        """The learners share the micro-batches out."""
        return self.learner.update(samples, objective, scale=scale)

    def gradient(self, samples: Sequence[Sample], objective: Objective) -> Gradient:
        """As above."""
        return self.learner.gradient(samples, objective)

    def kl_to_reference(
        self, samples: Sequence[Sample], estimator: KLEstimator
    ) -> list[FloatArray]:
        """As above."""
        return self.learner.kl_to_reference(samples, estimator)

    def values(self, samples: Sequence[Sample]) -> list[FloatArray]:
        """As above."""
        return self.learner.values(samples)

    def update_critic(
        self, samples: Sequence[Sample], settings: CriticSettings
    ) -> dict[str, float]:
        """As above."""
        return self.learner.update_critic(samples, settings)

    def save(self, folder: Path) -> None:
        """The first process writes; the others bring their parts of the weights."""
        self.learner.save(folder)

    def load(self, folder: Path) -> None:
        """Every process reads the same files."""
        self.learner.load(folder)

    def _gathered(self, make: Callable[[], list[Item]]) -> list[list[Item]]:
        """What all made."""
        return self.crew.gather(agreed(self.crew, make))


class ToldByLeader(RagenError):
    """A mistake that the first process tells the user about: the others end without a word."""


def agreed(crew: Crew, make: Callable[[], Item]) -> Item:
    """What this process made; when one of them met a mistake of the user, the end of all."""
    made: list[Item] = []
    mistake: RagenError | None = None
    try:
        made.append(make())
    except RagenError as error:
        mistake = error
    for found in crew.gather(mistake):
        if found is None:
            continue
        crew.leave()
        if crew.rank:
            raise ToldByLeader(str(found))
        raise found
    return made[0]


def follow(hand: Hand) -> None:
    """Carry out orders until the first process says that it was the last."""
    while (order := hand.crew.hear()) != END:
        hand.do(*order)


class Lead:
    """Policy and learner of the first process: each call is an order to all."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self.max_context = hand.policy.max_context

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Of this process's own model."""
        return self._hand.policy.tokenizer

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """A few replies, by this process alone."""
        return self._hand.policy.sample(requests, params)

    def play_groups(
        self,
        env: Env,
        groups: Sequence[Sequence[Task]],
        rollout: Rollout,
        key: tuple[int | str, ...],
    ) -> list[Group]:
        """Groups, by all."""
        found: list[Group] = self._order("play", env, groups, rollout, key)
        return found

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Scores, by all."""
        found: list[FloatArray] = self._order("score", pairs, temperature)
        return found

    def update(self, samples: Sequence[Sample], objective: Objective, *, scale: float) -> Update:
        """One update of all."""
        done: Update = self._order("update", samples, objective, scale)
        return done

    def gradient(self, samples: Sequence[Sample], objective: Objective) -> Gradient:
        """The gradient over all samples."""
        found: Gradient = self._order("gradient", samples, objective)
        return found

    def kl_to_reference(
        self, samples: Sequence[Sample], estimator: KLEstimator
    ) -> list[FloatArray]:
        """KL at each written token."""
        found: list[FloatArray] = self._order("kl_to_reference", samples, estimator)
        return found

    def values(self, samples: Sequence[Sample]) -> list[FloatArray]:
        """The critic's values."""
        found: list[FloatArray] = self._order("values", samples)
        return found

    def update_critic(
        self, samples: Sequence[Sample], settings: CriticSettings
    ) -> dict[str, float]:
        """One update of all critics."""
        found: dict[str, float] = self._order("update_critic", samples, settings)
        return found

    def save(self, folder: Path) -> None:
        """A checkpoint as one process writes it."""
        self._order("save", folder)

    def load(self, folder: Path) -> None:
        """Bring all processes to a checkpoint."""
        self._order("load", folder)

    def describe(self) -> Mapping[str, str]:
        """Facts for the log."""
        return self._hand.learner.describe()

    def _order(self, name: str, *words: Any) -> Any:
        self._hand.crew.tell((name, *words))
        return self._hand.do(name, *words)
