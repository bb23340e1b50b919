"""The whole object behind a page: each run or audit, and the heavy blocks that it names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragen2 import __version__
from ragen2.diagnostics.metrics.gradients import ProbeRecord
from ragen2.reports.data.about import (
    absent_of,
    events_of,
    facts_of,
    settings_of,
    state_of,
    timings_of,
    versions_of,
)
from ragen2.reports.data.charts import charts_of, describe, token_unit
from ragen2.reports.data.compare import compare_data
from ragen2.reports.data.episodes import Blocks, missing_records, replays_of
from ragen2.reports.data.flow import flow_of
from ragen2.reports.data.matrices import matrices_of
from ragen2.reports.data.numbers import short, shorts
from ragen2.reports.data.probes import gradient_verdict, probe_entry, probe_summary, probes_of
from ragen2.reports.data.rewards import reward_of
from ragen2.reports.load import Run, load
from ragen2.reports.verdict import Verdict, basis, judge
from ragen2.runs.record import AuditRecord

ENDS = ("_low", "_high")
SCHEMA = 1


def run_data(run: Run, run_id: str, name: str) -> tuple[dict[str, Any], Blocks]:
    """The run's object and its heavy blocks."""
    scores, score_blocks, score_notes = matrices_of(run, run_id)
    replays, replay_blocks, replay_notes = replays_of(run, run_id)
    data = {
        "id": run_id,
        "name": name,
        "kind": "audit" if run.audit else "run",
        "state": state_of(run),
        "facts": facts_of(run),
        "steps": [record.step for record in run.records],
        "metrics": metrics_of(run),
        "charts": [chart.as_dict() for chart in charts_of(run)],
        "events": [event.as_dict() for event in events_of(run)],
        "verdict": verdict_data(judge(run)),
        "plane": plane_of(run),
        "scores": scores,
        "flow": flow_of(run),
        "reward": reward_of(run),
        "probes": probes_of(run),
        "replays": replays,
        "timings": timings_of(run),
        "settings": settings_of(run),
        "versions": versions_of(run),
        "absent": absent_of(run),
        "audit": audit_data(run.audit) if run.audit else None,
        "notes": [*_own_notes(run, bool(scores)), *score_notes, *replay_notes],
    }
    return data, score_blocks | replay_blocks


def metrics_of(run: Run) -> dict[str, Any]:
    """Every metric over all records, with its interval where it has one."""
    names = dict.fromkeys(name for record in run.records for name in record.metrics)
    found = {}
    for name in names:
        if name.endswith(ENDS) and name.rpartition("_")[0] in names:
            continue
        unit, about = describe(name)
        entry: dict[str, Any] = {
            "values": _values(run, name),
            "unit": unit,
            "about": about,
        }
        if f"{name}_low" in names and f"{name}_high" in names:
            entry |= {"low": _values(run, f"{name}_low"), "high": _values(run, f"{name}_high")}
        found[name] = entry
    return found


def plane_of(run: Run) -> dict[str, Any] | None:
    """The path through the regime plane; None when nothing was measured.

    An audit by wording has no entropy per word, so its plane is that of whole traces.
    """
    stem = f"collapse/{run.main_scope}/"
    for ending, unit in (("", token_unit(run)), ("_seq", "nats per trace")):
        across = f"{stem}conditional_entropy{ending}"
        up = f"{stem}mi_estimate" if not ending else f"{stem}mi_seq_estimate"
        points = [
            {
                "step": record.step,
                "x": short(record.metrics[across]),
                "y": short(record.metrics[up]),
                "regime": record.regime,
            }
            for record in run.records
            if across in record.metrics and up in record.metrics
        ]
        if points:
            bound = run.series(f"{stem}mi_bound").values
            return {
                "x_metric": across,
                "y_metric": up,
                "x_unit": unit,
                "y_unit": unit,
                "bound": short(bound[-1]) if bound else None,
                "points": points,
            }
    return None


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """The verdict as the page takes it."""
    return {
        "word": verdict.word,
        "tone": verdict.tone,
        "text": verdict.text,
        "certainty": verdict.certainty,
        "next": verdict.next,
        "evidence": [asdict(one) for one in verdict.evidence],
        "prompts": [
            {
                "label": one.label,
                "step": one.step,
                "scope": one.scope,
                "share": short(one.share),
                "num_traces": one.num_traces,
            }
            for one in verdict.prompts
        ],
    }


