"""The file that a new environment begins as: a small one that works, under a name of the user's."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path

from ragen2.envs.base import Env
from ragen2.errors import ConfigError


def new_env_text(name: str, file: Path) -> str:
    """Python source of an environment called ``name`` that will be in ``file``."""
    text = (resources.files("ragen2") / "envs" / "new_env.txt").read_text(encoding="utf-8")
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot name an environment; take letters and digits, a capital first: TeaShop"
        )
    if name.lower() in {kind.lower() for kind in Env.kinds()}:
        raise ConfigError(f"there is an environment {name} already; choose another name")
    if re.search(rf"\b{name}\b", text):
        raise ConfigError(f"{name} is a name that every environment file uses; choose another")
    if file.suffix != ".py":
        raise ConfigError(f"--out {file} must end in .py: plug-ins are Python files")
    return text.replace("--plugin FILE.", f"--plugin {file.name}.").replace("NAME", name)
