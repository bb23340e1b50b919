"""The early warning over the steps of a log: what it says becomes a failure with its step."""

from __future__ import annotations

from collections.abc import Mapping

from ragen2.diagnostics import EarlyWarning
from ragen2.diagnostics.judging.warning import share_left
from ragen2.runs.record import FoundFailure


class FollowedWarning:
    """Follows the measured steps in order, with the rule's default settings, as training does."""

    def __init__(self) -> None:
        self.failures: list[FoundFailure] = []
        """What was said so far."""
        self._rule = EarlyWarning()
        self._state = self._rule.start()
        self._taken: list[tuple[int, Mapping[str, float]]] = []

    def take(self, step: int, found: Mapping[str, float]) -> dict[str, float]:
        """Take what ``measure`` found at a step; returns the metrics ``warning/...``."""
        self._taken.append((step, found))
        before = self._state
        after = self._state = self._rule.update(before, found)
        if before.is_raised and not after.is_raised:
            lost = self.failures.pop()
            text = f"{lost.text}; it is back at step {step}"
            self.failures.append(lost.model_copy(update={"severity": "warning", "text": text}))
        elif after.is_raised and not before.is_raised:
            text = f"{after.reason}; the early warning comes at step {step}"
            self._say(after.kind, self._lost_since(), "severe", text)
        elif after.kind and after.kind != before.kind:
            self._say(after.kind, self._taken[0][0], "warning", after.reason)
        return {"warning/level": float(after.is_raised), "warning/statistic": after.statistic}

    def _lost_since(self) -> int:
        """The first step from which on more than the tolerated share is missing: the alarm comes later."""
        since = self._taken[-1][0]
        for step, found in reversed(self._taken):
            if found["num_prompts"] != self._state.prompts_now:
                break
            left = share_left(self._state, found)
            if left is None or left.value >= 1.0 - self._rule.tolerated:
                break
            since = step
        return since

    def _say(self, name: str, since_step: int, severity: str, text: str) -> None:
        text = text[0].upper() + text[1:]
        self.failures.append(
            FoundFailure(name=name, since_step=since_step, severity=severity, text=text)
        )
