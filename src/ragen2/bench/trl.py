"""TRL's GRPOTrainer on a job of ours, step by step, with our own steps in between."""

from __future__ import annotations

import copy
import importlib
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from ragen2.backends.agent import Agent
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.bench.device import wait_for
from ragen2.bench.peer_job import PeerJob, our_step, peer_job
from ragen2.bench.rollout import endless_policy
from ragen2.bench.step import measured_on
from ragen2.config import RunConfig
from ragen2.errors import ConfigError, DependencyError, RunError

TRL_VERSION = "1.16.0"
GENERATE, STATIC, CONTINUOUS, BFLOAT16 = "generate", "static", "continuous", "bfloat16"
MODES: dict[str, dict[str, Any]] = {
    GENERATE: {},
    STATIC: {"cache_implementation": "static"},
    CONTINUOUS: {"use_transformers_continuous_batching": True},
    BFLOAT16: {},
}
"""How TRL can generate completions without a server (``--way``), and the settings that ask for each.

On a GPU all train float32 weights with bfloat16 products, as we do, but ``bfloat16``: that one holds and
trains the weights themselves in bfloat16.
"""
PEER_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ImportError,
    OSError,
)
"""What TRL and transformers raise where a mode does not work on this machine or model."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One step of one side."""

    seconds: float
    cpu_seconds: float
    """Of this process on all cores: which other work cannot lengthen. Says little about a GPU."""
    tokens: int
    """Trained on."""


@dataclass(slots=True)
class Race:
    """Steps of TRL and of ours, taken in turn in one process."""

    ours: list[Lap] = field(default_factory=list)
    theirs: list[Lap] = field(default_factory=list)


def compare_with_trl(
    config: RunConfig, agent: Agent, *, modes: Sequence[str] | None, warmup: int, repeats: int
) -> dict[str, Any]:
    """All figures of the same job done by TRL and by our own step, in turn."""
    policy = endless_policy(
        agent.local.network,
        agent.local.tokenizer,
        precision=config.model.precision,
        engine=config.model.engine,
    )
    job = peer_job(config, policy, warmup + repeats)
    races = race_all(
        policy,
        job,
        chosen_modes(modes, policy.device),
        our_step=lambda step: our_step(config, policy, agent.learner, step),
        warmup=warmup,
    )
    return {
        **measured_on(config, policy),
        "trl": TRL_VERSION,
        "warmup": warmup,
        "new_tokens": job.max_tokens,
        "prompt_tokens": job.prompt_tokens,
        "peer_prompt_tokens": peer_prompt_tokens(policy.tokenizer, job),
        **races,
    }


def chosen_modes(asked: Sequence[str] | None, device: torch.device) -> list[str]:
    """The modes to try: those asked for, or all that are worth it on this device."""
    unknown = [mode for mode in asked or () if mode not in MODES]
    if unknown:
        raise ConfigError(f"--way must be one of {', '.join(MODES)}, got {unknown[0]}")
    # On a CPU, continuous batching takes a minute per step and bfloat16 is slower than float32.
    return list(asked or (MODES if device.type == "cuda" else (GENERATE, STATIC)))


