"""What a served model took: requests, failures, tokens and, where prices are known, money."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from ragen2.backends.remote.settings import ServerSettings

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals so far. Tokens are those that the server itself counted in answers that arrived."""

    requests: int = 0
    failures: int = 0
    """Tries that brought no usable answer; each was made again or ended the run."""
    prompt_tokens: int = 0
    written_tokens: int = 0
    uncounted: int = 0
    """Answers that did not say how many tokens they took."""

    def cost(self, settings: ServerSettings) -> float | None:
        """Money in the unit of the prices; None when no price is set."""
        if not settings.input_price and not settings.output_price:
            return None
        total = (
            self.prompt_tokens * settings.input_price + self.written_tokens * settings.output_price
        )
        return total / MILLION

    def line(self, settings: ServerSettings) -> str:
        """All of it for a person to read."""
        parts = [
            f"{self.requests:,} requests",
            f"{self.prompt_tokens:,} prompt tokens",
            f"{self.written_tokens:,} written tokens",
        ]
        if self.failures:
            parts.insert(1, f"{self.failures:,} failed tries")
        if self.uncounted:
            parts.append(f"{self.uncounted:,} answers without a count of tokens")
        cost = self.cost(settings)
        if cost is not None:
            parts.append(f"cost {cost:.4f}")
        return f"server: {', '.join(parts)}"


class Meter:
    """Adds up usage from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usage = Usage()

    @property
    def usage(self) -> Usage:
        """Totals so far."""
        with self._lock:
            return self._usage

    def failed(self) -> None:
        """Count a try without a usable answer."""
        with self._lock:
            self._usage = replace(self._usage, failures=self._usage.failures + 1)

    def answered(self, answer: dict[str, Any], *, has_tokens: bool = True) -> None:
        """Count an answer, with the tokens it says it took; one to a mere question took none."""
        said = answer.get("usage")
        counts = said if isinstance(said, dict) else {}
        with self._lock:
            old = self._usage
            self._usage = replace(
                old,
                requests=old.requests + 1,
                prompt_tokens=old.prompt_tokens + int(counts.get("prompt_tokens") or 0),
                written_tokens=old.written_tokens + int(counts.get("completion_tokens") or 0),
                uncounted=old.uncounted + (has_tokens and not counts),
            )
