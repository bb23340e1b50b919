"""Checkpoints of verl as those of the run: a Hugging Face folder with the trainer's state and a card."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

from safetensors import safe_open

from ragen2.config import RunConfig
from ragen2.consent import Risk
from ragen2.errors import RunError
from ragen2.integrations.verl.translate import verl_checkpoint
from ragen2.reading import open_file, read_json
from ragen2.runs.checkpoints import checkpoint_step, newest_checkpoint, save_checkpoint
from ragen2.runs.files import write_atomically
from ragen2.runs.store import RunDirectory
from ragen2.trainer.card import write_card
from ragen2.trainer.resume import lacks_records, write_settings
from ragen2.trainer.state import mark_checkpoint, read_state, write_state
from ragen2.trainer.step_ledger import StepLedger

PLAIN = frozenset(
    f"numpy{inner}.{name}"
    for inner in ("", ".core.multiarray", "._core.multiarray")
    for name in ("_reconstruct", "scalar", "ndarray", "dtype")
)
"""What states of random generators are made of, beside all that torch loads as plain data."""
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def newest_step(run: Path) -> int:
    """The newest step that both verl and we have a whole checkpoint of; 0 where there is none.

    verl writes its own first, so that a job that was cut short in between has one more of them.
    """

    def find_problem(folder: Path) -> str:
        # verl writes this file last.
        is_whole = (verl_checkpoint(run, checkpoint_step(folder)) / "data.pt").is_file()
        if not is_whole:
            return "verl's part of it is not whole"
        return lacks_records(RunDirectory(run), read_state(folder))

    newest = newest_checkpoint(run, find_problem)
    return 0 if newest is None else checkpoint_step(newest)


def unpickled_risks(run: Path, step: int) -> list[Risk]:
    """The code that verl's checkpoint names, all of which verl would run; none of it is run here.

    Consent is to the code of one run: what a function does is up to what it is called with.
    """
    import torch.distributed.tensor  # noqa: F401 - makes parts of sharded tensors known as plain data
    from torch.serialization import get_unsafe_globals_in_checkpoint as code_in

    names: set[str] = set()
    folder = verl_checkpoint(run, step)
    for link in folder.rglob("*"):
        if link.is_symlink() and link.is_dir():
            raise RunError(f"{link} is a link, behind which no code is looked for; remove {folder}")
    for file in sorted(folder.rglob("*.pt")):
        try:
            with open_file(file) as opened:
                names.update(code_in(opened))
        except (ValueError, RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(
                f"{file} is no checkpoint of verl ({reason}); remove {folder} to go on from the one before"
            ) from error
    found = sorted(names - PLAIN)
    what = f"run {', '.join(found)} from {folder}"
    return [Risk.of(what, "unpickle", str(run.absolute()), *found)] if found else []


def saved_workers(run: Path, step: int) -> int | None:
    """How many processes verl's checkpoint of ``step`` is cut for; None where it does not say."""
    layout = verl_checkpoint(run, step) / "actor" / "fsdp_config.json"
    if not layout.is_file():
        return None
    try:
        return int(read_json(layout)["world_size"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{layout} does not say how many workers there were ({error!r})") from error


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
        write_settings(into, config)
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
