"""One loop, several processes: rank 0 runs it, all carry out its commands with their share of the work.

Groups are shared out whole, and so are the pairs to score and the micro-batches of an update. Rank 0 gets
everything back, so that the filter, the diagnostics and the records see the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ragen2.errors import RagenError
from ragen2.rollout import Task, play

if TYPE_CHECKING:
    from ragen2.backends.distributed.process_group import ProcessGroup
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
    from ragen2.rollout.prompts import PromptSettings
    from ragen2.types import Completion, FloatArray, Group, Sample, Update

SHUTDOWN = "shutdown"
"""The last command of rank 0."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Worker:
    """One process, rank 0 included: carries out commands together with all others."""

    processes: ProcessGroup
    policy: Policy
    learner: Learner

    def run(self, command: str, *args: Any, **options: Any) -> Any:
        """Carry a command out: ``play`` and ``score`` here, any other is a method of the learner.

        Learners divide their work themselves: they split micro-batches, and save what rank 0 gathers.
        """
        owner = self if command in {"play", "score"} else self.learner
        self.processes.is_busy = True
        with self.processes.guard():
            done = getattr(owner, command)(*args, **options)
        # Not in a ``finally``: after an error the others may wait inside this command for ever.
        self.processes.is_busy = False
        return done

    def run_until_shutdown(self) -> None:
        """Carry out the commands of rank 0 until its last."""
        while (received := self.processes.receive()) != SHUTDOWN:
            command, args, options = received
            self.run(command, *args, **options)

    def play(
        self,
        env: Env,
        groups: Sequence[Sequence[Task]],
        rollout: Rollout,
        prompt: PromptSettings,
        key: tuple[int | str, ...],
    ) -> list[Group]:
        """Every process plays each ``size``-th group."""
        size = self.processes.size
        mine = groups[self.processes.rank :: size]
        played = self._gathered(
            lambda: play(env, self.policy, mine, rollout, key=key, prompt=prompt)
        )
        return [played[index % size][index // size] for index in range(len(groups))]

    def score(self, pairs: Sequence[Pair], temperature: float) -> list[FloatArray]:
        """Every process scores consecutive pairs: neighbours share a prefix, which is computed once."""
        rank, size = self.processes.rank, self.processes.size
        mine = pairs[len(pairs) * rank // size : len(pairs) * (rank + 1) // size]
        scored = self._gathered(lambda: self.policy.score(mine, temperature))
        return [scores for part in scored for scores in part]

    def _gathered(self, make: Callable[[], list[Item]]) -> list[list[Item]]:
        """What each process made, by rank."""
        return self.processes.gather(make_or_end_all(self.processes, make))


class ReportedByRankZero(RagenError):
    """A mistake that rank 0 reports to the user: the others end silently."""


def make_or_end_all(processes: ProcessGroup, make: Callable[[], Item]) -> Item:
    """What this process made; a mistake of the user in any process ends all of them.

    Without this exchange the others would wait for the process that failed.
    """
    made: list[Item] = []
    mistake: RagenError | None = None
    try:
        made.append(make())
    except RagenError as error:
        mistake = error
    for found in processes.gather(mistake):
        if found is None:
            continue
        processes.leave()
        if processes.rank:
            raise ReportedByRankZero(str(found))
        raise found
    return made[0]


class RankZero:
    """Policy and learner of the loop: each call is a command to all processes."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.max_context = worker.policy.max_context

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Of this process's own model."""
        return self._worker.policy.tokenizer

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """A few replies, by this process alone."""
        return self._worker.policy.sample(requests, params)

    def play_groups(
        self,
        env: Env,
        groups: Sequence[Sequence[Task]],
        rollout: Rollout,
        prompt: PromptSettings,
        key: tuple[int | str, ...],
    ) -> list[Group]:
        """Groups, by all."""
        found: list[Group] = self._command("play", env, groups, rollout, prompt, key)
        return found

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Scores, by all."""
        found: list[FloatArray] = self._command("score", pairs, temperature)
        return found

    def update(self, samples: Sequence[Sample], objective: Objective, *, scale: float) -> Update:
        """One update of all."""
        done: Update = self._command("update", samples, objective, scale=scale)
        return done

    def gradient(self, samples: Sequence[Sample], objective: Objective) -> Gradient:
        """The gradient over all samples."""
        found: Gradient = self._command("gradient", samples, objective)
        return found

    def kl_to_reference(
        self, samples: Sequence[Sample], estimator: KLEstimator
    ) -> list[FloatArray]:
        """KL at each written token."""
        found: list[FloatArray] = self._command("kl_to_reference", samples, estimator)
        return found

    def values(self, samples: Sequence[Sample]) -> list[FloatArray]:
        """The critic's values."""
        found: list[FloatArray] = self._command("values", samples)
        return found

    def update_critic(
        self, samples: Sequence[Sample], settings: CriticSettings
    ) -> dict[str, float]:
        """One update of all critics."""
        found: dict[str, float] = self._command("update_critic", samples, settings)
        return found

    def save(self, folder: Path) -> None:
        """A checkpoint as one process writes it; the others send their shards of the weights."""
        self._command("save", folder)

    def load(self, folder: Path) -> None:
        """Bring all processes to a checkpoint."""
        self._command("load", folder)

    def describe(self) -> Mapping[str, str]:
        """Facts for the log."""
        return self._worker.learner.describe()

    def _command(self, name: str, *args: Any, **options: Any) -> Any:
        self._worker.processes.broadcast((name, args, options))
        return self._worker.run(name, *args, **options)
