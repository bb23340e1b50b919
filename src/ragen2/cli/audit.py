"""``ragen2 audit``: did it collapse? Asked of the rollouts that any framework logged."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.cli.shared import require_torch, write_text
from ragen2.errors import ConfigError, FailedCheck, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from ragen2.audit import ReadSettings, SampleLimits
    from ragen2.audit.likelihoods import Likelihood
    from ragen2.runs.record import AuditRecord
    from ragen2.runs.scores import ScoreRecord

TEXT_SAMPLE = (32, 16)
"""Prompts, and reasoning traces of each, kept per step: comparing wording is cheap and needs many."""
MODEL_SAMPLE = (16, 4)
"""With a model every trace is scored under every prompt."""
NOT_MEASURED = "not_measured"
"""A name of ``--fail-on``: no step could be given a regime."""
STANDARD_OUTPUT = Path("-")


def audit(  # noqa: PLR0913 - one parameter per flag
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Log files, run directories or folders of logs."),
    ],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="Score with this: folder, hub id, run directory, or server (http://host/v1#model). "
            "Left out, wording is compared instead of likelihoods.",
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="F", help="ragen2, trl, verl, verifiers, ragen or columns."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="MAP", help="prompt=A,completion=B and reward, step, group."),
    ] = None,
    reasoning: Annotated[
        str, typer.Option(metavar="RULE", help="recorded, think, tag:NAME, all or regex:PATTERN.")
    ] = "recorded",
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=100.0,
            help="Score with --model at this one.",
            show_default="of a run directory its own; else 1",
        ),
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="Turn positions to measure.")] = 1,
    max_prompts: Annotated[
        int | None,
        typer.Option(min=2, help="Prompts kept of each step.", show_default="32; with --model 16"),
    ] = None,
    max_traces: Annotated[
        int | None,
        typer.Option(
            min=1, help="Reasoning traces kept of each prompt.", show_default="16; with --model 4"
        ),
    ] = None,
    max_steps: Annotated[int, typer.Option(min=2, help="Steps measured, spread evenly.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, audit.json and scores/.")
    ] = Path("audit"),
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Exit 1 on these regimes or failures, comma-separated, or not_measured.",
        ),
    ] = None,
    allow_not_measured: Annotated[
        bool,
        typer.Option(
            "--allow-not-measured",
            help="Let --fail-on pass a log in which collapse could not be measured.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Also write the record here; - is standard output, and all else goes to standard error.",
        ),
    ] = None,
) -> None:
    """Read logged rollouts and say whether reasoning still depends on its prompt.

    Example: ragen2 audit runs/try --fail-on template_collapse
    """
    from ragen2.audit import SampleLimits

    gate = _gate(fail_on, allow_not_measured=allow_not_measured)
    is_piped = json_file == STANDARD_OUTPUT
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise RunError(f"--json {json_file} cannot be written: its folder does not exist")
    usual = MODEL_SAMPLE if model else TEXT_SAMPLE
    limits = SampleLimits(max_prompts or usual[0], max_traces or usual[1], max_steps, turns, seed)
    settings = _read_settings(log_format, columns, reasoning, limits)
    if (out / "run.toml").exists():
        raise RunError(f"--out {out} is a run directory; choose another folder")
    if temperature is not None and not _is_local(model):
        raise ConfigError(
            f"--temperature {temperature:g} goes with a local --model; "
            "wording has none, and servers score at 1"
        )
    record, scores, likelihood = _audit(paths, model, settings, temperature)
    report = _write(record, scores, out)
    if json_file is not None:
        _write_record(record, json_file)
    from rich.console import Console

    from ragen2.cli.views.verdicts import print_audit

    screen = Console(stderr=is_piped)
    print_audit(record, report, screen)
    _print_usage(likelihood, screen)
    gate.judge(record, screen)


def _read_settings(
    log_format: str | None, columns: str | None, reasoning: str, limits: SampleLimits
) -> ReadSettings:
    from ragen2.audit import ReadSettings, ReasoningRule, parse_columns

    chosen = parse_columns(columns) if columns is not None else None
    settings = ReadSettings(log_format, chosen, ReasoningRule(reasoning), limits)
    settings.reader()  # a wrong --format is reported before anything is read
    return settings


def _audit(
    paths: list[Path], model: str | None, settings: ReadSettings, temperature: float | None
) -> tuple[AuditRecord, list[ScoreRecord], Likelihood]:
    from ragen2.audit import PolicyLikelihood, analyse, log_files, read_log
    from ragen2.cli.views.verdicts import progress_bars

    files = log_files(paths)
    if temperature is None and _is_local(model):
        temperature = _sampled_at(paths)
    likelihood = _likelihood(model, temperature or 1.0)
    if isinstance(likelihood, PolicyLikelihood):
        settings = replace(settings, template_opens=likelihood.template_opens)
    else:
        settings = replace(settings, keeps_tokens=False)
    scores: list[ScoreRecord] = []
    with progress_bars(sum(path.stat().st_size for path in files)) as bars:
        log = read_log(files, settings, bars.read)
        bars.start_steps(len(log.steps))
        record = analyse(
            log,
            settings,
            likelihood,
            sources=[str(path) for path in paths],
            done=bars.measured,
            keep_scores=scores.append,
        )
    notes = [*record.notes, *_changed_files(paths)]
    return record.model_copy(update={"notes": notes}), scores, likelihood


def _changed_files(paths: list[Path]) -> list[str]:
    """What run directories among the logs no longer hold as it was recorded, or that nobody can tell."""
    from ragen2.runs.store import RunDirectory

    found = []
    for path in paths:
        if not (path / "run.toml").is_file():
            continue
        run = RunDirectory.open(path)
        try:
            records = run.records()
            found += [run.missing_records(records), run.changed_files(records)]
        except RunError as error:
            found.append(str(error))
    return [line for line in found if line]


def _is_local(model: str | None) -> bool:
    return model is not None and not model.startswith(("http://", "https://"))


def _sampled_at(paths: list[Path]) -> float:
    """The temperature that run directories among the logs were sampled at, and measured at; else 1."""
    from ragen2.runs.toml_files import read_toml_file

    found: set[float] = set()
    for path in paths:
        file = path / "run.toml" if path.is_dir() else path.parent.parent / "run.toml"
        try:
            settings = read_toml_file(file) if file.is_file() else {}
        except (OSError, ValueError) as error:
            raise RunError(
                f"{file} cannot be read ({error}), so it does not say what temperature was sampled at; "
                "say --temperature"
            ) from error
        tables = (settings.get(name) for name in ("trl", "rollout"))
        known = [
            one["temperature"] for one in tables if isinstance(one, dict) and "temperature" in one
        ]
        found |= {float(one) for one in known[:1] if isinstance(one, int | float) and one > 0}
    if len(found) > 1:
        listed = ", ".join(f"{one:g}" for one in sorted(found))
        raise ConfigError(
            f"these runs were sampled at temperatures {listed}; audit one at a time, or say --temperature"
        )
    return found.pop() if found else 1.0


def _likelihood(model: str | None, temperature: float) -> Likelihood:
    from ragen2.audit import PolicyLikelihood, ServerLikelihood, WordLikelihood

    if model is None:
        return WordLikelihood()
    if not _is_local(model):
        from ragen2.audit.likelihoods import server_and_model
        from ragen2.backends.remote.scorer import ServerScorer

        return ServerLikelihood(ServerScorer(*server_and_model(model)), model)
    from ragen2.cli.views.waiting import waiting

    with waiting(model):
        return PolicyLikelihood(require_torch().open_policy(model), model, temperature)


def _print_usage(likelihood: Likelihood, screen: Console) -> None:
    """What a server took, if one was asked."""
    from ragen2.audit import ServerLikelihood
    from ragen2.backends.remote.scorer import ServerScorer

    if isinstance(likelihood, ServerLikelihood) and isinstance(likelihood.server, ServerScorer):
        print(likelihood.server.usage.line(likelihood.server.settings), file=screen.file)


@dataclass(frozen=True, slots=True)
class _Gate:
    """What ``--fail-on`` asks: names that must not be found, and whether collapse must be measured."""

    unwanted: frozenset[str]
    needs_regime: bool
    """A gate on regimes that passed a log without any would pass on no evidence."""
    passes_not_measured: bool

    def judge(self, record: AuditRecord, screen: Console) -> None:
        """Raise ``FailedCheck`` where the audit does not pass."""
        from ragen2.reports.verdict import why_not_measured

        found = self.unwanted & {record.regime or "", *(one.name for one in record.failures)}
        if found:
            raise FailedCheck(f"--fail-on: found {', '.join(sorted(found))}")
        if record.regime is not None or not self.needs_regime:
            return
        why = why_not_measured(record.steps) or "no step had reasoning to compare"
        if not self.passes_not_measured:
            raise FailedCheck(
                f"--fail-on: collapse was not measured: {why}; --allow-not-measured passes it"
            )
        passed = f"--allow-not-measured passes that collapse was not measured: {why}"
        print(passed, file=screen.file)


def _gate(fail_on: str | None, *, allow_not_measured: bool) -> _Gate:
    from ragen2.diagnostics import Regime
    from ragen2.diagnostics.judging.detectors import DETECTORS, reasoning_collapse
    from ragen2.diagnostics.judging.warning import KINDS

    if fail_on is None:
        if allow_not_measured:
            raise ConfigError(
                "--allow-not-measured goes with --fail-on; leave it out or name what to fail on"
            )
        return _Gate(frozenset(), needs_regime=False, passes_not_measured=False)
    about_collapse = [*(one.value for one in Regime), NOT_MEASURED, *KINDS]
    failures = [one.__name__ for one in DETECTORS if one is not reasoning_collapse]
    known = [*about_collapse, *failures]
    names = [name.strip() for name in fail_on.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"--fail-on takes {', '.join(known)}; got {name!r}")
    if NOT_MEASURED in names and allow_not_measured:
        raise ConfigError(
            "--fail-on not_measured and --allow-not-measured contradict each other; leave one out"
        )
    needs_regime = any(name in about_collapse for name in names)
    return _Gate(frozenset(names), needs_regime, allow_not_measured)


def _write_record(record: AuditRecord, file: Path) -> None:
    """As ``audit.json`` has it."""
    text = record.model_dump_json(indent=1) + "\n"
    if file == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        write_text("--json", file, text)


def _write(record: AuditRecord, scores: list[ScoreRecord], out: Path) -> Path:
    """Numbers, score matrices and page, each file whole or not at all; those of an older audit go."""
    from ragen2.reports.data.report import report_of
    from ragen2.reports.load import as_run
    from ragen2.reports.page import write_page
    from ragen2.runs.files import write_atomically
    from ragen2.runs.scores import list_scores, write_scores

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "audit.json", record.model_dump_json(indent=1) + "\n")
        for _, old in list_scores(out):
            old.unlink()
    except OSError as error:
        raise RunError(
            f"--out {out} cannot be written: {error.strerror}; choose another folder"
        ) from error
    for one in scores:
        write_scores(out, one)
    return write_page(report_of([as_run(record, out)]), out / "report.html")
