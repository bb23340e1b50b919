"""Programs of the fault suite that are not verbs: other trainers, a watched run, a server, an experiment.

python other_programs.py trl|trl_trainer|verl|watch|served|experiment ...
"""

# ruff: noqa: T201 - programs that print
from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ragen2 import integrations
from ragen2.errors import RagenError, RunError

STEPS, SAVED_EVERY = 4, 2


@contextmanager
def theirs() -> Iterator[None]:
    """What TRL and verl write themselves; how they tell of a full disk is their affair."""
    try:
        yield
    except OSError as error:
        raise RunError(f"the other trainer cannot write: {error}") from error


def _batch(step: int):
    """What a scripted policy plays at a step; it depends on the step alone."""
    from ragen2.backends.scripted import ScriptedPolicy
    from ragen2.config import load_run
    from ragen2.trainer.batch import play_batch

    config = load_run(
        None,
        ("env.kind=Bandit", "rollout.prompts=3", "rollout.group_size=3", "stops.empty_steps=0"),
    )

    def reply(prompt: str, rng: np.random.Generator) -> str:
        words = prompt.rsplit("user: ", 1)[-1].replace(",", " ").replace(".", " ").split()
        arms = [word for word in words if word[0].isupper()] or ["x"]
        arm = arms[int(rng.integers(len(arms)))]
        return f"{arm} it is</think><answer>{arm}</answer>"

    policy = ScriptedPolicy(reply, lambda prompt, text: -1.0 - len(text) / (9 + len(prompt) % 7))
    return config, policy, play_batch(config, policy, step)


def trl() -> None:
    """The calls that SNRGRPOTrainer makes, around checkpoints that TRL would write."""
    # The package asks for TRL as soon as it is imported; the run log needs none of it.
    package = types.ModuleType("ragen2.integrations.trl")
    package.__path__ = [str(Path(integrations.__file__).with_name("trl"))]
    sys.modules.setdefault(package.__name__, package)
    from ragen2.integrations.trl.run_log import RunLog, ScoredBatch
    from ragen2.integrations.trl.settings import SNRSettings
    from ragen2.runs.files import write_atomically

    log = RunLog(SNRSettings(), Path("run"), {"engine": "trl"}, seed=0, temperature=1.0)
    saved = sorted(Path().glob("checkpoint-*/trainer_state.json"))
    first = int(saved[-1].parent.name.partition("-")[2]) + 1 if saved else 1
    log.resume(saved[-1].parent) if saved else log.start()
    for step in range(first, STEPS + 1):
        _, policy, batch = _batch(step)
        log.scored(step, ScoredBatch(batch.groups, batch.selection, knows_success=True), policy)
        log.attach(step, {"update/loss": 1.0 / step})
        if step % SAVED_EVERY == 0:
            log.close()
            folder = Path(f"checkpoint-{step}")
            log.save(folder, step)
            with theirs():
                text = json.dumps({"global_step": step})
                write_atomically(folder / "trainer_state.json", text)
            print(f"step {step}/{STEPS}")
    log.close()
    log.end()


def trl_trainer() -> None:
    """TRL's own trainer with ours in it; it goes on from the newest checkpoint that TRL finished."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "integrations" / "trl"))
    import jobs as trl_jobs

    from ragen2.integrations.trl import SNRGRPOTrainer, SNRSettings

    rewards = {number: [0, 1, 1, 0] if number % 2 else [1, 1, 1, 1] for number in range(16)}
    saved = sorted(Path("out").glob("checkpoint-*/trainer_state.json"))  # what TRL writes last
    whole = [file for file in saved if file.read_text().rstrip().endswith("}")]
    if whole and whole[-1].parent.name == f"checkpoint-{STEPS}":
        return  # asked to go on after its last step, TRL trains one more
    trl_jobs.run(
        SNRGRPOTrainer,
        Path(),
        trl_jobs.tasks(*range(16)),
        trl_jobs.paid(rewards),
        per_device_train_batch_size=8,
        max_steps=STEPS,
        save_strategy="steps",
        save_steps=1,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        snr=SNRSettings(),
        resume=str(whole[-1].parent) if whole else None,
    )


def verl() -> None:
    """The calls that verl's trainer makes, around checkpoints that verl would write."""
    from ragen2.runs.lock import one_writer

    with one_writer(Path("run")):
        _verl_loop(Path("run"))


