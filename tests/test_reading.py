"""Foreign files: nothing is waited for, and nothing unpacks without end."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from ragen2 import reading

PACKERS = [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
PACKED = pytest.mark.parametrize(("suffix", "pack"), PACKERS)


def test_a_file_is_read_packed_or_not(tmp_path: Path):
    text = "grün\n" * 1000
    for suffix, pack in [("", bytes), *PACKERS]:
        path = tmp_path / f"file.txt{suffix}"
        path.write_bytes(pack(text.encode()))
        assert reading.read_text(path) == text


def special(folder: Path, kind: str) -> Path:
    path = folder / "file"
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["a named pipe", "a folder", "a device"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str):
    with pytest.raises(OSError, match=f"it is {kind}, not a file"):
        reading.read_bytes(special(tmp_path, kind))


def test_a_socket_is_refused(tmp_path: Path):
    with pytest.raises(OSError, match="No such device or address"):
        reading.read_bytes(special(tmp_path, "a socket"))


def test_a_missing_file_is_missing(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        reading.open_file(tmp_path / "none")


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_a_bomb_is_refused_at_its_bound(tmp_path: Path, monkeypatch, suffix, pack):
    monkeypatch.setattr(reading, "UNPACKED", 2**20)
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(pack(bytes(2**25)))
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match=r"it unpacks to more than \d+ MB"):
            reading.read_bytes(path)
        assert tracemalloc.get_traced_memory()[1] < 2**25 / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_a_packed_file_that_is_cut_or_no_such_file_is_an_os_error(tmp_path: Path, suffix, pack):
    path = tmp_path / f"file{suffix}"
    for data in (pack(bytes(range(256)) * 40)[:-9], b"no packed file"):
        path.write_bytes(data)
        with pytest.raises(OSError):  # noqa: PT011 - each unpacker has words of its own
            reading.read_bytes(path)


def test_a_parquet_file_of_a_few_bytes_and_endless_rows_is_refused(tmp_path: Path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    from pyarrow import parquet

    from ragen2.envs.toolkit.records import read_records
    from ragen2.errors import EnvError

    monkeypatch.setattr(reading, "UNPACKED", 2**20)
    monkeypatch.setattr(reading, "MOST_ROWS", 1000)
    bomb, many = tmp_path / "bomb.parquet", tmp_path / "many.parquet"
    parquet.write_table(pyarrow.table({"text": ["a" * 2**25]}), bomb, compression="zstd")
    parquet.write_table(pyarrow.table({"text": pyarrow.nulls(2**22)}), many)
    with pytest.raises(EnvError, match=r"it unpacks to more than \d+ MB"):
        next(read_records(str(bomb)))
    odd = tmp_path / "odd.parquet"
    text = pyarrow.array([b"\xff"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": text}), odd)
    with pytest.raises(EnvError, match=r"odd.parquet cannot be read: 'utf-8' codec"):
        next(read_records(str(odd)))
    with pytest.raises(EnvError, match=r"it claims 4,194,304 rows in [\d,]+ bytes"):
        next(read_records(str(many)))


def test_a_file_beyond_the_bound_is_refused_unread(tmp_path: Path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="it holds more than 1 MB"):
        reading.read_bytes(path, 2**20)


def test_json_nested_too_deep_is_a_value_error():
    assert reading.parse_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 100_000, b"\xff", "1" * 5000, "{"):
        with pytest.raises(ValueError, match=r"."):
            reading.parse_json(text)
    with pytest.raises(json.JSONDecodeError):
        reading.parse_json("")


def test_json_of_countless_empty_objects_is_refused_before_it_takes_memory(monkeypatch):
    monkeypatch.setattr(reading, "FEW_OBJECTS", 8)
    sparse = json.dumps([{"answer": "x" * 20}] * 20)
    assert reading.parse_json(sparse) == reading.parse_json(sparse.encode()) == json.loads(sparse)
    assert reading.parse_json("[{},{},{}]") == [{}] * 3
    for inner in ("{}", "[]", '{"":0}'):
        text = f"[{','.join([inner] * 20)}]"
        for one in (text, text.encode()):
            with pytest.raises(ValueError, match="21 lists and objects in"):
                reading.parse_json(one)
