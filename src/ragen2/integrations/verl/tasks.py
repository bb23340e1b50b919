"""The tasks of a run as a dataset of verl: those of all steps in their order, or the held-out ones."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from ragen2.config import RunConfig, load_run
from ragen2.integrations.verl.translate import AGENT, HELD_OUT
from ragen2.rollout.prompts import PromptWriter
from ragen2.trainer.batch import training_tasks

TRAIN, EVALUATE, PROBE = "train", "evaluate", "probe"


@lru_cache(maxsize=4)
def run_at(file: str) -> RunConfig:
    """A run file, read once per process."""
    return load_run(Path(file))


class TaskDataset(Dataset[dict[str, Any]]):
    """Made by verl from ``data.train_files`` and ``data.val_files``, which name the run file.

    A row says what to play; the environment and the tokens are left to the agent loop.
    """

    def __init__(self, data_files: Any, **_: Any) -> None:
        file = str(data_files if isinstance(data_files, str) else data_files[0])
        self.run = run_at(file.removesuffix(HELD_OUT))
        self.is_held_out = file.endswith(HELD_OUT)
        self.writer = PromptWriter.of(self.run.env, self.run.rollout, self.run.prompt)

    def __len__(self) -> int:
        if self.is_held_out:
            return self.run.evaluation.tasks + self.run.evaluation.probe_prompts
        return self.run.rollout.prompts * self.run.steps

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Row ``index``; a step of training takes ``rollout.prompts`` rows in turn."""
        if index >= len(self):
            raise IndexError(index)
        if self.is_held_out:
            return self._held_out(index)
        step, place = divmod(index, self.run.rollout.prompts)
        task = training_tasks(self.run, step + 1)[place][0]
        return self._row(index, TRAIN, task.seed, step + 1, self.run.rollout.group_size)

    def _held_out(self, index: int) -> dict[str, Any]:
        settings = self.run.evaluation
        if index < settings.tasks:
            task = settings.first_task(self.run.seed) + index
            return self._row(index, EVALUATE, task, 0, 1)
        return self._row(index, PROBE, index - settings.tasks, 0, settings.probe_traces)

    def _row(self, index: int, part: str, seed: int, step: int, plays: int) -> dict[str, Any]:
        """``plays`` members of the group share this row and differ in luck."""
        return {
            "raw_prompt": [
                {"role": one.role, "content": one.content} for one in self.writer.first(seed)
            ],
            "index": index,
            "data_source": self.run.env.kind,
            "agent_name": AGENT,
            "part": part,
            "task": seed,
            "step": step,
            "__rollout_n__": plays,
        }
