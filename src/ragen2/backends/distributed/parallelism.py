"""How an update is split over processes: not at all, over replicas (DDP), or over sharded weights (FSDP).

Each process computes some micro-batches of the whole batch. The weight of a token is the one it has in the
whole batch, so the sum of gradients over processes is the gradient that one process would compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import distributed

from ragen2.types import FloatArray

if TYPE_CHECKING:
    from ragen2.backends.distributed.process_group import ProcessGroup


class Parallelism:
    """A single process, which computes everything; the base of those that split the work."""

    rank = 0
    size = 1
    loss_factor = 1.0
    """What a loss is multiplied by before its gradients are combined."""
    shards_weights = False
    """Whether each process holds only a part of every weight."""

    @property
    def replicas(self) -> Parallelism:
        """The same processes for weights that all of them hold, such as a critic's."""
        return self

    def budget(self, most: int, total: int) -> int:
        """Tokens of a micro-batch: few enough that no process is left without one."""
        return min(most, -(-total // self.size)) if self.size > 1 else most

    def share(
        self, parts: Sequence[list[int]], lengths: Sequence[int]
    ) -> list[tuple[list[int], bool]]:
        """The micro-batches of this process; False marks a repeated one that has weight 0."""
        del lengths
        return [(part, True) for part in parts]

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Give every process the gradient of all."""
        del parameters

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sums by name over all processes."""
        return dict(numbers)

    def smallest(self, number: int) -> int:
        """The smallest of what all processes say; all must ask together."""
        return number

    def join(self, found: Mapping[int, FloatArray]) -> dict[int, FloatArray]:
        """Rows that the processes found, together."""
        return dict(found)


SINGLE_PROCESS = Parallelism()


class Replicas(Parallelism):
    """Every process holds all weights; gradients are added up, so that all make the same step."""

    def __init__(self, processes: ProcessGroup) -> None:
        self.rank, self.size = processes.rank, processes.size
        self._gather = processes.gather

    def share(
        self, parts: Sequence[list[int]], lengths: Sequence[int]
    ) -> list[tuple[list[int], bool]]:
        """The parts of this process; it may have none."""
        return [(part, True) for part in balance(parts, lengths, self.size)[self.rank]]

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

    def smallest(self, number: int) -> int:
        """The smallest of all processes' numbers."""
        return int(min(self._gather(number)))

    def join(self, found: Mapping[int, FloatArray]) -> dict[int, FloatArray]:
        """Rows of all processes."""
        return {row: values for part in self._gather(dict(found)) for row, values in part.items()}


class Shards(Replicas):
    """Every process holds a part of the weights. All must make the same number of forward passes.

    Each pass gathers weights from all processes, so one that made fewer would leave the others waiting.
    FSDP averages gradients over processes in the backward pass; the factor makes that a sum.
    """

    shards_weights = True

    def __init__(self, processes: ProcessGroup) -> None:
        super().__init__(processes)
        self.loss_factor = float(self.size)
        self._replicas = Replicas(processes)

    @property
    def replicas(self) -> Parallelism:
        """A critic is not sharded."""
        return self._replicas

    def share(
        self, parts: Sequence[list[int]], lengths: Sequence[int]
    ) -> list[tuple[list[int], bool]]:
        """The parts of this process, and repeated ones until all processes have as many."""
        assigned = balance(parts, lengths, self.size)
        most = max(len(one) for one in assigned)
        mine = [(part, True) for part in assigned[self.rank]]
        return mine + [(parts[0], False)] * (most - len(mine))

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """FSDP did it in the backward pass."""
        del parameters


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the shards of all processes, or itself when it is not sharded.

    Asked for by its method: the import of torch's distributed tensors costs everyone a second.
    """
    gather = getattr(tensor, "full_tensor", None)
    whole: torch.Tensor = tensor if gather is None else gather()
    return whole


def balance(
    parts: Sequence[list[int]], lengths: Sequence[int], num_processes: int
) -> list[list[list[int]]]:
    """Assign each part, largest first, to the process with the fewest tokens so far."""
    loads = [sum(lengths[row] for row in part) for part in parts]
    assigned: list[list[list[int]]] = [[] for _ in range(num_processes)]
    totals = [0] * num_processes
    for index in sorted(range(len(parts)), key=lambda index: (-loads[index], index)):
        process = totals.index(min(totals))
        assigned[process].append(parts[index])
        totals[process] += loads[index]
    return assigned
