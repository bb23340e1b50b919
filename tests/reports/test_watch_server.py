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

from ragen2.errors import ConfigError, RunError
from ragen2.reports.watch import Snapshots, WatchServer

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the case that asks for a token
UNSENT = "unsent"
"""In place of a header that is not sent."""
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
    headers = {"Authorization": f"Bearer {server.access.token}", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        if value == UNSENT:
            continue
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
        connection.request("GET", path, headers={"Authorization": f"Bearer {local.access.token}"})
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
    [
        *("evil.com", "evil.com:80", "127.0.0.1.evil.com", "", "192.168.0.5", "localhost.evil.com"),
        *("[::1].evil.com", "[::1].evil.com:80", "[::1", "[", "localhost:80:evil.com"),
    ],
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


@pytest.mark.parametrize("server", ["local", "public"])
def test_without_the_token_nobody_is_answered(server, request):
    asked = request.getfixturevalue(server)
    token = asked.access.token
    wrong = (
        "",
        "?token=",
        f"?token={token}x",
        f"?token={token[:-1]}",
        "?token=%C3%A4%00",
        "?t=%ff",
    )
    for path in ("/", "/data.json", "/block.json", "/nothing"):
        for query in wrong:
            assert ask(asked, path + query, Authorization=UNSENT)[::2] == (403, b"403 Forbidden\n")
    for header in ("", "Bearer", "Bearer x", token, f"Basic {token}"):
        assert ask(asked, "/data.json", Authorization=header)[0] == 403
    assert ask(asked, "/data.json", Authorization=UNSENT, Cookie=f"other={token}")[0] == 403


@pytest.mark.parametrize("server", ["local", "public"])
def test_the_printed_address_opens_the_page_and_a_cookie_keeps_it_open(server, request):
    asked = request.getfixturevalue(server)
    path = asked.url.partition(f":{asked.server_address[1]}")[2]
    assert path == f"/?token={asked.access.token}"
    status, headers, _ = ask(asked, path, Authorization=UNSENT)
    assert status == 200
    cookie, *rules = headers["Set-Cookie"].split("; ")
    assert set(rules) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    for kept in (cookie, f"a=1; {cookie}; b=2"):
        assert ask(asked, "/data.json", Authorization=UNSENT, Cookie=kept)[0] == 200
    assert "Set-Cookie" not in ask(asked, "/data.json", Authorization=UNSENT, Cookie=cookie)[1]
    assert "Set-Cookie" not in ask(asked, "/?token=x", Authorization=UNSENT)[1]


def test_two_servers_of_one_machine_have_cookies_of_their_own(local, public):
    cookies = [
        ask(one, f"/?token={one.access.token}")[1]["Set-Cookie"].partition("=")[0]
        for one in (local, public)
    ]
    assert cookies[0] != cookies[1]


def test_a_head_is_an_answer_without_its_body(local):
    for path in ("/", "/data.json", "/block.json?name=replays-r0-3", "/nothing"):
        wanted = ask(local, path)
        found = ask(local, path, method="HEAD")
        assert (found[0], found[2]) == (wanted[0], b"")
        assert found[1]["Content-Length"] == wanted[1]["Content-Length"]
    assert ask(local, "/data.json", method="HEAD", Authorization=UNSENT)[::2] == (403, b"")


@pytest.mark.parametrize("path", ["http://[", "http://[::1", "x://[]"])
def test_an_address_that_is_none_is_refused_without_a_word_in_the_log(local, path, caplog, capsys):
    with socket.create_connection(("127.0.0.1", local.server_address[1]), timeout=30) as wire:
        lines = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        wire.sendall(lines.encode("latin-1"))
        assert b" 400 " in wire.recv(4096).partition(b"\r\n")[0]
    assert caplog.text == ""
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "host", ["", "0", "0x0", "0.0", "000.000.000.000", "0::0", "::ffff:0.0.0.0"]
)
def test_only_by_its_name_is_every_address_listened_on(folder, host):
    with pytest.raises(ConfigError, match=r"--host '.*' would listen on every address; give "):
        WatchServer(host, 0, "", Snapshots([folder], build))


def test_another_name_of_loopback_is_treated_as_loopback(folder):
    with WatchServer("127.1", 0, "", Snapshots([folder], build)) as server:
        assert server.access.is_local


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
