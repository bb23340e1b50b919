"""Optimal Sokoban plans: A* over pushes, each priced with the walk that leads to it.

A node is the boxes and where the player stands after a push, so a plan with the least total price
has the fewest moves. Sets of cells are bits of one integer, so that a shift moves a whole set.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

from ragen2.envs.sokoban.levels import Room
from ragen2.errors import EnvError

ACTIONS = ("Up", "Down", "Left", "Right")
MAX_EXPANDED = 100_000
MAX_MATCHED_BOXES = 9
"""The exact matching goes through 2 to this power sets of targets; with more boxes several may share one."""

Node = tuple[int, int]
"""(bits of the box cells, player cell)."""


class SearchLimit(EnvError):
    """The search gave up; the room may or may not have a solution."""


def solve(
    room: Room, *, weight: float = 1.0, max_expanded: int = MAX_EXPANDED
) -> tuple[str, ...] | None:
    """A plan with the fewest moves, or None if there is none; ``SearchLimit`` after too many nodes.

    ``weight`` above 1 trades length for speed: the plan is at most that many times the shortest.
    """
    ground = _ground(room.width, room.floor, room.targets)
    start = _bits(room.boxes), room.player
    goal = _bits(room.targets)
    cost, parent, closed = {start: 0}, {start: start}, set[Node]()
    heap = [(0.0, 0, start)]
    while heap:
        _, _, node = heapq.heappop(heap)
        if node in closed:
            continue
        if node[0] == goal:
            return ground.moves(node, parent)
        closed.add(node)
        if len(closed) > max_expanded:
            raise SearchLimit(f"no plan found in {max_expanded} nodes; raise max_expanded")
        for price, pushed, after in ground.pushes(node):
            total = cost[node] + price
            if total >= cost.get(after, total + 1):
                continue
            bound = ground.bound(after[0])
            if bound is not None and not ground.frozen(pushed, after[0]):
                cost[after], parent[after] = total, node
                # Of equal estimates the one with fewer pushes left comes first: it is nearer the end.
                heapq.heappush(heap, (total + weight * bound, bound, after))
    return None


def _bits(cells: frozenset[int]) -> int:
    return sum(1 << cell for cell in cells)


def _cells(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


@lru_cache(maxsize=64)
def _ground(width: int, floor: frozenset[int], targets: frozenset[int]) -> _Ground:
    return _Ground(width, floor, targets)


class _Ground:
    """What stays the same while boxes move: walls, targets, and what follows from them."""

    def __init__(self, width: int, floor: frozenset[int], targets: frozenset[int]) -> None:
        self.width = width
        self.steps = (-width, width, -1, 1)
        self.floor_cells = floor
        self.floor = _bits(floor)
        self.targets = _bits(targets)
        distances = [self._push_distances(target) for target in sorted(targets)]
        self.distances = {cell: [row.get(cell) for row in distances] for cell in floor}
        self.live = {cell for cell in floor if any(d is not None for d in self.distances[cell])}
        self.exits = {box: self._exits(box) for box in floor}
        self.bounds: dict[int, int | None] = {}

    def _push_distances(self, target: int) -> dict[int, int]:
        """Pushes that bring a lone box from each cell to the target, wherever the player is."""
        found = {target: 0}
        queue = deque(found)
        while queue:
            cell = queue.popleft()
            for step in self.steps:
                before = cell - step
                if before not in found and {before, before - step} <= self.floor_cells:
                    found[before] = found[cell] + 1
                    queue.append(before)
        return found

    def _exits(self, box: int) -> list[tuple[int, int]]:
        """Pushes of a box that leave it some target: (bit to stand on, cell the box goes to)."""
        return [
            (1 << box - step, box + step)
            for step in self.steps
            if box - step in self.floor_cells and box + step in self.live
        ]

    def pushes(self, node: Node) -> Iterator[tuple[int, int, Node]]:
        """Every push within reach: price (the walk and the push itself), box's new cell, node."""
        boxes, player = node
        free = self.floor & ~boxes
        stands: dict[int, list[tuple[int, Node]]] = {}
        for box in _cells(boxes):
            for stand, onto in self.exits[box]:
                if stand & free and 1 << onto & free:
                    moved = boxes ^ 1 << box ^ 1 << onto
                    stands.setdefault(stand, []).append((onto, (moved, box)))
        wanted = sum(stands)
        width, wave, walked = self.width, 1 << player, 1
        while wave and wanted:
            hits = wave & wanted
            wanted ^= hits
            while hits:
                stand = hits & -hits
                hits ^= stand
                for onto, after in stands[stand]:
                    yield walked, onto, after
            free &= ~wave
            # The border is wall, so no shift carries a cell from one row into the next.
            wave = (wave << 1 | wave >> 1 | wave << width | wave >> width) & free
            walked += 1

    def bound(self, boxes: int) -> int | None:
        """Pushes that are needed at least, each box matched to its own target; None: hopeless."""
        if boxes not in self.bounds:
            self.bounds[boxes] = self._matching(boxes)
        return self.bounds[boxes]

    def _matching(self, boxes: int) -> int | None:
        rows = [self.distances[box] for box in _cells(boxes)]
        if len(rows) > MAX_MATCHED_BOXES:
            nearest = [min((d for d in row if d is not None), default=None) for row in rows]
            return None if None in nearest else sum(d for d in nearest if d is not None)
        # Least pushes by the set of targets taken, one box after another.
        least = {0: 0}
        for row in rows:
            extended: dict[int, int] = {}
            for used, pushes in least.items():
                for target, distance in enumerate(row):
                    if distance is None or used >> target & 1:
                        continue
                    taken, total = used | 1 << target, pushes + distance
                    if total < extended.get(taken, total + 1):
                        extended[taken] = total
            least = extended
        return min(least.values(), default=None)

    def frozen(self, pushed: int, boxes: int) -> bool:
        """Whether the box just pushed can never move again, and that leaves a box off target."""
        return any(not self.targets >> box & 1 for box in self._held(pushed, boxes, frozenset()))

    def _held(self, box: int, boxes: int, held: frozenset[int]) -> frozenset[int]:
        """Boxes that keep this one still for ever, itself included; empty if it can move.

        Boxes in ``held`` are taken as still: they are, if all that lean on them are.
        """
        held = group = held | {box}
        for step in (1, self.width):
            sides = box - step, box + step
            if any(side not in self.floor_cells or side in held for side in sides):
                continue
            if all(side not in self.live for side in sides):
                continue
            leaning = (self._held(side, boxes, held) for side in sides if boxes >> side & 1)
            support = next(filter(None, leaning), None)
            if support is None:
                return frozenset()
            group |= support
        return group

    def moves(self, node: Node, parent: dict[Node, Node]) -> tuple[str, ...]:
        """The plan that led to a node, walks included."""
        plan: list[int] = []
        while parent[node] != node:
            before = parent[node]
            moved = (before[0] & ~node[0]).bit_length() - 1
            onto = (node[0] & ~before[0]).bit_length() - 1
            step = onto - moved
            walk = self._walk(before[1], moved - step, self.floor & ~before[0])
            plan = [*walk, step, *plan]
            node = before
        return tuple(ACTIONS[self.steps.index(step)] for step in plan)

    def _walk(self, start: int, end: int, free: int) -> list[int]:
        """A shortest walk, as steps."""
        came: dict[int, int] = {start: 0}
        queue = deque([start])
        while end not in came:
            cell = queue.popleft()
            for step in self.steps:
                if cell + step not in came and free >> cell + step & 1:
                    came[cell + step] = step
                    queue.append(cell + step)
        steps = []
        while end != start:
            steps.append(came[end])
            end -= came[end]
        return steps[::-1]
