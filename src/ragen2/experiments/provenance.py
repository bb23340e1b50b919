"""Where a table comes from: the commits and the machines that made its runs, and this one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ragen2.runs.machine import Machine, code_commit, this_machine
from ragen2.runs.sessions import installed_versions, read_sessions


def provenance() -> dict[str, object]:
    """Commit, versions and hardware of the process that writes; what cannot be told is left out."""
    found: dict[str, object] = {
        "versions": installed_versions(),
        "hardware": this_machine().model_dump(mode="json"),
    }
    commit, is_changed = code_commit()
    if commit:
        found["commit"] = commit
    if is_changed is not None:
        found["commit_is_clean"] = not is_changed
    return found


def made_on(runs: Iterable[Path]) -> list[dict[str, object]]:
    """Commits and machines that runs were started with, most runs first; a resumed run may have two."""
    seen: Counter[tuple[str, Machine | None]] = Counter()
    for run in runs:
        seen.update({(one.commit, one.machine) for one in read_sessions(run)})
    return [
        {
            "commit": commit,
            "machine": machine.model_dump(mode="json") if machine is not None else None,
            "runs": count,
        }
        for (commit, machine), count in seen.most_common()
    ]
