"""The server gives the page and its data, to whom it should, and nothing else."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragen2.errors import RunError
from ragen2.reports.watch import Snapshots, WatchServer

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the case that asks for a token
Answer = tuple[int, dict[str, str], bytes]


def build():
    return {"title": "t", "notes": []}, {"replays-r0-3": lambda: {"episodes": ["é"]}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The server's working folder, with a file that must stay unread."""
    (tmp_path / "secret.txt").write_text("what no reader may see")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def serve(host: str, folder: Path) -> Iterator[WatchServer]:
    with WatchServer(host, 0, "<!doctype html>page", Snapshots([folder / "run"], build)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def local(folder: Path) -> Iterator[WatchServer]:
    yield from serve("127.0.0.1", folder)


@pytest.fixture
def public(folder: Path) -> Iterator[WatchServer]:
    yield from serve(EVERYWHERE, folder)


def ask(server: WatchServer, path: str, method: str = "GET", **headers: str) -> Answer:
    """The raw path goes onto the wire as it is: no client tidies it up."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.headers), body


def test_the_page_and_its_data_are_served(local):
    status, headers, body = ask(local, "/")
    assert (status, body) == (200, b"<!doctype html>page")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    status, headers, body = ask(local, "/data.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["title"] == "t"


def test_data_that_is_known_is_not_sent_again(local):
    since = json.loads(ask(local, "/data.json")[2])["live"]["since"]
    assert ask(local, f"/data.json?since={since}")[::2] == (204, b"")
    assert ask(local, "/data.json?since=other")[0] == 200


def test_a_block_is_served_by_its_name(local):
    status, _, body = ask(local, "/block.json?name=replays-r0-3")
    assert (status, json.loads(body)) == (200, {"episodes": ["é"]})
    assert ask(local, "/block.json?name=other")[0] == 404
    assert ask(local, "/block.json")[0] == 404


def test_answers_are_packed_for_those_who_take_it(local):
    status, headers, body = ask(local, "/data.json", Accept_Encoding="gzip, br")
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert json.loads(gzip.decompress(body))["title"] == "t"


def test_a_connection_serves_many_requests(local):
    connection = http.client.HTTPConnection("127.0.0.1", local.server_address[1], timeout=30)
    for path, status in [("/", 200), ("/nothing", 404), ("/data.json", 200)] * 3:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (status, True)
    connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/run/../secret.txt",
        "//secret.txt",
        "/./secret.txt",
        "/data.json/../secret.txt",
        "/data.json%00",
        "/run/run.toml",
        "/report.html",
        "/index.html",
        "/block.json?name=../secret.txt",
        "/block.json?name=secret.txt",
        "/block.json?name=/etc/passwd",
        "/etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1/secret.txt",
    ],
)
def test_no_other_file_can_be_had(local, path):
    status, _, body = ask(local, path)
    assert status == 404
    assert body == b"404 Not Found\n"


def test_only_reading_is_possible(local):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert ask(local, "/data.json", method=method)[0] == 501


@pytest.mark.parametrize(
    "host",
    ["evil.com", "evil.com:80", "127.0.0.1.evil.com", "", "192.168.0.5", "localhost.evil.com"],
)
def test_a_foreign_name_for_this_machine_is_refused(local, host):
    for path in ("/", "/data.json", "/block.json?name=replays-r0-3", "/nothing"):
        status, _, body = ask(local, path, Host=host)
        assert (status, body) == (403, b"403 Forbidden\n")


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:1", "[::1]:8000", "localhost"])
def test_local_names_are_answered_through_a_tunnel_too(local, host):
    assert ask(local, "/data.json", Host=host)[0] == 200


def test_a_request_without_a_host_is_refused(local):
    with socket.create_connection(("127.0.0.1", local.server_address[1]), timeout=30) as wire:
        wire.sendall(b"GET /data.json HTTP/1.0\r\n\r\n")
        assert b" 403 " in wire.recv(4096).partition(b"\r\n")[0]


def test_elsewhere_than_on_loopback_the_token_is_asked_for(public):
    token = public.access.token
    assert ask(public, f"/?token={token}")[0] == 200
    assert ask(public, f"/data.json?since=x&token={token}", Host="some.machine:80")[0] == 200
    for wrong in ("", "?token=", f"?token={token}x", f"?token={token[:-1]}", "?token=%C3%A4%00"):
        for path in ("/", "/data.json", "/block.json", "/nothing"):
            assert ask(public, path + wrong)[::2] == (403, b"403 Forbidden\n")


def test_the_address_is_the_one_a_browser_needs(local, public):
    assert local.url == f"http://127.0.0.1:{local.server_address[1]}/"
    assert public.url.endswith(f":{public.server_address[1]}/?token={public.access.token}")


def test_answers_may_not_be_kept_framed_or_passed_on(local):
    for path in ("/", "/data.json", "/nothing"):
        headers = ask(local, path)[1]
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Python" not in headers["Server"]


def test_readers_who_go_away_in_the_middle_disturb_nobody(local, capsys):
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", local.server_address[1])) as wire:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(local, "/data.json")[0] == 200
    assert capsys.readouterr().err == ""


def test_a_taken_port_is_told_in_one_line(local, folder):
    port = local.server_address[1]
    with pytest.raises(RunError, match=f"cannot listen on 127.0.0.1 port {port}: Address already"):
        WatchServer("127.0.0.1", port, "", Snapshots([folder], build))


def test_a_host_that_is_not_ours_is_told_in_one_line(folder):
    with pytest.raises(RunError, match=r"cannot listen on no.such.host.invalid port 0: "):
        WatchServer("no.such.host.invalid", 0, "", Snapshots([folder], build))
