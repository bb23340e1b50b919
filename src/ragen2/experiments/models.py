"""Make the models that runs start from, each once, side by side where they do not need each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ragen2.experiments.plan import Model
from ragen2.trainer.jobs.logged_process import LoggedProcess, LogLockedError, end_all, lock_log
from ragen2.trainer.jobs.run import PROGRAM, process_variables

SECONDS_BETWEEN_POLLS = 0.2
SECONDS_TO_END = 10.0
Tell = Callable[[str], None]


@dataclass(slots=True)
class _Making:
    """Models under way and how those that ended did."""

    going: dict[str, LoggedProcess] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    waits_for: set[str] = field(default_factory=set)
    """Models that a process of an earlier start still makes."""


def make_models(
    models: Sequence[Model],
    *,
    at_once: int,
    variables: Mapping[str, str],
    on_start: Callable[[Model], None] = lambda model: None,
    tell: Tell = lambda line: None,
    stop_asked: Callable[[], bool] = lambda: False,
    program: Sequence[str] = PROGRAM,
) -> dict[str, str]:
    """Make what is not there yet; why each one that cannot be had is missing.

    A model appears whole or not at all, so a folder that is there is done. A process of an earlier start
    that still makes one is waited for. Once ``stop_asked`` is true none is begun; those are not missing for
    a reason, so nothing is said of them.
    """
    given = process_variables(min(at_once, max(1, len(models)))) | dict(variables)
    state = _Making()
    by_name = {model.name: model for model in models}
    try:
        while True:
            _reap(state, by_name, tell)
            left = [m for m in models if not m.folder.is_dir() and m.name not in state.problems]
            if not left or (stop_asked() and not state.going):
                break
            for model in left:
                is_free = len(state.going) < at_once and not stop_asked()
                if is_free and _can_begin(state, model, by_name):
                    _begin(state, model, [*program, *model.words], given, on_start, tell)
            time.sleep(SECONDS_BETWEEN_POLLS)
    finally:
        end_all(list(state.going.values()), SECONDS_TO_END)
    return state.problems


def _can_begin(state: _Making, model: Model, models: Mapping[str, Model]) -> bool:
    """Whether it is not under way and has what it is made from; where that cannot be had, nor can it."""
    if model.name in state.going:
        return False
    if model.needs in state.problems:
        state.problems[model.name] = f"{model.needs} is missing: {state.problems[model.needs]}"
        return False
    return not model.needs or models[model.needs].folder.is_dir()


def _begin(
    state: _Making,
    model: Model,
    words: list[str],
    variables: Mapping[str, str],
    on_start: Callable[[Model], None],
    tell: Tell,
) -> None:
    """Start its process, unless a process of another start makes it or has just made it."""
    model.log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with lock_log(model.log) as log:
            if model.folder.is_dir():
                return
            on_start(model)
            tell(f"making {model.name}")
            state.going[model.name] = LoggedProcess(words, log, variables)
    except LogLockedError:
        if model.name not in state.waits_for:
            tell(f"{model.name}: a process of an earlier start still makes it; waiting")
        state.waits_for.add(model.name)


def _reap(state: _Making, models: Mapping[str, Model], tell: Tell) -> None:
    for name, child in list(state.going.items()):
        code = child.exit_code
        if code is None:
            continue
        del state.going[name]
        if models[name].folder.is_dir():  # whatever it ended with: another may have been faster
            tell(f"made {name}")
        else:
            state.problems[name] = f"{child.last_line()} (see {child.log})"
            tell(f"{name} failed: {state.problems[name]}")