def race_all(
    policy: HFPolicy,
    job: PeerJob,
    modes: Sequence[str],
    *,
    our_step: Callable[[int], int],
    warmup: int,
) -> dict[str, Any]:
    """Every mode in which TRL can generate, with the ratio to ours; the fastest one is what ours is held to.

    A mode that does not run on this machine is named with the reason.
    """
    found: dict[str, Any] = {}
    for mode in modes:
        try:
            laps = race(policy, job, mode, our_step=our_step)
        except PEER_ERRORS as error:
            found[mode] = {
                "failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            }
        else:
            found[mode] = summary(laps, warmup)
    ran = {mode: one for mode, one in found.items() if "failed" not in one}
    if not ran:
        reasons = "; ".join(f"{mode}: {one['failed']}" for mode, one in found.items())
        raise RunError(f"TRL cannot do this job here ({reasons}); try another --way or model")
    fastest = min(ran, key=lambda mode: ran[mode]["theirs"]["seconds_a_token"])
    ratios = {name: ran[fastest][name] for name in ("ratio", "cpu_ratio")}
    return {"ways": found, "fastest": fastest, **ratios}


def summary(laps: Race, warmup: int) -> dict[str, Any]:
    """Median seconds per trained token of both sides after ``warmup`` steps, and how many times ours fits."""
    counted = Race(laps.ours[warmup:], laps.theirs[warmup:])
    return {
        "ours": _side(laps.ours, counted.ours),
        "theirs": _side(laps.theirs, counted.theirs),
        "ratio": _median(counted.theirs, "seconds") / _median(counted.ours, "seconds"),
        "cpu_ratio": _median(counted.theirs, "cpu_seconds") / _median(counted.ours, "cpu_seconds"),
    }


def _side(laps: Sequence[Lap], counted: Sequence[Lap]) -> dict[str, Any]:
    return {"seconds_a_token": _median(counted, "seconds"), "laps": [asdict(lap) for lap in laps]}


def _median(laps: Sequence[Lap], of: str) -> float:
    return float(statistics.median(getattr(lap, of) / lap.tokens for lap in laps))


def race(policy: HFPolicy, job: PeerJob, mode: str, *, our_step: Callable[[int], int]) -> Race:
    """Let TRL train a copy of our network; after each of its steps, one of ours runs off its clock.

    ``our_step`` takes the number of the step, from 1, and says how many tokens it trained on.
    """
    network, tokenizer = policy.network, policy.tokenizer
    trl = import_trl()
    datasets = importlib.import_module("datasets")
    device = next(network.parameters()).device
    model = copy.deepcopy(network)
    if mode == BFLOAT16:
        model = model.to(torch.bfloat16)
    tally = _Tally(job)
    stopwatch = _Stopwatch(device, tally, our_step)
    rows = [{"prompt": text, "seed": seed} for seed, text in prompt_texts(tokenizer, job)]
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        settings = _settings(trl, job, mode, folder, is_gpu=device.type == "cuda")
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=tally.reward,
            args=settings,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer.hf,
            callbacks=[stopwatch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(_NeverEnd(trainer))
        trainer.train()
    return stopwatch.race


def import_trl() -> Any:
    """TRL, of the version that the comparison is written for."""
    try:
        trl = importlib.import_module("trl")
    except ModuleNotFoundError as error:
        raise DependencyError(
            f"--against trl needs TRL in this Python ({error.name} is missing); "
            f"pip install trl=={TRL_VERSION}"
        ) from error
    if trl.__version__ != TRL_VERSION:
        raise DependencyError(
            f"--against trl is written for TRL {TRL_VERSION}, found {trl.__version__}; "
            f"pip install trl=={TRL_VERSION}"
        )
    return trl


def prompt_texts(tokenizer: TemplateTokenizer, job: PeerJob) -> list[tuple[int, str]]:
    """Prompts as TRL takes them: text, with the special tokens in it."""
    return [
        (seed, tokenizer.hf.decode(ids, clean_up_tokenization_spaces=False))
        for seed, ids in job.prompts
    ]


def peer_prompt_tokens(tokenizer: TemplateTokenizer, job: PeerJob) -> float:
    """Mean tokens of the prompts after TRL has encoded their text again."""
    texts = [text for _, text in prompt_texts(tokenizer, job)]
    return sum(map(len, tokenizer.hf(text=texts)["input_ids"])) / len(texts)


@dataclass(slots=True)
class _Tally:
    """TRL's reward function; also counts the tokens, because it sees every completion."""

    job: PeerJob
    tokens: int = 0

    def reward(
        self, *, seed: Sequence[int], completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float]:
        """TRL hands over columns of the dataset and completions by these names."""
        short = {len(ids) for ids in completion_ids} - {self.job.max_tokens}
        if short:
            raise RunError(f"TRL wrote {sorted(short)} tokens instead of {self.job.max_tokens}")
        self.tokens += sum(map(len, completion_ids))
        return self.job.reward(seed, completion_ids)


class _Stopwatch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Times TRL from the end of one step to the end of the next, our steps left out."""

    def __init__(self, device: torch.device, tally: _Tally, our_step: Callable[[int], int]) -> None:
        self.race = Race()
        self._device = device
        self._tally = tally
        self._our_step = our_step
        self._started = (0.0, 0.0)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self._lap()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """TRL has made its optimiser step: note it, then take one of ours."""
        self.race.theirs.append(Lap(*self._lap(), self._tally.tokens))
        self._tally.tokens = 0
        with torch.enable_grad():
            tokens = self._our_step(len(self.race.theirs))
        self.race.ours.append(Lap(*self._lap(), tokens))

    def _lap(self) -> tuple[float, float]:
        """Seconds, and processor seconds, since the last time; the next lap starts now."""
        wait_for(self._device)
        now = (time.perf_counter(), time.process_time())
        before, self._started = self._started, now
        return now[0] - before[0], now[1] - before[1]


class _NeverEnd(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Lets no token end a completion, as on our side: all have the asked-for length."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Not earlier: as training begins, the tokenizer's end of text is put into all configurations."""
        trainer = self._trainer
        trainer.eos_token_ids = []
        for config in (
            trainer.generation_config,
            trainer.model.config,
            trainer.model.generation_config,
        ):
            config.eos_token_id = None


def _settings(trl: Any, job: PeerJob, mode: str, folder: str, *, is_gpu: bool) -> Any:
    """The same work: one optimiser step over one batch of whole groups, plain GRPO, no KL.

    What TRL does by default and would only slow it down is off: gradient checkpointing, logs, saving.
    """
    completions = job.prompts_per_step * job.group_size
    return trl.GRPOConfig(
        **MODES[mode],
        output_dir=folder,
        max_steps=job.steps,
        per_device_train_batch_size=completions,
        gradient_accumulation_steps=1,
        num_generations=job.group_size,
        max_completion_length=job.max_tokens,
        temperature=job.temperature,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=is_gpu,
        use_cpu=not is_gpu,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """TRL's and transformers' advice is not for the user of a benchmark."""
    names = ("trl", "transformers", "accelerate", "ContinuousBatchingLogger")
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