def _verl_loop(path: Path) -> None:
    from safetensors.numpy import save

    from ragen2.cli.verl import _refuse_others_checkpoints
    from ragen2.config import dump_config
    from ragen2.integrations.verl.publish import newest_step, publish
    from ragen2.integrations.verl.records import VerlLedger
    from ragen2.integrations.verl.translate import verl_checkpoint
    from ragen2.runs.checkpoints import checkpoint_folder
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.resume import record_start, resumed_settings

    config, policy, _ = _batch(1)
    if not (path / "run.toml").is_file():
        RunDirectory.create(path, dump_config(config))
    first = newest_step(path)
    found = resumed_settings(path, checkpoint_folder(path, first) if first else None)
    config = found.config
    _refuse_others_checkpoints(path, first)
    RunDirectory.open(path).rewind(first or -1)
    record_start(path, first, config, found.changed)
    ledger = VerlLedger(config, path)
    if first:
        ledger.resume(first)
    for step in range(first + 1, STEPS + 1):
        ledger.rolled_out(step, _batch(step)[2].groups, policy)
        ledger.updated(1, 7 * step)
        ledger.finish({"actor/loss": 1.0 / step}, {})
        print(f"step {step}/{STEPS}")
        if step % SAVED_EVERY == 0:
            model = verl_checkpoint(path, step) / "actor" / "huggingface"
            with theirs():
                model.mkdir(parents=True, exist_ok=True)
                (model / "model.safetensors").write_bytes(save({"weight": np.full(3, float(step))}))
                (model / "config.json").write_text('{"model_type": "llama"}')
                (verl_checkpoint(path, step) / "data.pt").write_bytes(b"")
            publish(config, ledger, step)


def watch() -> None:
    """A page that follows ``run`` and reads all of it, before and after its files are changed."""
    from ragen2.reports.watch import open_watch

    with open_watch([Path("run")]) as server:
        for _ in range(2):
            newest = server.snapshots.newest()
            for name in newest.blocks:
                newest.block(name)
            for path in Path("damage").rglob("*.*"):
                if path.is_file():
                    path.replace(path.relative_to("damage"))


class ForkedProgram:
    """Stands in for Popen: ``ragen2 ARGUMENTS`` in a fork, which need not import torch again."""

    def __init__(self, command, *, stdout, env, **_) -> None:
        import warm_interpreter

        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        os.dup2(stdout.fileno(), 1)
        os.dup2(1, 2)
        os.environ.update(env)
        warm_interpreter.leave(warm_interpreter.exit_code(list(command[1:])))

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        del timeout
        return self._waited(0)

    def _waited(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        os.kill(self.pid, 9)


def served() -> None:
    """``ragen2 eval`` of a model on a server, whose answers are kept as they come."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "backends" / "remote"))
    from faulty_server import MODEL, Behaviour, serving

    from ragen2.cli.app import main

    with serving(Behaviour(None)) as url:
        sys.argv = ["ragen2", "eval", f"{url}#{MODEL}", *sys.argv[2:]]
        main()


def experiment() -> None:
    """``ragen2 experiment`` whose runs are forks of this process."""
    from ragen2.cli.app import main
    from ragen2.experiments import running
    from ragen2.trainer.jobs import logged_process, run

    logged_process.subprocess = type("subprocess", (), vars(subprocess) | {"Popen": ForkedProgram})
    running.SECONDS_BETWEEN_POLLS = run.SECONDS_BETWEEN_POLLS = 0.02
    sys.argv = ["ragen2", *sys.argv[1:]]
    main()


if __name__ == "__main__":
    try:
        {one.__name__: one for one in (trl, trl_trainer, verl, watch, served, experiment)}[
            sys.argv[1]
        ]()
    except RagenError as error:
        for line in str(error).splitlines():
            print(f"ragen2: {line}", file=sys.stderr)
        sys.exit(2)
