"""The early warning over the steps of a log: what it says becomes a failure with its step."""

from __future__ import annotations

from collections.abc import Mapping

from ragen2.diagnostics import EarlyWarning
from ragen2.runs.record import FoundFailure


class FollowedWarning:
    """Follows the measured steps in order, with the rule's default settings, as training does."""

    def __init__(self) -> None:
        self.failures: list[FoundFailure] = []
        """What was said so far."""
        self._rule = EarlyWarning()
        self._state = self._rule.start()
        self._first: int | None = None
        self._falling_since = 0

    def take(self, step: int, found: Mapping[str, float]) -> dict[str, float]:
        """Take what ``measure`` found at a step; returns the metrics ``warning/...``."""
        self._first = step if self._first is None else self._first
        before = self._state
        after = self._state = self._rule.update(before, found)
        if after.statistic > 0.0 and before.statistic == 0.0:
            self._falling_since = step
        if before.is_raised and not after.is_raised:
            lost = self.failures.pop()
            text = f"{lost.text}; it is back at step {step}"
            self.failures.append(lost.model_copy(update={"severity": "warning", "text": text}))
        elif after.is_raised and not before.is_raised:
            # Dated from where the sum began to grow: the alarm itself comes later.
            text = f"{after.reason}; the early warning comes at step {step}"
            self._say(after.kind, self._falling_since, "severe", text)
        elif after.kind != before.kind and after.kind:
            self._say(after.kind, self._first, "warning", after.reason)
        return {"warning/level": float(after.is_raised), "warning/statistic": after.statistic}

    def _say(self, name: str, since_step: int, severity: str, text: str) -> None:
        text = text[0].upper() + text[1:]
        self.failures.append(
            FoundFailure(name=name, since_step=since_step, severity=severity, text=text)
        )
