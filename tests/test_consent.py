"""What needs consent, whose word counts for what, and how it is remembered."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys

import pytest

from ragen2.component import load_plugin
from ragen2.config import RunConfig, load_run, parse_config
from ragen2.consent import STATE, TRUSTED, find_risks, require_consent
from ragen2.errors import ConfigError

pytestmark = pytest.mark.usefixtures("trusts_nothing", "own_kinds")

FILTER = """
from typing import Literal
from ragen2.filtering import Filter

class {name}(Filter):
    kind: Literal["{kind}"] = "{kind}"

    def keep(self, scores_P):
        return scores_P > 0
"""


def whats(tables, own=None):
    return [risk.what for risk in find_risks(tables, own or {})]


def served(url, **more):
    return {"server": {"url": url, **more}}


@pytest.mark.parametrize(
    "url",
    ["http://localhost:8000#m", "http://127.0.0.1/v1#m", "https://[::1]:8000", "http://127.3.2.1"],
)
def test_servers_of_this_machine_need_no_consent(url):
    assert whats(served(url)) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "https://localhost.example.com",
        "http://127.0.0.1.example.com:8000#m",
        "http://127.0.0.1@example.com",
        "http://localhost:80@example.com/",
        "http://127.0.0.1\\@example.com",
        "http://127.0.0.1:80\\@example.com/",
        "http://localhost\n.example.com",
        "http://127.0.0.1#@example.com\n",
        "http://0.0.0.0:8000",
        "HTTP://example.com",
        " http://example.com",
        "http:example.com",
    ],
)
def test_servers_elsewhere_do(url):
    assert whats(served(url)) == [f"send rollouts and the key in OPENAI_API_KEY to {url}"]


def test_a_key_goes_to_no_port_of_this_machine_without_consent(monkeypatch):
    """The port may be another user's."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (what,) = whats(served("http://127.0.0.1:8000#m"))
    assert what == "send the key in OPENAI_API_KEY to http://127.0.0.1:8000#m"


def test_the_place_of_a_plugin_counts(tmp_path):
    """What it opens may be beside it."""
    tables = []
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plugin.py").write_text("exec(open('helper.py').read())")
        tables.append({"plugins": [str(tmp_path / name / "plugin.py")]})
    require_consent("the file", find_risks(tables[0], own={}), trust=True)
    with pytest.raises(ConfigError, match=r"would import .*theirs"):
        require_consent("the file", find_risks(tables[1], own={}), trust=False)


def test_a_url_is_found_in_any_setting():
    tables = {
        "env": {"kind": "SearchQA", "server_url": "http://a.example/retrieve"},
        "diagnostics": [{"kind": "mine", "sends": [{"to": "https://b.example"}]}],
    }
    assert whats(tables) == [
        "send requests to http://a.example/retrieve",
        "send requests to https://b.example",
    ]


def test_what_the_user_names_needs_no_consent_and_is_remembered(tmp_path, trusts_nothing):
    tables = served("http://example.com", api_key_env="MINE")
    require_consent("the file", find_risks(tables, own=tables), trust=False)
    os.environ.pop(TRUSTED)
    require_consent("the file", find_risks(tables, own={}), trust=False)
    assert sorted(file.read_text() for file in (trusts_nothing / "trusted").iterdir()) == [
        "send rollouts and the key in MINE to http://example.com\n",
        "send the variable MINE as a key\n",
    ]


def test_a_word_for_one_setting_of_a_table_is_none_for_its_neighbours():
    tables = served("http://example.com", timeout=5.0)
    (risk,) = find_risks(tables, own={"server": {"timeout": 5.0}})
    assert not risk.is_own


def test_a_key_is_remembered_for_the_server_it_was_named_for():
    tables = served("http://example.com", api_key_env="MINE")
    require_consent("the file", find_risks(tables, own=tables), trust=False)
    others = served("http://evil.example", api_key_env="MINE")
    with pytest.raises(ConfigError, match="the file would send the variable MINE as a key; a file"):
        require_consent("the file", find_risks(others, own={}), trust=True)


