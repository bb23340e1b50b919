"""How an update is shared out: alone, among replicas, or among holders of parts of the weights.

Micro-batches of all samples are dealt to the processes; weights of tokens are those of the whole batch, so
that a sum over processes is the gradient of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import distributed

from ragen2.types import FloatArray


class Gatherer(Protocol):
    """Hands every process what each of them has."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order."""
        ...


class Team:
    """One process alone: everything is its share."""

    rank = 0
    size = 1
    loss_factor = 1.0
    """What a loss is multiplied by before its gradients are put together."""
    cuts_weights = False
    """Whether each process holds only a part of every weight."""

    @property
    def replicas(self) -> Team:
        """The same processes for weights that all of them hold, such as a critic's."""
        return self

    def budget(self, most: int, total: int) -> int:
        """Tokens of a micro-batch, so that no process is without one as long as there are enough."""
        return min(most, -(-total // self.size)) if self.size > 1 else most

    def share(
        self, parts: Sequence[list[int]], lengths: Sequence[int]
    ) -> list[tuple[list[int], bool]]:
        """The micro-batches of this process; False marks one that is read for company and weighs 0."""
        del lengths
        return [(part, True) for part in parts]

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Give every process the gradient of all."""
        del parameters

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sums by name over all processes."""
        return dict(numbers)

    def join(self, found: Mapping[int, FloatArray]) -> dict[int, FloatArray]:
        """Rows that the processes found, together."""
        return dict(found)


ALONE = Team()


class Replicas(Team):
    """Every process holds all weights; gradients are added up, so that all make the same step."""

    def __init__(self, crew: Gatherer) -> None:
        self.rank, self.size = crew.rank, crew.size
        self._gather = crew.gather

    def share(
        self, parts: Sequence[list[int]], lengths: Sequence[int]
    ) -> list[tuple[list[int], bool]]:
        """The parts of this process; it may have none."""
        return [(part, True) for part in deal(parts, lengths, self.size)[self.rank]]

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Add gradients up in place. A parameter that no process used keeps none, as it would alone."""
        used = self._gather([parameter.grad is not None for parameter in parameters])
        waits = []
        for index, parameter in enumerate(parameters):
            if not any(flags[index] for flags in used):
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            waits.append(distributed.all_reduce(parameter.grad, async_op=True))
        for wait in waits:
            if wait is not None:
                wait.wait()

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """In the order of the processes, so that all have the same sums to the last bit."""
        totals: dict[str, float] = {}
        for part in self._gather(dict(numbers)):
            for name, value in part.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def join(self, found: Mapping[int, FloatArray]) -> dict[int, FloatArray]:
        """Rows of all processes."""
        return {row: values for part in self._gather(dict(found)) for row, values in part.items()}


class Shards(Replicas):
    """Every process holds a part of the weights. All must make the same number of passes.

    FSDP averages gradients over processes while they flow back: the factor makes that a sum.
    """

    cuts_weights = True

    def __init__(self, crew: Gatherer) -> None:
        super().__init__(crew)
        self.loss_factor = float(self.size)
        self._replicas = Replicas(crew)

    @property
    def replicas(self) -> Team:
        """A critic is not cut."""
        return self._replicas

    def share(
        self, parts: Sequence[list[int]], lengths: Sequence[int]
    ) -> list[tuple[list[int], bool]]:
        """The parts of this process, and as many for company as make all counts the same."""
        dealt = deal(parts, lengths, self.size)
        most = max(len(hand) for hand in dealt)
        mine = [(part, True) for part in dealt[self.rank]]
        return mine + [(parts[0], False)] * (most - len(mine))

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """FSDP did it in the backward pass."""
        del parameters


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the parts of all processes, or itself when it is not cut.

    Asked for by its method: the import of torch's distributed tensors costs everyone a second.
    """
    gather = getattr(tensor, "full_tensor", None)
    whole: torch.Tensor = tensor if gather is None else gather()
    return whole


def deal(parts: Sequence[list[int]], lengths: Sequence[int], hands: int) -> list[list[list[int]]]:
    """Give each part, largest first, to the hand with the fewest tokens."""
    loads = [sum(lengths[row] for row in part) for part in parts]
    dealt: list[list[list[int]]] = [[] for _ in range(hands)]
    held = [0] * hands
    for index in sorted(range(len(parts)), key=lambda index: (-loads[index], index)):
        hand = held.index(min(held))
        dealt[hand].append(parts[index])
        held[hand] += loads[index]
    return dealt