def audit_data(record: AuditRecord) -> dict[str, Any]:
    """What became of the log."""
    rows: list[list[Any]] = [["read", record.rows.read], ["used", record.rows.used]]
    rows += [[f"not used: {reason}", count] for reason, count in record.rows.unused.items()]
    rows += [[f"not scored: {reason}", count] for reason, count in record.rows.no_trace.items()]
    return {
        "sources": record.sources,
        "basis": basis(record),
        "rows": rows,
        "unreadable": [[path, why] for path, why in record.unreadable.items()],
        "blind": [
            {"step": one.step, "reason": one.reason, "examples": one.examples}
            for one in record.blind_prompts
        ],
        "findings": [one.model_dump() for one in record.failures],
    }


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What ``reports.page.render`` takes."""

    data: dict[str, Any]
    blocks: Blocks
    """Each block is made when it is called for; a server makes only what a reader opens."""

    def all_blocks(self) -> dict[str, Any]:
        """Every block made, for a page that stands alone."""
        return {name: make() for name, make in self.blocks.items()}


def build_report(paths: Sequence[Path]) -> Report:
    """Read these run directories and audit folders."""
    return report_of([load(path) for path in paths])


def report_of(runs: Sequence[Run]) -> Report:
    """The report of runs that are already read."""
    names = distinct_names(runs)
    parts = [run_data(run, f"r{number}", names[number]) for number, run in enumerate(runs)]
    compare = compare_data(runs) if len(runs) > 1 else None
    blocks: Blocks = {}
    for _, own in parts:
        blocks |= own
    return Report(_whole(", ".join(names), [part for part, _ in parts], compare), blocks)


def probe_report(record: ProbeRecord) -> Report:
    """The report of one probe, without the run around it."""
    name = f"{record.run}, step {record.step}"
    data, _ = run_data(Run(Path(record.run), {}, ()), "r0", name)
    verdict = {
        "word": f"Gradients of step {record.step}",
        "tone": "unknown",
        "text": gradient_verdict(record.trends),
        "certainty": "",
        "next": "",
        "evidence": [],
    }
    more = {
        "state": "finished",
        "facts": [["probed", probe_summary(record)]],
        "verdict": verdict,
        "probes": [probe_entry(record)],
        "notes": [],
        "versions": [["ragen2", __version__]],
    }
    return Report(_whole(f"Gradients of {name}", [data | more], None), {})


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """A name for each run; runs that share one get their folder's place before it."""
    names = [run.name for run in runs]
    found = [
        f"{run.path.resolve().parent.name}/{name}" if names.count(name) > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]
    return [
        f"{name} ({number})" if found.count(name) > 1 else name
        for number, name in enumerate(found, 1)
    ]


def _own_notes(run: Run, has_scores: bool) -> list[str]:
    notes = list(run.audit.notes) if run.audit else []
    if missing := missing_records(run):
        notes.append(missing)
    elif not run.records:
        notes.append("The run has no record yet.")
    elif not has_scores and any(record.regime for record in run.records):
        notes.append(
            "This run kept no score matrices (it is older than they are), so none can be shown."
        )
    return notes


def _values(run: Run, name: str) -> list[float | None]:
    return shorts(record.metrics.get(name) for record in run.records)


def _whole(
    title: str, runs: list[dict[str, Any]], compare: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "title": title,
        "version": __version__,
        "generated": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "live": None,
        "notes": [],
        "runs": runs,
        "compare": compare,
    }
