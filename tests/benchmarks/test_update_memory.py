"""The memory benchmark of an update prints one line of figures that mean what they say."""

from __future__ import annotations

import json
import sys

import pytest

import update_memory as script


@pytest.mark.parametrize("option", ["--checkpointing=on", "--padded"])
def test_one_line_of_figures(
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = "--layers 1 --vocabulary 300 --tokens 700 --longest 90 --micro-tokens 200 --repeats 1"
    monkeypatch.setattr(sys, "argv", ["update_memory.py", *sizes.split(), option, "--device=cpu"])
    script.main()
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["tokens"] == 700
    assert 0 < found["loss_tokens"] < 700
    assert found["micro_tokens"] == 200
    assert found["vocabulary"] == 300
    assert found["peak_gib"] is None
    assert (found["checkpointing"] == "on") is (option == "--checkpointing=on")
    assert (found["padding"] > 0.0) is (option == "--padded")
    assert found["seconds"] > 0.0
    assert found["is_reproducible"] is True


def test_samples_have_the_tokens_asked_for_and_no_more_than_the_longest() -> None:
    samples = script.make_samples(1000, 50, 90)
    assert sum(len(one.ids_T) for one in samples) == 1000
    assert max(len(one.ids_T) for one in samples) <= 90
    assert all(one.loss_mask_T.any() for one in samples)
