"""The run directory of a TRL run, without TRL: one writer, and what is refused at a resume."""

from __future__ import annotations

from pathlib import Path

import jobs
import numpy as np
import pytest

from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.diagnostics import Collapse, Surface
from ragen2.errors import RunError
from ragen2.filtering import KeepAll
from ragen2.integrations.trl.rows import Row, RowReader
from ragen2.integrations.trl.run_log import RunLog, ScoredBatch
from ragen2.integrations.trl.settings import SNRSettings
from ragen2.runs.lock import LockedError
from ragen2.types import Message


def log_of(path: Path, **run: object) -> RunLog:
    return RunLog(SNRSettings(diagnostics=()), path, {"seed": 0, **run}, seed=0, temperature=1.0)


def test_a_run_directory_has_one_writer_until_its_training_ends(tmp_path):
    first, second = log_of(tmp_path / "run"), log_of(tmp_path / "run")
    (tmp_path / "checkpoint-1").mkdir()
    first.start()
    first.save(tmp_path / "checkpoint-1", 0)
    with pytest.raises(LockedError, match="is written by another part of this program"):
        second.resume(tmp_path / "checkpoint-1")
    first.end()
    assert second.resume(tmp_path / "checkpoint-1")
    second.end()


def test_settings_that_a_script_changed_since_are_named_and_recorded(tmp_path, caplog):
    first, second = log_of(tmp_path / "run", steps=4), log_of(tmp_path / "run", steps=6)
    (tmp_path / "checkpoint-1").mkdir()
    first.start()
    first.save(tmp_path / "checkpoint-1", 0)
    first.end()
    assert second.resume(tmp_path / "checkpoint-1")
    second.end()
    assert "steps was 4 when the run began, is 6 now" in caplog.text
    assert (tmp_path / "run" / "run.toml").read_text() == "seed = 0\nsteps = 6\n"


def test_a_state_of_which_one_digit_has_changed_is_refused(tmp_path):
    log, checkpoint = log_of(tmp_path / "run"), tmp_path / "checkpoint-12"
    log.start()
    log.save(checkpoint, 12)
    log.end()
    file = checkpoint / "ragen2_state.json"
    file.write_text(file.read_text().replace("12", "13", 1))
    with pytest.raises(RunError, match=r"state\.json has changed since it was saved; resume from"):
        log.resume(checkpoint)


def test_a_checkpoint_whose_records_are_gone_is_refused(tmp_path):
    first, second = log_of(tmp_path / "run"), log_of(tmp_path / "run")
    (tmp_path / "checkpoint-2").mkdir()
    first.start()
    for step in (1, 2):
        first.attach(step, {"update/loss": 0.5})
        first.close()
    first.save(tmp_path / "checkpoint-2", 2)
    first.end()
    file = tmp_path / "run" / "steps.jsonl"
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    with pytest.raises(
        RunError, match=r"cannot be gone on from: steps\.jsonl ends with step 1 in "
    ):
        second.resume(tmp_path / "checkpoint-2")
    second.end()
    assert file.read_text().count("\n") == 1


class Even:
    """A scorer to which all is alike."""

    def score(self, pairs, temperature=1.0):
        return [-np.ones(len(pair.continuation_ids_T)) for pair in pairs]


@pytest.mark.parametrize(
    ("settings", "written", "is_told"),
    [
        (SNRSettings(diagnostics=(Collapse(),)), "just left", True),
        (SNRSettings(diagnostics=(Collapse(),)), "<think>so</think>left", False),
        (SNRSettings(diagnostics=(Collapse(),), reasoning="all"), "just left", False),
        (SNRSettings(diagnostics=(Surface(),)), "just left", False),
    ],
)
def test_completions_without_reasoning_are_told_once(tmp_path, caplog, settings, written, is_told):
    words = TemplateTokenizer(jobs.tokenizer(), [2])
    rows = [
        Row((Message("user", one),), words.encode(one), words.encode(written)) for one in "aabb"
    ]
    reader = RowReader(words, words.eos_ids, settings.reasoning)
    groups = reader.groups(rows, np.arange(4.0), 2)
    log = RunLog(settings, tmp_path / "run", {"seed": 0}, seed=0, temperature=1.0)
    log.start()
    for step in (1, 2):
        batch = ScoredBatch(groups, KeepAll().select(groups), knows_success=False)
        log.scored(step, batch, Even())
        log.close()
    log.end()
    line = (
        "no completion of step 1 has reasoning in <think> tags, so collapse is not measured; "
        'SNRSettings(reasoning="all") scores whole completions'
    )
    assert caplog.text.count(line) == int(is_told)
