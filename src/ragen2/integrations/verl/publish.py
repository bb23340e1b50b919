"""Checkpoints of verl as those of the run: a Hugging Face folder with the trainer's state and a card."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from safetensors import safe_open

from ragen2.config import RunConfig
from ragen2.integrations.verl.translate import verl_checkpoint
from ragen2.runs.checkpoints import checkpoint_step, find_damage, list_checkpoints, save_checkpoint
from ragen2.runs.files import write_atomically
from ragen2.trainer.card import write_card
from ragen2.trainer.state import mark_checkpoint, write_state
from ragen2.trainer.step_ledger import StepLedger

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def newest_step(run: Path) -> int:
    """The newest step that both verl and we have a whole checkpoint of; 0 where there is none.

    verl writes its own first, so that a job that was cut short in between has one more of them.
    """
    for folder in reversed(list_checkpoints(run)):
        step = checkpoint_step(folder)
        # verl writes this file last.
        if (verl_checkpoint(run, step) / "data.pt").is_file() and not find_damage(folder):
            return step
    return 0


def saved_workers(run: Path, step: int) -> int | None:
    """How many processes verl's checkpoint of ``step`` is cut for; None where it does not say."""
    layout = verl_checkpoint(run, step) / "actor" / "fsdp_config.json"
    if not layout.is_file():
        return None
    return int(json.loads(layout.read_text(encoding="utf-8"))["world_size"])


def publish(config: RunConfig, ledger: StepLedger, step: int) -> None:
    """Make verl's checkpoint of ``step`` one of the run."""
    # verl's folder is whole by now. Ours is written second and is the one that counts: ``newest_step`` takes
    # a step that has both, so that a job that is killed in between resumes from the step before.
    watch = mark_checkpoint(config.warning, ledger.state.watch, step)
    ledger.state = ledger.state.model_copy(update={"watch": watch})
    model = verl_checkpoint(ledger.run.path, step) / "actor" / "huggingface"

    def write(into: Path) -> None:
        shutil.copytree(model, into, dirs_exist_ok=True, copy_function=_link_weights)
        _name_dtype(into)
        write_state(into, ledger.state)
        write_card(into, config, ledger.run.records())

    save_checkpoint(
        ledger.run.path,
        step,
        write,
        keep=config.checkpoints.keep,
        protected=ledger.state.watch.protected,
    )


def _link_weights(source: str, target: str) -> None:
    """Weights take disk space once, where the disk can link."""
    if source.endswith(".safetensors"):
        try:
            os.link(source, target)
        except OSError:  # another disk, or one without links
            pass
        else:
            return
    shutil.copy2(source, target)


def _name_dtype(folder: Path) -> None:
    """Say in config.json what the weights are: verl names the type it computes in."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        return
    with safe_open(weights[0], framework="np") as file:
        found = file.get_slice(next(iter(file.keys()))).get_dtype()
    file_name = folder / "config.json"
    settings = json.loads(file_name.read_text(encoding="utf-8"))
    settings.pop("torch_dtype", None)
    settings["dtype"] = _DTYPES.get(found, found)
    write_atomically(file_name, json.dumps(settings, indent=2, sort_keys=True) + "\n")
