"""Where rows lie in a batch of verl, so that its mini-batches are those of our own learner."""

from __future__ import annotations

from collections.abc import Sequence


def rows_by_rank(
    parts: Sequence[Sequence[int]], lengths: Sequence[int], padding: Sequence[int], ranks: int
) -> list[int]:
    """All rows in an order from which verl's ranks each cut their share of ``parts``.

    verl gives each rank one contiguous part of a batch, which it cuts into mini-batches of one size. A
    mini-batch that has a row less is filled up from ``padding``. Within one, ranks get long and short rows
    in turn, so that they take about as long.

    Args:
        parts: rows of each mini-batch.
        lengths: tokens of every row.
        padding: rows that are in no part; together with the others they divide evenly.
        ranks: how many share each mini-batch.
    """
    size, left = divmod(sum(map(len, parts)) + len(padding), len(parts))
    if left or size % ranks:
        raise AssertionError("padding makes parts that ranks can share")
    spare = list(padding)
    by_rank: list[list[int]] = [[] for _ in range(ranks)]
    for part in parts:
        rows = sorted(part, key=lambda row: -lengths[row])
        filled = rows + [spare.pop() for _ in range(size - len(rows))]
        for place, row in enumerate(filled):
            round_, seat = divmod(place, ranks)
            by_rank[seat if round_ % 2 == 0 else ranks - 1 - seat].append(row)
    return [row for rank in by_rank for row in rank]
