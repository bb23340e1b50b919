"""What every component must do, whatever its family."""

from __future__ import annotations

import tomllib
from collections.abc import Callable

import pytest
import tomli_w
from pydantic import ValidationError

from ragen2.component import Component


@pytest.fixture(scope="session")
def component_contract() -> Callable[[type[Component], str], None]:
    """Check that a kind can be built, documented, written down and read back, and not be changed."""

    def check(family: type[Component], kind: str) -> None:
        member = family.find(kind)
        built = family.from_dict({"kind": kind})
        assert type(built) is member
        assert built.kind == kind
        assert (member.__doc__ or "").strip(), f"{kind} has no docstring"
        undescribed = [
            name
            for name, field in member.model_fields.items()
            if name != "kind" and not field.description
        ]
        assert undescribed == [], f"settings of {kind} without a description"
        written = tomllib.loads(tomli_w.dumps(built.model_dump(mode="json", exclude_none=True)))
        assert family.from_dict(written) == built
        with pytest.raises(ValidationError, match="frozen"):
            built.kind = "other"

    return check
