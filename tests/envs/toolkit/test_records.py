"""Records come out the same whatever the file format, and held-out tasks stay apart."""

import gzip
import json
import sys
import types

import pytest

from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.toolkit.records import (
    read_records,
    require_fields,
    separate_tasks,
    split_tasks,
)
from ragen2.errors import ConfigError, DependencyError, EnvError

ROWS = [{"name": "é", "count": 1}, {"name": "b, c", "count": 2}]
AS_TEXT = [{name: str(value) for name, value in row.items()} for row in ROWS]


def write_all(folder):
    lines = "\n".join(json.dumps(row) for row in ROWS) + "\n\n"
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "rows.json").write_text(json.dumps(ROWS), encoding="utf-8")
    (folder / "held.json").write_text(json.dumps({"version": 1, "data": ROWS}), encoding="utf-8")
    (folder / "rows.csv").write_text('\ufeffname,count\né,1\n"b, c",2\n', encoding="utf-8")
    (folder / "rows.tsv").write_text("name\tcount\né\t1\nb, c\t2\n", encoding="utf-8")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.json", "held.json"])
def test_json_formats_give_the_same_records(tmp_path, name):
    write_all(tmp_path)
    assert list(read_records(str(tmp_path / name))) == ROWS


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv"])
def test_tables_give_the_same_records_as_text(tmp_path, name):
    write_all(tmp_path)
    assert list(read_records(str(tmp_path / name))) == AS_TEXT


def test_parquet_gives_the_same_records(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert list(read_records(str(tmp_path / "rows.parquet"))) == ROWS


def test_a_broken_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(EnvError, match=r"rows.parquet cannot be read: .*; fetch it again"):
        list(read_records(str(tmp_path / "rows.parquet")))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "rows.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DependencyError, match=r"needs pyarrow; pip install 'ragen2\[data\]'"):
        read_records(str(tmp_path / "rows.parquet"))


def test_a_json_object_without_a_list_is_one_record(tmp_path):
    (tmp_path / "one.json").write_text('{"a": [1], "b": 2}')
    assert list(read_records(str(tmp_path / "one.json"))) == [{"a": [1], "b": 2}]


def test_a_folder_is_read_in_order_of_name_and_skips_other_files(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"n": 2}\n')
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "README.md").write_text("hello")
    assert list(read_records(str(tmp_path))) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("source", ["/nowhere/at/all.jsonl", "nowhere.csv", "", "a/b.parquet"])
def test_a_missing_file_is_reported_at_once(source):
    with pytest.raises(ConfigError, match=r"is neither a file, nor a folder, nor a hub id"):
        read_records(source)


def test_an_unknown_suffix_lists_the_known_ones(tmp_path):
    (tmp_path / "rows.xlsx").write_text("")
    with pytest.raises(ConfigError, match=r"has no known suffix; known: .parquet, .jsonl"):
        read_records(str(tmp_path / "rows.xlsx"))


def test_an_empty_folder_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="holds no file of a known format"):
        read_records(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"a": 1}\n{"a": \n', r"x.jsonl line 2 is not JSON \(.*\); correct or remove"),
        ("x.jsonl", b"[1, 2]\n", "line 1 is a JSON list, not an object"),
        ("x.json", b'"text"', "holds a JSON string; it must hold a list of objects"),
        ("x.json", b"[" * 100_000, "is not JSON"),
        ("x.json", b"[1]", "item 1 is a JSON number, not an object"),
        ("x.jsonl", b"\xff\xfe\x00", "cannot be read"),
        ("x.jsonl.gz", b"not gzip", "cannot be read: .*; fetch it again"),
        ("x.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 100, mtime=0)[:-12], "cannot be read"),
        ("x.csv", b"a,b\n1\n", "line 2 has not as many fields as the header line"),
        ("x.csv", b"a,b\n1,2,3\n", "line 2 has not as many fields as the header line"),
        ("x.csv", b"a\n" + b"x" * 200_000, r"is not a table row \(.*\); save it as .jsonl"),
    ],
)
def test_a_bad_record_is_named_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EnvError, match=message):
        list(read_records(str(tmp_path / name)))


def test_a_hub_id_without_the_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DependencyError, match=r"'owner/name' is no file here.*ragen2\[data\]"):
        read_records("owner/name")


def test_a_hub_id_passes_name_config_and_split(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        return ROWS

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert list(read_records("owner/name")) == ROWS
    list(read_records("hub:owner/name/main:test[:10%]"))
    assert asked == [("owner/name", None, "train"), ("owner/name", "main", "test[:10%]")]


def test_a_hub_failure_is_one_line(monkeypatch):
    def load_dataset(name, config, split):
        raise ValueError("no such thing\nwith details")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(EnvError, match=r"cannot be loaded: no such thing; check the id") as caught:
        read_records("owner/name")
    assert "\n" not in str(caught.value)


def test_a_missing_field_is_named_beside_those_there_are():
    with pytest.raises(EnvError, match="rows has no field 'b', only a, c"):
        require_fields({"a": 1, "c": 2}, ("a", "b"), "rows")


def names_of(task):
    return (f"group {task // 3}", str(task))


def test_a_split_keeps_variants_together_and_parts_apart():
    tasks = split_tasks(range(300), names_of, held_out_ratio=0.2)
    held_out = {task // 3 for task in tasks.held_out}
    assert len(held_out) == 20
    assert len(tasks.held_out) == 60
    assert sorted(tasks.training + tasks.held_out) == list(range(300))
    assert held_out.isdisjoint(task // 3 for task in tasks.training)


def test_a_split_holds_out_at_least_one_task():
    tasks = split_tasks([0, 3], names_of, held_out_ratio=0.01)
    assert (len(tasks.training), len(tasks.held_out)) == (1, 1)


def test_tasks_that_are_in_both_parts_are_not_trained_on():
    tasks = separate_tasks([1, 4, 7], [0, 7], names_of)
    assert tasks.training == (4,)
    assert sorted(tasks.held_out) == [0, 7]


@pytest.mark.parametrize("tasks", [[], [0, 1, 2]])
def test_a_set_too_small_to_split_is_an_error(tasks):
    with pytest.raises(EnvError, match="both need at least one"):
        split_tasks(tasks, names_of, held_out_ratio=0.1)


def test_consecutive_seeds_visit_every_task_of_their_part_once():
    tasks = split_tasks(range(300), names_of, held_out_ratio=0.2)
    first = HELD_OUT_SEEDS + 17
    trained = [tasks.pick(seed) for seed in range(first, first + len(tasks.training))]
    held_out = [tasks.pick(seed) for seed in range(len(tasks.held_out))]
    assert sorted(trained) == sorted(tasks.training)
    assert sorted(held_out) == sorted(tasks.held_out)
