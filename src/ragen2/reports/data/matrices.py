"""Retrieval matrices: which trace fits which prompt, with texts, templated phrases and likenesses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ragen2.diagnostics.metrics.wording import nearest_traces, templated_phrases
from ragen2.reports.data.boards import boards_of
from ragen2.reports.data.charts import scope_label
from ragen2.reports.data.episodes import Blocks, Pictures, seen_of
from ragen2.reports.data.numbers import short, spread_over
from ragen2.reports.load import Run
from ragen2.runs.record import StepRecord
from ragen2.runs.scores import MAX_ROWS, ScopeScores, list_scores, read_scores

MOST_STEPS = 40
"""Steps whose matrices are in the page."""
NEAREST_ABOUT = "share of neighbouring word pairs that both traces have"


def matrices_of(run: Run, run_id: str) -> tuple[list[dict[str, Any]], Blocks, list[str]]:
    """Entries for the page, their blocks, and what was left out.

    The main scope is shown over the run, the other scopes at the last step that measured them.
    """
    files = dict(list_scores(run.path))
    by_step = {record.step: record for record in run.records}
    scoped = [
        (step, scope) for step in files if step in by_step for scope in _scopes_of(by_step[step])
    ]
    main = [pair for pair in scoped if pair[1] == run.main_scope]
    newest = {scope: (step, scope) for step, scope in scoped if scope != run.main_scope}
    chosen = sorted([*spread_over(main, MOST_STEPS), *newest.values()])
    blocks: Blocks = {}
    entries = []
    for step, scope in chosen:
        name = f"{run_id}-scores-{step}-{scope}"
        blocks[name] = _maker(run, files[step], scope)
        entries.append(_entry(by_step[step], scope, name))
    notes = []
    if len(main) > MOST_STEPS:
        notes.append(
            f"Score matrices of {MOST_STEPS} of {len(main)} scored steps are in this page, evenly over "
            "the run; the others are in the run directory."
        )
    return entries, blocks, notes


def block_of(
    scores: ScopeScores,
    board: Callable[[str], Any] = lambda text: None,
    picture: Callable[[str], str] = lambda name: "",
) -> dict[str, Any]:
    """One matrix as the page takes it; ``board`` reads one off a text, ``picture`` finds an image's URI."""
    images = scores.prompt_images or [""] * len(scores.prompts)
    phrases = templated_phrases(scores.reasonings, scores.owner)
    nearest = nearest_traces(scores.reasonings, scores.owner)
    return {
        "logp_NP": scores.logp,
        "length_N": scores.length,
        "owner_N": scores.owner,
        "prompts": [
            {"label": label, "text": text, "board": board(text), **seen_of([image], picture)}
            for label, text, image in zip(scores.prompt_labels, scores.prompts, images, strict=True)
        ],
        "traces": [
            {"label": label, "text": text, "action": action}
            for label, text, action in zip(
                scores.labels, scores.reasonings, scores.actions, strict=True
            )
        ],
        "phrases": [
            {
                "text": one.text,
                "prompts": one.prompts,
                "of": len(set(scores.owner)),
                "traces": one.traces,
                "of_traces": len(scores.owner),
            }
            for one in phrases
        ],
        "nearest": [
            {"a": one.first, "b": one.second, "similarity": short(one.similarity)}
            for one in nearest
        ],
        "nearest_about": NEAREST_ABOUT,
    }


def _scopes_of(record: StepRecord) -> list[str]:
    """Scopes that a record has retrieval of; these are the ones whose matrices were kept."""
    end = "/retrieval_accuracy"
    return [
        name.removeprefix("collapse/").removesuffix(end)
        for name in record.metrics
        if name.startswith("collapse/") and name.endswith(end)
    ]


def _maker(run: Run, path: Path, scope: str) -> Callable[[], Any]:
    def make() -> Any:
        found = [one for one in read_scores(path).scopes if one.name == scope]
        pictures = Pictures(run.path)
        return block_of(found[0], boards_of(run.settings), pictures.uri) if found else None

    return make


def _entry(record: StepRecord, scope: str, block: str) -> dict[str, Any]:
    def number(name: str) -> float | None:
        return short(record.metrics.get(f"collapse/{scope}/{name}"))

    return {
        "step": record.step,
        "scope": scope,
        "label": f"step {record.step}, {scope_label(scope)}",
        "num_traces": int(number("num_traces") or 0),
        "num_prompts": int(number("num_prompts") or 0),
        "accuracy": number("retrieval_accuracy"),
        "chance": number("retrieval_chance"),
        "block": block,
        "note": _cap_note(record, scope),
    }


def _cap_note(record: StepRecord, scope: str) -> str:
    traces = int(record.metrics.get(f"collapse/{scope}/num_traces", 0))
    prompts = int(record.metrics.get(f"collapse/{scope}/num_prompts", 0))
    if max(traces, prompts) <= MAX_ROWS:
        return ""
    return (
        f"The run directory keeps at most {MAX_ROWS} traces and prompts of a matrix; "
        f"{traces} traces of {prompts} prompts were scored."
    )
