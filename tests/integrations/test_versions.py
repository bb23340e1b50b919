"""Adapters refuse versions of other packages that they were not tested with, in one line."""

from __future__ import annotations

import pytest

from ragen2.errors import DependencyError
from ragen2.integrations import versions


@pytest.mark.parametrize(
    ("package", "found"),
    [
        ("trl", "1.16.0"),
        ("trl", "1.16.3"),
        ("verl", "0.9.1"),
        ("verifiers", "0.4.2"),
        ("openenv", "0.10.0"),
    ],
)
def test_tested_versions_are_taken(
    monkeypatch: pytest.MonkeyPatch, package: str, found: str
) -> None:
    asked = []
    monkeypatch.setattr(versions, "version", lambda name: asked.append(name) or found)
    versions.require_tested(package)
    assert asked == [package]


@pytest.mark.parametrize(
    ("package", "found", "told"),
    [
        ("trl", "1.17.0", "tested with TRL 1.16.x, found 1.17.0; pip install 'trl==1.16.*'"),
        ("verl", "0.9.2", "tested with verl 0.9.1, found 0.9.2; pip install 'verl==0.9.1'"),
        ("verifiers", "0.5.1", "tested with verifiers 0.4.x, found 0.5.1; pip install"),
        ("openenv", "0.11.0", "tested with openenv 0.10.x, found 0.11.0; pip install"),
    ],
)
def test_other_versions_are_refused(
    monkeypatch: pytest.MonkeyPatch, package: str, found: str, told: str
) -> None:
    monkeypatch.setattr(versions, "version", lambda _: found)
    with pytest.raises(DependencyError) as caught:
        versions.require_tested(package)
    assert str(caught.value).startswith(f"ragen2.integrations.{package} was {told}")
    assert "\n" not in str(caught.value)
