"""Who is answered: those who have the token, on loopback under local names only."""

from __future__ import annotations

import pytest

from ragen2.reports.watch import Access, host_name, is_loopback

EVERYWHERE = "0.0.0.0"  # noqa: S104 - an address to be judged, nothing listens


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST"])
def test_addresses_of_this_machine_alone_are_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [EVERYWHERE, "::", "192.168.1.7", "10.0.0.1", "", "localhost.evil.com", "127.0.0.1.nip.io"],
)
def test_other_addresses_and_names_are_not(host):
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("127.0.0.1:8000", "127.0.0.1"),
        ("localhost", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("[::1].evil.com", ""),
        ("[::1].evil.com:80", ""),
        ("[::1]evil.com", ""),
        ("[::1", ""),
        ("[::1]:80:evil.com", ""),
        ("::1", ""),
        ("127.0.0.1:evil.com", ""),
        ("127.0.0.1:80@evil.com", ""),
        ("localhost:", ""),
        ("localhost\n", ""),
        ("localhost, evil.com", ""),
        ("", ""),
    ],
)
def test_a_host_header_is_a_name_with_or_without_a_port_and_nothing_else(header, name):
    assert host_name(header) == name


def test_on_loopback_local_names_only_are_answered():
    access = Access(True)
    for host in ("127.0.0.1:9", "localhost", "[::1]"):
        assert access.admits([host], [access.token])
        assert not access.admits([host], [])
    for hosts in (["evil.com:9"], ["[::1].evil.com"], [""], [], ["localhost", "evil.com"]):
        assert not access.admits(hosts, [access.token])


def test_everywhere_the_token_counts():
    access = Access(False)
    assert access.admits(["any.name"], [access.token])
    assert access.admits([], ["wrong", access.token])
    for wrong in ("", access.token[:-1], access.token + "x", "ä" * 32):
        assert not access.admits(["127.0.0.1"], [wrong])


def test_every_server_has_a_token_of_its_own_that_cannot_be_guessed():
    tokens = {Access(True).token for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 32
