"""Reading a log: bounded, seeded, and nothing lost without being counted."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
from collections import Counter

import pytest

from logged_rollouts import make_rollouts, own_row, table_row, trl_row, write_jsonl, write_parquet
from ragen2.audit import ReadSettings, ReasoningRule, SampleLimits, files, log_files, read_log
from ragen2.audit.log import Log
from ragen2.audit.reservoir import Reservoir
from ragen2.audit.rollouts import LoggedRollout, LoggedTurn, Unusable, message_text, unstrip
from ragen2.errors import ConfigError, DependencyError


def read(path, **settings) -> Log:
    return read_log(log_files([path]), ReadSettings(**settings), lambda _: None)


def test_broken_lines_are_counted_and_change_no_number(audited, tmp_path):
    rows = [json.dumps(own_row(one)) for one in make_rollouts(members=20)]
    broken = ['{"env": "Board", "seed', "[1, 2]", "\xff\xfe", "null", "{}", '{"a":' * 5000]
    lines = []
    for number, row in enumerate(rows):
        lines.append(row)
        if number % 20 == 19:
            lines.append(broken[(number // 20) % len(broken)])
    clean, dirty = tmp_path / "clean.jsonl", tmp_path / "dirty.jsonl"
    clean.write_text("\n".join(rows))
    dirty.write_bytes("\n".join(lines).encode("latin-1") + b"\n\n" + rows[0][:50].encode())
    found = audited(dirty)
    assert found.steps == audited(clean).steps
    assert (found.rows.read, found.rows.used) == (169, 160)
    assert found.rows.unused == {
        "broken JSON": 4,
        "not a JSON object": 3,
        "not UTF-8 text; save it as UTF-8": 1,
        "not a ragen2 row": 1,
    }


def test_a_row_of_the_right_columns_and_wrong_content_is_counted(tmp_path):
    rows = [own_row(one) for one in make_rollouts(steps=[1])]
    rows[0]["turns"] = []
    rows[1]["turns"] = [7]
    rows[2]["messages"] = []
    rows[3]["turns"][0]["text"] = "no tags"
    rows[3]["turns"][0]["reasoning"] = ""
    log = read(write_jsonl(tmp_path / "log.jsonl", rows))
    told = {"no completion": 1, "malformed ragen2 row": 1, "no prompt": 1}
    assert log.unused == Counter(told)
    assert log.no_trace == Counter({"no reasoning": 1})
    assert log.num_used == len(rows) - 3


@pytest.mark.parametrize(
    ("prompt_ids", "ids", "span"),
    [
        ([1, "a"], [1], [0, 1]),
        ([1], [[1], [2, 3]], [0, 1]),
        ([1.5], [1], [0, 1]),
        ([1], [2**70], [0, 1]),
        ([-1], [1], [0, 1]),
        ([1], [1, 2], [0, 3]),
        ([1], [1, 2], [float("inf"), 3]),
        ([1], [1, 2], [1]),
        ("ids", [1], [0, 1]),
    ],
)
def test_token_ids_that_are_none_make_a_row_malformed(tmp_path, prompt_ids, ids, span):
    rows = [own_row(one) for one in make_rollouts(steps=[1])]
    rows[0]["turns"][0] |= {"prompt_ids": prompt_ids, "ids": ids, "reasoning_span": span}
    log = read(write_jsonl(tmp_path / "log.jsonl", rows))
    assert log.unused == {"malformed ragen2 row": 1}


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 4096)
    row = json.dumps(own_row(make_rollouts()[0]))
    path = tmp_path / "log.jsonl"
    path.write_text(f"{row}\n{'x' * 20_000}\n{row}\n")
    log = read(path)
    assert (log.num_used, log.unused) == (2, Counter({"line longer than 64 MB": 1}))


def test_what_is_kept_does_not_grow_with_the_log():
    limits = SampleLimits(prompts=3, traces=2, steps=4)
    reservoir = Reservoir(limits, ReasoningRule())
    for number in range(5000):
        turn = LoggedTurn(f"prompt {number % 50}", f"<think>why {number}</think>")
        with contextlib.suppress(Unusable):
            reservoir.add(LoggedRollout((turn,), reward=1.0), step=number // 500)
    kept = reservoir.steps()
    assert len(kept) == 4
    assert (kept[0].step, kept[-1].step) == (0, 9)
    assert all(len(one.prompts()) == 3 for one in kept)
    assert all(len(p.traces[0].items) == 2 for one in kept for p in one.prompts())
    assert kept[-1].num_rollouts == 500
    with pytest.raises(Unusable, match=r"step left out \(--max-steps\)"):
        reservoir.add(LoggedRollout((turn,)), step=8)


def test_the_kept_prompts_do_not_depend_on_the_order_of_the_log():
    def kept(order: list[int], seed: int) -> set[str]:
        reservoir = Reservoir(SampleLimits(prompts=5, seed=seed), ReasoningRule())
        for number in order:
            turn = LoggedTurn(f"prompt {number}", "<think>why</think>")
            reservoir.add(LoggedRollout((turn,)), step=1)
        return {p.traces[0].items[0].prompt for p in reservoir.steps()[0].prompts()}

    assert kept(list(range(40)), 0) == kept(list(range(40))[::-1], 0)
    assert kept(list(range(40)), 0) != kept(list(range(40)), 1)


def test_every_prompt_is_as_likely_to_be_kept():
    counts: Counter[str] = Counter()
    for seed in range(400):
        reservoir = Reservoir(SampleLimits(prompts=5, seed=seed), ReasoningRule())
        for number in range(20):
            turn = LoggedTurn(f"prompt {number}", "<think>why</think>")
            reservoir.add(LoggedRollout((turn,)), step=1)
        for prompt in reservoir.steps()[0].prompts():
            counts[prompt.traces[0].items[0].prompt] += 1
    # 100 of 400 each; a standard deviation is about 8.7.
    assert all(abs(count - 100) < 4 * 8.7 for count in counts.values())
    assert len(counts) == 20


def test_gzip_and_folders_are_read_in_the_order_of_their_numbers(tmp_path):
    for step in (10, 9):
        rows = "".join(json.dumps(own_row(one)) + "\n" for one in make_rollouts(steps=[step]))
        (tmp_path / f"{step}.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "steps.jsonl").write_text("{}\n")
    assert [path.name for path in log_files([tmp_path])] == ["9.jsonl.gz", "10.jsonl.gz"]
    assert [one.step for one in read(tmp_path).steps] == [9, 10]


def test_a_file_that_cannot_be_read_is_named_and_the_others_count(tmp_path):
    rows = [trl_row(one) for one in make_rollouts(steps=[1])]
    write_parquet(tmp_path / "completions_00001.parquet", rows)
    (tmp_path / "completions_00002.parquet").write_bytes(b"PAR1 cut short")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 9)[:-9])
    write_jsonl(tmp_path / "other.jsonl", [{"x": 1, "y": 2}])
    log = read(tmp_path)
    assert log.num_used == len(rows)
    told = {path.rsplit("/", 1)[-1]: why for path, why in log.unreadable.items()}
    assert sorted(told) == ["completions_00002.parquet", "cut.jsonl.gz", "other.jsonl"]
    assert told["other.jsonl"].startswith("format not recognised (columns x, y)")


ROWS = [{"prompt": f"é {one.user}", "response": one.reply} for one in make_rollouts(steps=[1])]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def table(delimiter: str) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ROWS[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.json", json.dumps(ROWS).encode()),
        ("list.json.gz", gzip.compress(json.dumps(ROWS).encode())),
        ("object.json", json.dumps({"model": "m", "seeds": [1, 2], "rollouts": ROWS}).encode()),
        ("lines.json", LINES.encode()),
        ("comma.csv", table(",").encode()),
        ("comma.csv.gz", gzip.compress(table(",").encode())),
        ("semicolon.csv", table(";").encode()),
        ("tab.csv", table("\t").encode()),
        ("tab.tsv", table("\t").encode("utf-16")),
        ("bom.csv", table(";").encode("utf-8-sig")),
        ("wide.jsonl", LINES.encode("utf-16")),
        ("wide_without_mark.jsonl", LINES.encode("utf-16-le")),
        ("wide.csv", table(",").encode("utf-16")),
        ("wide.json", json.dumps(ROWS, ensure_ascii=False).encode("utf-16")),
    ],
)
def test_the_same_rows_are_read_from_every_kind_of_file(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert list(files.read_rows(path, lambda _: None)) == ROWS
    log = read(path)
    assert (log.formats, log.num_used, log.unused) == (["columns"], len(ROWS), Counter())


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("old.jsonl", LINES.encode("latin-1"), "24 not UTF-8 text; save it as UTF-8"),
        ("old.csv", table(";").encode("latin-1"), "24 not UTF-8 text; save it as UTF-8"),
        (
            "old.json",
            json.dumps(ROWS, ensure_ascii=False).encode("latin-1"),
            "old.json: not UTF-8 text; save it as UTF-8",
        ),
        (
            "cut.json",
            b'[{"prompt": "p",',
            "broken JSON: Expecting property name.* line 1 column 17",
        ),
        ("deep.json", b"[" * 100_000, "broken JSON: nested too deep"),
        ("word.json", b'"hello"', "not a JSON object or a list of them"),
        ("settings.json", b'{"lr": 1, "layers": [1, 2]}', "a JSON object with no list of rows"),
        (
            "two.json",
            b'{"train": [{"q": 1}], "eval": [{"q": 1}]}',
            "a JSON object with the lists train, eval; write one row per line as .jsonl",
        ),
        ("odd.jsonl", LINES.encode("utf-16")[:-1], "text cannot be decoded"),
    ],
)
def test_a_file_that_is_not_read_says_the_true_reason(tmp_path, name, content, told):
    path = tmp_path / name
    path.write_bytes(content)
    if name == "odd.jsonl":  # all but the last row is there
        assert told in read(path).unreadable[str(path)]
        return
    with pytest.raises(ConfigError, match=told) as error:
        read(path)
    assert "\n" not in str(error.value)


def test_a_single_rollout_may_be_a_document_of_its_own(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(own_row(make_rollouts()[0]), indent=1))
    assert (read(path).formats, read(path).num_used) == (["ragen2"], 1)


def test_a_document_too_large_to_be_read_whole_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_JSON", 100)
    path = tmp_path / "large.json"
    path.write_text(json.dumps(ROWS))
    with pytest.raises(ConfigError, match="more than 256 MB; write one row per line"):
        read(path)


def test_settings_beside_a_log_are_not_taken_for_one(tmp_path):
    write_jsonl(tmp_path / "log.jsonl", ROWS)
    (tmp_path / "config.json").write_text("{}")
    assert [path.name for path in log_files([tmp_path])] == ["log.jsonl"]
    (tmp_path / "log.jsonl").rename(tmp_path / "log.json")
    assert sorted(path.name for path in log_files([tmp_path])) == ["config.json", "log.json"]


def test_steps_come_from_file_names_when_rows_do_not_say(tmp_path):
    for step in (3, 12):
        rows = [{"prompt": one.user, "response": one.reply} for one in make_rollouts(steps=[step])]
        write_jsonl(tmp_path / f"epoch_{step:04d}.jsonl", rows)
    assert [one.step for one in read(tmp_path).steps] == [3, 12]


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    path = write_parquet(tmp_path / "log.parquet", [trl_row(one) for one in make_rollouts()])
    monkeypatch.setattr(files.importlib, "import_module", missing)
    with pytest.raises(DependencyError, match=r"needs pyarrow; pip install 'ragen2\[audit\]'"):
        read(path)


@pytest.mark.parametrize(
    ("make", "settings", "told"),
    [
        (lambda one: {"prompt": "p", "response": "no tags"}, {}, "48 no reasoning.*--reasoning"),
        (lambda one: {"x": 1}, {}, "format not recognised"),
        (own_row, {"format": "verl"}, "48 not a verl row"),
        (table_row, {"columns": {"prompt": "q", "completion": "zz"}}, "48 not a columns row"),
    ],
)
def test_a_log_with_nothing_to_use_says_why_in_one_line(tmp_path, make, settings, told):
    path = write_jsonl(tmp_path / "log.jsonl", [make(one) for one in make_rollouts()])
    with pytest.raises(ConfigError, match=told) as error:
        read(path, **settings)
    assert "\n" not in str(error.value)


def test_what_is_not_there_or_no_log_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        log_files([tmp_path / "none.jsonl"])
    (tmp_path / "note.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"note.txt is none of .jsonl"):
        log_files([tmp_path / "note.txt"])
    with pytest.raises(ConfigError, match="holds no log"):
        log_files([tmp_path])


def test_a_prompt_decoded_without_special_tokens_gets_its_roles_back():
    text = "system\nBe brief.\nuser\nfirst\nassistant\n"
    chat = (("system", "Be brief."), ("user", "first"))
    assert unstrip(text) == chat
    assert unstrip(text + "<think>\n") == chat
    assert unstrip("user\na\nassistant\nb\nuser\nc\nassistant\n") == (
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    )
    for other in (
        "plain text",
        "user\nassistant\n",
        "user\na\nuser\nb\nassistant\n",
        text + "tail",
    ):
        assert unstrip(other) in {other, (("user", ""),)}


def test_a_message_is_its_reasoning_its_content_and_its_calls():
    call = {"function": {"name": "search", "arguments": '{"q": 1}'}}
    message = {"reasoning_content": "why", "content": [{"type": "text", "text": "hi"}, {"x": 1}]}
    assert message_text(message) == "<think>why</think>hi"
    assert message_text({"content": None, "tool_calls": [call]}) == '\nsearch({"q": 1})'
