"""Who is answered: local names on loopback, the token elsewhere."""

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
    ],
)
def test_the_port_of_a_host_header_does_not_matter(header, name):
    assert host_name(header) == name


def test_loopback_needs_no_token_and_answers_local_names_only():
    access = Access.on("127.0.0.1")
    assert access.token == ""
    assert access.admits("127.0.0.1:9", "")
    assert access.admits("localhost", "")
    assert not access.admits("evil.com:9", "")
    assert not access.admits("", "")
    assert not access.admits(None, "")


def test_elsewhere_only_the_token_counts():
    access = Access.on(EVERYWHERE)
    assert access.admits("any.name", access.token)
    assert not access.admits("127.0.0.1", "")
    assert not access.admits("127.0.0.1", access.token[:-1])
    assert not access.admits("127.0.0.1", access.token + "x")
    assert not access.admits("127.0.0.1", "ä" * 32)


def test_every_server_has_a_token_of_its_own_that_cannot_be_guessed():
    tokens = {Access.on(EVERYWHERE).token for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 32
