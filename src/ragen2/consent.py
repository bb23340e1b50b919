"""Consent: what the settings of a file would run or reach, named before any of it happens.

A run file or run directory may come from anyone. Code that it would run (plug-ins, the command of an alarm)
and servers elsewhere that it would send to need the user's word once; what the user names on the command line
has it. Consent is remembered by hash, so that a plug-in that has changed is asked about again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Literal

from ragen2.errors import ConfigError
from ragen2.runs.files import write_atomically

PluginRule = Literal["known", "trust", "skip"]
"""Which plug-ins of a file are imported: those with consent, all of them, or none at all (a dry run)."""
STATE = "RAGEN2_STATE"
"""Environment variable: the folder in which consent is remembered."""
TRUSTED = "RAGEN2_TRUSTED"
"""Environment variable: hashes that have consent, for the processes that this one starts."""
API_KEYS = (
    *("OPENAI_API_KEY", "RAGEN2_API_KEY", "VLLM_API_KEY", "OPENROUTER_API_KEY", "TOGETHER_API_KEY"),
    *("FIREWORKS_API_KEY", "GROQ_API_KEY", "DEEPSEEK_API_KEY", "MISTRAL_API_KEY", "GEMINI_API_KEY"),
)
"""Variables that hold keys of OpenAI-compatible servers and nothing else: all that a file may name."""
FOLDERS = ("checkpoints", "rollouts", "scores", "images")
"""Folders of a run directory that training writes to."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine for itself."""
_ADDRESS = re.compile(r"\s*https?:", re.IGNORECASE)
_LOOPBACK = re.compile(
    r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?([/?#][!-\[\]-~]*)?"
)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Risk:
    """One thing that a setting would have done."""

    what: str
    """In words, after "would"."""
    digest: str
    """Hash of all that it depends on; for a plug-in, of its code."""
    is_own: bool
    """Whether the user named it, not the file."""
    is_key: bool = False
    """Whether it is a secret of the user's, which no file may name."""

    @classmethod
    def of(cls, what: str, *parts: str) -> Risk:
        """One that a file brings and that is known by ``parts``."""
        return cls(what, _digest(*parts), is_own=False)


def find_risks(tables: Mapping[str, Any], own: Mapping[str, Any]) -> list[Risk]:
    """Everything in a run's tables that needs consent; a plug-in must exist, and none is imported.

    Args:
        tables: settings of a file, with what the user has laid over them.
        own: what the user has laid over them.
    """

    def is_own(*setting: str) -> bool:
        return bool(_leaf(own, setting) == _leaf(tables, setting))

    plugins = tables.get("plugins")
    names = plugins if isinstance(plugins, list | tuple) else ()
    named = own.get("plugins")
    own_names = absolute_plugins([*named] if isinstance(named, list | tuple) else [], Path())
    found = [
        Risk(*_plugin(str(name)), absolute_plugins(name, Path()) in own_names) for name in names
    ]
    command = _leaf(tables, ("warning", "command"))
    if isinstance(command, str) and command.strip():
        digest = _digest("command", command, *_files_in(command))
        found.append(Risk(f"run the command {command!r}", digest, is_own("warning", "command")))
    key, url = (_leaf(tables, ("server", name)) for name in ("api_key_env", "url"))
    key = key or API_KEYS[0]
    for setting, text in _texts(tables):
        sent = _sent(setting, text, str(key))
        if sent:
            shown = f"send {sent} to {text}"
            found.append(Risk(shown, _digest("url", shown), is_own(*setting)))
    if key not in API_KEYS:
        shown, digest = f"send the variable {key} as a key", _digest("key", str(key), str(url))
        found.append(Risk(shown, digest, is_own("server", "api_key_env"), is_key=True))
    return found


def link_risks(run: Path, folders: Iterable[str] = FOLDERS) -> list[Risk]:
    """Folders of a run directory that are links to elsewhere, where files would be written and removed."""
    places = [(name, os.path.realpath(run / name)) for name in folders if (run / name).is_symlink()]
    return [
        Risk.of(f"write to {place}, where {name} leads", "link", str(run.absolute()), name, place)
        for name, place in places
    ]


def require_consent(source: str, risks: Iterable[Risk], *, trust: bool) -> None:
    """Raise where ``source`` would do what the user has not agreed to; what has consent is remembered.

    ``trust`` is the user's word for all of it but keys. What the user named needs none.
    """
    known = frozenset(os.environ.get(TRUSTED, "").split())
    every = list(dict.fromkeys(risks))
    new = [risk for risk in every if not _is_known(risk.digest, known)]
    asked = [risk for risk in new if not risk.is_own]
    for risk in asked:
        if risk.is_key:
            raise ConfigError(
                f"{source} would {_shown(risk.what)}; a file may name {', '.join(API_KEYS)}; for another, "
                "add --set server.api_key_env=NAME"
            )
    what = ", ".join(_shown(risk.what) for risk in asked)
    if asked and not trust:
        raise ConfigError(f"{source} would {what}; look at it, and allow it with --trust-plugins")
    if asked:
        _LOG.warning("%s may from now on %s", source, what)
    if every:
        os.environ[TRUSTED] = " ".join(sorted(known.union(risk.digest for risk in every)))
        _remember(new)


def _sent(setting: tuple[str, ...], text: str, key: str) -> str:
    """What a setting would have sent away; nothing where it is no address, or of this machine.

    A port of this machine may be another user's, so that a key does not go there without a word either.
    """
    is_server = setting[0] == "server"
    if not _ADDRESS.match(text):
        return ""
    if _LOOPBACK.fullmatch(text):
        return f"the key in {key}" if is_server and os.environ.get(key) else ""
    return f"rollouts and the key in {key}" if is_server else "requests"


def absolute_plugins(plugins: Any, folder: Path) -> Any:
    """The list with files by their whole paths; relative ones are in ``folder``. Lists may be nested."""
    if isinstance(plugins, list):
        return [absolute_plugins(one, folder) for one in plugins]
    is_file = isinstance(plugins, str) and plugins.endswith(".py")
    return os.path.abspath(folder / plugins) if is_file else plugins


def _plugin(name: str) -> tuple[str, str]:
    """What is imported, and the hash of its code."""
    if name.endswith(".py"):
        path = Path(os.path.abspath(name))
        if not os.path.isfile(path):  # Path.is_file raises where a name is too long
            raise ConfigError(
                f"plugin file {_shown(str(path))} does not exist; give a path to a .py file, or another "
                "with --set plugins=['FILE.py']"
            )
        # Its place counts: what it imports or opens may be beside it.
        return f"import {path}", _digest("plugin", str(path), _read(path))
    files = _module_files(name)
    shown = f"import the module {name} ({files[-1] if files else 'built in'})"
    return shown, _digest("module", name, *map(str, files), *map(_read, files))


def _files_in(command: str) -> list[str]:
    """Hashes of the files that a command names: its text says too little."""
    try:
        words = shlex.split(command)
    except ValueError:  # the settings say so in a better place
        return []
    return [_read(Path(one)) for one in words if os.path.isfile(one)]


def _module_files(name: str) -> list[Path]:
    """The files that the import of a module runs first, found without running any of them."""
    parts, files = name.split("."), []
    spec = _top_module(parts[0])
    for depth in range(1, len(parts) + 1):
        if depth > 1 and spec is not None:
            inside = spec.submodule_search_locations or []
            spec = PathFinder.find_spec(".".join(parts[:depth]), inside)
        if spec is None:
            raise ConfigError(
                f"plugin {name!r} cannot be imported (No module named {'.'.join(parts[:depth])!r}); "
                "give an installed module or a .py path"
            )
        if spec.has_location and spec.origin:
            files.append(Path(spec.origin))
    return files


def _top_module(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # an empty name, or __main__
        return None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"plugin file {path} cannot be read: {error.strerror}") from error


def _texts(value: Any, setting: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in the tables with the path of its setting; those of a list have the path of the list."""
    if isinstance(value, str):
        yield setting, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, (*setting, str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from ((setting, text) for _, text in _texts(inner))


def _leaf(tables: Any, setting: tuple[str, ...]) -> Any:
    for name in setting:
        tables = tables.get(name) if isinstance(tables, Mapping) else None
    return tables


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _shown(text: str) -> str:
    """On one line, without what a terminal would obey."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _folder() -> Path | None:
    """Where consent is kept; None where the user has no folder."""
    named = os.environ.get(STATE)
    if named:
        return Path(named).absolute() / "trusted"
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path(os.path.expanduser("~")) / ".local" / "state"
    # A relative path would be in the current folder, which may be anyone's.
    return state / "ragen2" / "trusted" if state.is_absolute() else None


def _is_known(digest: str, known: frozenset[str]) -> bool:
    folder = _folder()
    return digest in known or (folder is not None and (folder / digest).is_file())


def _remember(risks: Iterable[Risk]) -> None:
    """One file per hash, so that two programs at once forget nothing."""
    folder = _folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for risk in risks:
            write_atomically(folder / risk.digest, f"{_shown(risk.what)}\n")
    except OSError as error:
        _LOG.warning(
            "consent is not remembered: %s cannot be written: %s; set %s to another folder",
            *(folder, error.strerror, STATE),
        )
