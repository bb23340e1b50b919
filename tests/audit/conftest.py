"""What the tests of the audit share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen2.audit import ReadSettings, SampleLimits, WordLikelihood, analyse, log_files, read_log
from ragen2.audit.likelihoods import Likelihood
from ragen2.runs.record import AuditRecord
from ragen2.runs.scores import ScoreRecord

Audit = Callable[..., AuditRecord]


@pytest.fixture
def audited() -> Audit:
    """Audit one path: ``audited(path, limits=SampleLimits(...), columns={...})``."""

    def run(
        path: Path,
        *,
        likelihood: Likelihood | None = None,
        keep_scores: Callable[[ScoreRecord], None] | None = None,
        **settings: Any,
    ) -> AuditRecord:
        chosen = ReadSettings(**({"limits": SampleLimits(prompts=8, traces=8)} | settings))
        log = read_log(log_files([path]), chosen, lambda _: None)
        return analyse(
            log,
            chosen,
            likelihood or WordLikelihood(),
            sources=[str(path)],
            done=lambda: None,
            keep_scores=keep_scores,
        )

    return run
