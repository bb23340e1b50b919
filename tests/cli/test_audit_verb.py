"""``ragen2 audit`` as a user meets it: files, exit codes, one line for a mistake."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, Process, assert_refused, start_python, wait_for
from logged_rollouts import make_rollouts, own_row, table_row, verl_row, write_csv, write_jsonl
from ragen2.runs.record import AuditRecord
from ragen2.runs.scores import list_scores
from ragen2.runs.store import RunDirectory

Program = Callable[..., Done]


def write_log(folder: Path, *, grounded: bool) -> Path:
    rollouts = make_rollouts(tasks=6, members=8, grounded=grounded)
    return write_jsonl(folder / "log.jsonl", [verl_row(one) for one in rollouts])


def test_a_healthy_log_is_told_so_and_leaves_numbers_matrices_and_page(
    program: Program, tmp_path: Path
) -> None:
    write_log(tmp_path, grounded=True)
    done = program("audit", "log.jsonl", "--fail-on", "template_collapse,low_entropy_collapse")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Healthy.\n")
    assert "100% of reasoning traces are about their prompt." in done.stdout
    assert "How sure: 95% interval 9" in done.stdout
    assert "Next: Evaluate on held-out tasks: `ragen2 eval MODEL --env NAME`." in done.stdout
    assert "Estimated from the wording" in done.stdout
    assert "96 of 96 rows used (verl)" in done.stdout
    assert sorted(path.name for path in (tmp_path / "audit").iterdir()) == [
        "audit.json",
        "report.html",
        "scores",
    ]
    assert [step for step, _ in list_scores(tmp_path / "audit")] == [1, 2]
    record = AuditRecord.model_validate_json((tmp_path / "audit" / "audit.json").read_text())
    assert (record.schema_version, record.likelihood) == (1, "text")
    assert record.regime == "diverse_grounded"
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "Healthy" in page
    assert "connect-src 'none'" in page


def test_a_collapse_that_was_not_to_be_is_exit_code_1(program: Program, tmp_path: Path) -> None:
    write_log(tmp_path, grounded=False)
    done = program("audit", "log.jsonl", "--fail-on", "template_collapse", "--out", "found")
    assert done.returncode == 1
    assert done.stderr == "ragen2: --fail-on: found template_collapse\n"
    assert done.stdout.startswith("Reasoning was never about its prompt.\n")
    assert "Next: Warm-start it on reasoning that describes its state" in done.stdout
    assert json.loads((tmp_path / "found" / "audit.json").read_text())["regime"]


def test_the_same_log_gives_the_same_audit_again(program: Program, tmp_path: Path) -> None:
    write_log(tmp_path, grounded=True)
    for out in ("one", "two"):
        assert program("audit", "log.jsonl", "--out", out).returncode == 0
    assert (tmp_path / "one/audit.json").read_bytes() == (tmp_path / "two/audit.json").read_bytes()
    pages = [(tmp_path / out / "report.html").read_text() for out in ("one", "two")]
    timeless = [re.sub(r'"generated":"[^"]*"', "", page) for page in pages]
    assert timeless[0] == timeless[1]


def test_a_second_audit_leaves_no_matrix_of_the_first(program: Program, tmp_path: Path) -> None:
    write_log(tmp_path, grounded=True)
    assert program("audit", "log.jsonl").returncode == 0
    few = [verl_row(one) for one in make_rollouts(steps=[2], tasks=6, members=8)]
    write_jsonl(tmp_path / "log.jsonl", few)
    assert program("audit", "log.jsonl").returncode == 0
    assert [step for step, _ in list_scores(tmp_path / "audit")] == [2]


def test_an_audit_never_writes_into_a_run(program: Program, tmp_path: Path) -> None:
    write_log(tmp_path, grounded=True)
    RunDirectory.create(tmp_path / "run", "")
    done = program("audit", "log.jsonl", "--out", "run")
    told = "--out run is a run directory; choose another folder"
    assert_refused(done, tmp_path / "run", told, left=["rollouts", "run.toml"])


def test_a_table_is_read_by_its_column_map(program: Program, tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [table_row(one) for one in make_rollouts()])
    done = program("audit", "t.csv", "--columns", "prompt=q,completion=a,reward=r,step=at")
    assert (done.returncode, done.stderr) == (0, "")
    assert "48 of 48 rows used (columns)" in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("none.jsonl", "none.jsonl does not exist; give a log file or a run directory"),
        (
            "log.jsonl --format excel",
            "--format must be one of ragen2, verifiers, ragen, trl, verl, columns, chats, got 'excel'",
        ),
        (
            "log.jsonl --reasoning tags",
            "--reasoning must be recorded, think, tag:NAME, all or regex:PATTERN, got 'tags'",
        ),
        (
            "log.jsonl --columns prompt",
            "--columns takes FIELD=COLUMN pairs with fields prompt, completion, reward, step, group, "
            "got 'prompt'",
        ),
        (
            "log.jsonl --allow-not-measured",
            "--allow-not-measured goes with --fail-on; leave it out or name what to fail on",
        ),
        (
            "log.jsonl --fail-on not_measured --allow-not-measured",
            "--fail-on not_measured and --allow-not-measured contradict each other; leave one out",
        ),
        (
            "log.jsonl --json none/found.json",
            "--json none/found.json cannot be written: its folder does not exist",
        ),
        (
            "log.jsonl --columns prompt=a,completion=b --format trl",
            "--columns goes with --format columns, not trl",
        ),
        (
            "log.jsonl --temperature 0.7",
            "--temperature 0.7 goes with a local --model; wording has none, and servers score at 1",
        ),
        (
            "log.jsonl --reasoning tag:plan",
            "nothing to audit in log.jsonl: 48 rows read (48 no reasoning); say where it is, such as "
            "--reasoning all",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    program: Program, tmp_path: Path, words: str, line: str
) -> None:
    write_jsonl(tmp_path / "log.jsonl", [own_row(one) for one in make_rollouts()])
    assert_refused(program("audit", *words.split()), tmp_path, line, left=["log.jsonl"])


def test_a_run_is_scored_at_the_temperature_it_was_sampled_at(
    program: Program, tmp_path: Path
) -> None:
    for name, lines in {
        "trl": "[trl]\ntemperature = 0.5",
        "own": "[rollout]\ntemperature = 2.0",
        "silent": "seed = 1",
    }.items():
        run = RunDirectory.create(tmp_path / name, lines)
        rows = [own_row(one) for one in make_rollouts(steps=[1], tasks=2, members=3)]
        write_jsonl(run.path / "rollouts" / "step_000001.jsonl", rows)

    def scored_at(*words: str) -> float:
        done = program("audit", *words, "--model", "ragen2-tiny", "--json", "found.json")
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "found.json").read_text())["settings"]["temperature"]

    assert scored_at("trl") == 0.5
    assert scored_at("own/rollouts/step_000001.jsonl", "silent") == 2.0
    assert scored_at("trl", "own", "--temperature", "0.7") == 0.7
    done = program("audit", "trl", "own", "--model", "ragen2-tiny")
    line = (
        "these runs were sampled at temperatures 0.5, 2; audit one at a time, or say --temperature"
    )
    assert (done.returncode, done.stderr) == (2, f"ragen2: {line}\n")


def why_not(folder: Path) -> str:
    """What the record says of the missing measurement."""
    record = AuditRecord.model_validate_json((folder / "audit" / "audit.json").read_text())
    return record.steps[-1].absent["collapse/first_turn"]


@pytest.mark.parametrize(
    "names", ["template_collapse,undecided", "not_measured", "grounding_lost", "never_grounded"]
)
def test_a_gate_does_not_pass_what_was_not_measured(
    program: Program, tmp_path: Path, names: str
) -> None:
    rollouts = make_rollouts(tasks=1, members=8)
    write_jsonl(tmp_path / "log.jsonl", [verl_row(one) for one in rollouts])
    done = program("audit", "log.jsonl", "--fail-on", names)
    assert done.returncode == 1
    assert done.stderr == (
        f"ragen2: --fail-on: collapse was not measured: {why_not(tmp_path)}; "
        "--allow-not-measured passes it\n"
    )
    told = f"Reasoning was not compared across prompts: {why_not(tmp_path)}."
    assert told in plain(done.stdout)


def test_one_reply_per_prompt_is_undecided_for_a_gate(program: Program, tmp_path: Path) -> None:
    rows = [verl_row(one) for one in make_rollouts(tasks=2, members=1)]
    write_jsonl(tmp_path / "log.jsonl", rows)
    done = program("audit", "log.jsonl", "--fail-on", "template_collapse,undecided")
    assert (done.returncode, done.stderr) == (1, "ragen2: --fail-on: found undecided\n")


def test_what_was_not_measured_passes_only_where_it_may(program: Program, tmp_path: Path) -> None:
    rows = [verl_row(one) for one in make_rollouts(tasks=1)]
    write_jsonl(tmp_path / "log.jsonl", rows)
    words = ("audit", "log.jsonl", "--fail-on")
    done = program(*words, "template_collapse", "--allow-not-measured")
    assert (done.returncode, done.stderr) == (0, "")
    told = f"--allow-not-measured passes that collapse was not measured: {why_not(tmp_path)}"
    assert told in plain(done.stdout)
    assert program(*words, "reasoning_shrinkage").returncode == 0
    assert program("audit", "log.jsonl").returncode == 0
    write_log(tmp_path, grounded=True)
    assert program(*words, "not_measured").returncode == 0


def plain(text: str) -> str:
    """As one line, however the terminal wrapped it."""
    return " ".join(text.split())


def test_the_record_alone_is_on_standard_output_where_asked(
    program: Program, tmp_path: Path
) -> None:
    write_log(tmp_path, grounded=False)
    done = program("audit", "log.jsonl", "--json", "-", "--fail-on", "template_collapse")
    assert done.returncode == 1
    record = AuditRecord.model_validate_json(done.stdout)
    assert record.regime == "template_collapse"
    assert done.stdout == (tmp_path / "audit" / "audit.json").read_text()
    assert "Reasoning was never about its prompt" in plain(done.stderr)
    assert done.stderr.endswith("ragen2: --fail-on: found template_collapse\n")
    assert program("audit", "log.jsonl", "--json", "found.json").returncode == 0
    assert (tmp_path / "found.json").read_text() == done.stdout


@pytest.mark.parametrize("name", ["collapse", "reasoning_collapse"])
def test_a_name_that_nothing_has_is_refused(program: Program, tmp_path: Path, name: str) -> None:
    write_log(tmp_path, grounded=True)
    done = program("audit", "log.jsonl", "--fail-on", name)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "ragen2: --fail-on takes diverse_grounded, compressed_grounded, partial"
    )
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_cannot_be_written_is_told(program: Program, tmp_path: Path) -> None:
    write_log(tmp_path, grounded=True)
    (tmp_path / "taken").write_text("a file")
    done = program("audit", "log.jsonl", "--out", "taken")
    assert done.returncode == 2
    assert done.stderr == (
        "ragen2: --out taken cannot be written: File exists; choose another folder\n"
    )


def test_an_interrupt_is_130_and_leaves_nothing(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    line = json.dumps(verl_row(make_rollouts()[0])) + "\n"
    with (tmp_path / "log.jsonl").open("w") as file:
        for _ in range(40):
            file.write(line * 10_000)
    process = start("audit", "log.jsonl")
    opened = Path(f"/proc/{process.pid}/fd")
    wait_for(lambda: any("log.jsonl" in str(one.resolve()) for one in opened.iterdir()), process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in told
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_without_a_model_no_torch_is_loaded(tmp_path: Path) -> None:
    write_log(tmp_path, grounded=True)
    code = (
        "import sys; sys.argv = ['ragen2', 'audit', 'log.jsonl']\n"
        "from ragen2.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = start_python(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
