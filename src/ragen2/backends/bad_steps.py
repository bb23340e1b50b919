"""Counting optimiser steps that could not be taken, until there were too many."""

from __future__ import annotations

from dataclasses import dataclass

from ragen2.errors import RunError


@dataclass(slots=True)
class BadSteps:
    """Steps in a row whose loss or gradient was not finite. ``limit`` 0 allows any number."""

    whose: str
    limit: int
    cure: str
    in_a_row: int = 0

    def count(self, *, is_bad: bool) -> None:
        """Note a step; at the limit the run ends."""
        self.in_a_row = self.in_a_row + 1 if is_bad else 0
        if self.limit and self.in_a_row >= self.limit:
            raise RunError(
                f"{self.limit} updates of the {self.whose} in a row had a loss or gradient that is not "
                f"finite; {self.cure} or go on from an earlier checkpoint"
            )
