"""Ctrl-C as a wish: finish what is under way, save, then stop."""

from __future__ import annotations

import signal
from types import FrameType

EXIT_INTERRUPTED = 130


class StopRequest:
    """True after the first Ctrl-C or SIGTERM, so that the step is finished; a second stops at once."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.is_set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def __call__(self) -> bool:
        """Whether it was asked for."""
        return self.is_set

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True
        print(f"\n{self.answer}; press Ctrl-C again to stop at once", flush=True)
