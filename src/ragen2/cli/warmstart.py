"""``ragen2 warmstart``: supervised cold start on scripted expert episodes."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.cli.outlasting import StopRequest
from ragen2.cli.shared import (
    EXIT_INTERRUPTED,
    EnvOption,
    ModelOption,
    PluginOption,
    SetOption,
    StepsOption,
    TrustOption,
    as_flags,
    plugin_rule,
    require_torch,
    with_shorthands,
)
from ragen2.errors import ConfigError, RunError

if TYPE_CHECKING:
    from ragen2.backends.agent import Agent
    from ragen2.backends.learner.learner import TorchLearner
    from ragen2.consent import PluginRule
    from ragen2.trainer.warmstart import WarmstartConfig

UNFINISHED = ".unfinished"
"""What the folder of a warm start that goes on, or was interrupted, is called behind ``--out``."""
LINES = 10
"""Shares of the steps after which a line is printed and all is saved."""
SECONDS_BETWEEN_LINES = 15.0
"""Where a share takes longer, there are lines between."""


def warmstart(  # noqa: PLR0913 - one parameter per flag
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECIPE]",
            help="File or embedded name. Left out: that of the embedded model, or with --model the defaults.",
        ),
    ] = None,
    *,
    model: ModelOption = None,
    env: EnvOption = None,
    steps: StepsOption = None,
    plugin: PluginOption = None,
    overrides: SetOption = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the model; must not exist yet. After an interruption the same command goes on."
        ),
    ] = Path("warmstart"),
    trust_plugins: TrustOption = False,
) -> None:
    """Teach a model the reply format and the game from scripted play of chosen quality.

    Example: ragen2 warmstart --steps 50 --set quality=0.3 --set groundedness=0 --out models/ungrounded
    """
    from ragen2.config import dump_config
    from ragen2.rollout.prompts import WARM_START
    from ragen2.runs.files import fill_folder
    from ragen2.trainer.card import FILE, warmstart_card
    from ragen2.trainer.warmstart import require_script
    from ragen2.trainer.warmstart import warmstart as run_warmstart

    changes = with_shorthands(overrides, model=model, env=env, steps=steps, plugins=plugin)
    rule = plugin_rule(trust=trust_plugins)
    config = _config(recipe, changes, rule, has_model=model is not None)
    require_script(config.env)
    if out.exists():
        raise RunError(f"{out} exists already; choose another folder with --out")
    unfinished = out.with_name(out.name + UNFINISHED)
    with _writing(unfinished):
        saved = _newest(unfinished, config)
        agent = _open(config)
        if saved is not None:
            agent.learner.load(saved)
        teller = _Teller(config, agent.learner, unfinished, _step(saved))
        loss = run_warmstart(config, agent.learner, teller, done=_step(saved))
        texts = {WARM_START: dump_config(config), FILE: warmstart_card(config, loss)}
        fill_folder(out, agent.learner.save_model, texts)
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f"saved {out}; try it with: {_eval_line(out, config)}")


@contextmanager
def _writing(unfinished: Path) -> Iterator[None]:
    """The only writer of the folder, which stays only if there is something in it to go on from."""
    from ragen2.runs.checkpoints import list_checkpoints
    from ragen2.runs.lock import one_writer

    with one_writer(unfinished):
        try:
            yield
        finally:
            if not list_checkpoints(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)


def _config(
    recipe: Path | None, changes: list[str], plugins: PluginRule, *, has_model: bool
) -> WarmstartConfig:
    from ragen2.config import find_warm_start, load_config, resolve_config
    from ragen2.trainer.warmstart import WarmstartConfig, default_recipe

    if recipe is None and has_model:  # the embedded recipe makes a new model
        return resolve_config(WarmstartConfig, {}, changes, "warmstart", plugins)
    file = find_warm_start(recipe) if recipe else default_recipe()
    config = load_config(WarmstartConfig, file, changes, plugins=plugins)
    if has_model and config.new is not None:
        raise ConfigError(f"{file} makes a new model by [new]; leave that or --model out")
    return config


def _open(config: WarmstartConfig) -> Agent:
    from ragen2.cli.views.waiting import waiting
    from ragen2.trainer.warmstart import tokenizer_corpus

    torch_backends = require_torch()
    if config.new is None:
        with waiting(config.model.path):
            opened: Agent = torch_backends.open_agent(
                config.model, config.learner, seed=config.seed
            )
        return opened
    made: Agent = torch_backends.make_agent(
        config.new,
        tokenizer_corpus(config),
        config.learner,
        device=config.model.device,
        seed=config.seed,
    )
    return made


def _newest(unfinished: Path, config: WarmstartConfig) -> Path | None:
    """The checkpoint that an interrupted warm start left, if it was this one."""
    from ragen2.rollout.prompts import WARM_START
    from ragen2.runs.checkpoints import newest_checkpoint
    from ragen2.runs.toml_files import read_toml_file
    from ragen2.trainer.resume import as_tables, differences

    found = newest_checkpoint(unfinished)
    if found is None:
        return None
    for name, then, now in differences(read_toml_file(found / WARM_START), as_tables(config)):
        raise RunError(
            f"{unfinished} was begun with {name} = {then}, not {now}; repeat its command, remove it, or "
            "choose another folder with --out"
        )
    print(f"going on after step {_step(found)} of {config.steps}, from {unfinished}")
    return found


def _step(saved: Path | None) -> int:
    from ragen2.runs.checkpoints import checkpoint_step

    return checkpoint_step(saved) if saved is not None else 0


class _Teller:
    """Hears of each step: prints some of them, saves, and ends the program after the step it is asked in."""

    def __init__(
        self, config: WarmstartConfig, learner: TorchLearner, unfinished: Path, done: int
    ) -> None:
        self.config = config
        self.learner = learner
        self.unfinished = unfinished
        self.done = done
        self.every = max(1, config.steps // LINES)
        self.started = self.told = time.monotonic()
        self.stop_asked = StopRequest("finishing this step, then saving")

    def __call__(self, step: int, loss: float) -> None:
        """Take the news of one step."""
        is_due, is_last = step % self.every == 0, step == self.config.steps
        if is_due or step == 1 or time.monotonic() >= self.told + SECONDS_BETWEEN_LINES:
            self._tell(step, loss)
        if is_last:
            return
        if is_due or self.stop_asked():
            self._save(step)
        if self.stop_asked():
            print(f"stopped after step {step}; the same command goes on from {self.unfinished}")
            raise typer.Exit(EXIT_INTERRUPTED)

    def _tell(self, step: int, loss: float) -> None:
        from ragen2.cli.views.waiting import clock

        self.told = time.monotonic()
        left = (self.told - self.started) / (step - self.done) * (self.config.steps - step)
        rest = f"  about {clock(left)} left" if step < self.config.steps else ""
        line = f"step {step}/{self.config.steps}  loss {loss:.4f} nats per token{rest}"
        print(line, flush=True)

    def _save(self, step: int) -> None:
        from ragen2.config import dump_config
        from ragen2.rollout.prompts import WARM_START
        from ragen2.runs.checkpoints import save_checkpoint
        from ragen2.runs.files import write_atomically

        def write(folder: Path) -> None:
            self.learner.save(folder)
            write_atomically(folder / WARM_START, dump_config(self.config))

        save_checkpoint(self.unfinished, step, write, keep=1)


def _eval_line(out: Path, config: WarmstartConfig) -> str:
    """A command that plays what was taught, under the settings that decide it."""
    from ragen2.config import changed_settings

    changed = changed_settings(config)
    tables = {"plugins": config.plugins, "env": {"kind": config.env.kind} | changed.get("env", {})}
    tables |= {"rollout": changed.get("rollout", {})}
    return shlex.join(["ragen2", "eval", str(out), *as_flags(tables)])