def test_several_things_are_named_in_one_line():
    tables = {"warning": {"command": "a\nb \x1b[2J"}, "env": {"server_url": "http://x\x1b.example"}}
    told = r"the file would run the command 'a\nb \x1b[2J', send requests to http://x\x1b.example; look"
    with pytest.raises(ConfigError) as error:
        require_consent("the file", find_risks(tables, own={}), trust=False)
    assert str(error.value).startswith(told)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("named", ["alarm.sh", "'alarm.sh'", "{}/alarm.sh"])
def test_a_command_is_known_together_with_the_files_it_names(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alarm.sh").write_text("echo 1")
    tables = {"warning": {"command": f"sh {named.format(tmp_path)}"}}
    require_consent("the file", find_risks(tables, own={}), trust=True)
    require_consent("the file", find_risks(tables, own={}), trust=False)
    (tmp_path / "alarm.sh").write_text("echo 2")
    with pytest.raises(ConfigError, match=r"run the command .sh .*alarm\.sh"):
        require_consent("the file", find_risks(tables, own={}), trust=False)


def test_a_module_is_named_with_its_file_and_not_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_kinds").mkdir()
    (tmp_path / "their_kinds" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "their_kinds" / "filters.py").write_text("")
    tables = {"plugins": ["their_kinds.filters"]}
    (risk,) = find_risks(tables, own={})
    assert risk.what == (
        f"import the module their_kinds.filters ({tmp_path}/their_kinds/filters.py)"
    )
    (tmp_path / "their_kinds" / "__init__.py").write_text("print('changed')")
    assert find_risks(tables, own={})[0].digest != risk.digest
    assert "their_kinds" not in sys.modules


@pytest.mark.parametrize("name", ["gone.py", "a\0.py", f"{'x' * 300}.py", "a\n.py"])
def test_a_plugin_file_that_cannot_be_is_one_line(name):
    with pytest.raises(ConfigError, match=r"plugin file .* does not exist; give") as error:
        find_risks({"plugins": [name], "warning": {"command": name}}, own={})
    assert str(error.value).isprintable()
    assert whats({"warning": {"command": name}}) == [f"run the command {name!r}"]


@pytest.mark.parametrize("name", ["no_such_module", "json.no_such", "", "__main__.x", "..json"])
def test_a_module_that_is_not_there_is_named(name):
    with pytest.raises(ConfigError, match=rf"plugin '{name}' cannot be imported \(No module named"):
        find_risks({"plugins": [name]}, own={})


def test_a_compiled_copy_beside_a_plugin_is_not_run(tmp_path):
    file, other = tmp_path / "compiled_kinds.py", tmp_path / "other.py"
    file.write_text(FILTER.format(name="Seen", kind="seen"))
    other.write_text("raise AssertionError('the compiled copy ran')")
    copy = importlib.util.cache_from_source(str(file))
    py_compile.compile(
        str(other), copy, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    load_plugin(str(file))
    assert parse_config(RunConfig, {"filter": {"kind": "seen"}}).filter.kind == "seen"


def test_the_plugins_of_a_base_are_beside_the_base(tmp_path):
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "base.toml").write_text('plugins = ["based.py"]\n')
    (tmp_path / "lower" / "based.py").write_text(FILTER.format(name="Based", kind="based"))
    (tmp_path / "run.toml").write_text('base = "lower/base.toml"\n[filter]\nkind = "based"\n')
    with pytest.raises(ConfigError, match=f"would import {tmp_path}/lower/based.py; look at it"):
        load_run(tmp_path / "run.toml")
    config = load_run(tmp_path / "run.toml", plugins="trust")
    assert config.plugins == (f"{tmp_path}/lower/based.py",)


def test_consent_is_kept_in_no_folder_of_someone_else(tmp_path, monkeypatch):
    """Without a home, the state folder would be one called ~ in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(STATE)
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    tables = {"warning": {"command": "x"}}
    (risk,) = find_risks(tables, own={})
    for state in ("state", "~/.local/state"):
        (tmp_path / state / "ragen2" / "trusted").mkdir(parents=True)
        (tmp_path / state / "ragen2" / "trusted" / risk.digest).touch()
    with pytest.raises(ConfigError, match="run the command 'x'"):
        require_consent("the file", [risk], trust=False)
    require_consent("the file", [risk], trust=True)
    require_consent("the file", [risk], trust=False)
