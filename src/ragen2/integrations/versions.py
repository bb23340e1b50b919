"""Which versions of other packages our adapters were tested with; others are refused in one line."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ragen2.errors import DependencyError

TESTED = {"trl": "1.16", "verl": "0.9.1", "verifiers": "0.4", "openenv": "0.10"}
"""A minor version, whose calls and hooks the tests run against; of verl one release, because two of the
hooks are private."""
_SPELLED = {"trl": "TRL"}


def require_tested(package: str) -> None:
    """Raise unless ``package`` is there in the version that was tested."""
    tested, name = TESTED[package], _SPELLED.get(package, package)
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise DependencyError(
            f"{name} is not installed; pip install 'ragen2[{package}]' brings it"
        ) from error
    is_minor = tested.count(".") == 1
    if (found.split(".")[:2] if is_minor else found.split(".")) != tested.split("."):
        raise DependencyError(
            f"ragen2.integrations.{package} was tested with {name} {tested}{'.x' if is_minor else ''}, "
            f"found {found}; pip install '{package}=={tested}{'.*' if is_minor else ''}'"
        )
