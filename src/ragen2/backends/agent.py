"""Open a model as an agent, in one call: learner and policy over the same weights, or a served policy."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils import logging as hf_logging

from ragen2.algorithms import Algorithm
from ragen2.backends.distributed.parallelism import Replicas, Shards
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.model_files import locate, open_model, open_tokenizer, pick_device
from ragen2.backends.new_model import new_inputs, new_model, train_tokenizer
from ragen2.backends.remote.journal import Journal
from ragen2.backends.remote.policy import ServerPolicy, served_context
from ragen2.backends.remote.scorer import ServerScorer
from ragen2.backends.remote.settings import ServerSettings
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import SCORE_TOKENS, LearnerSettings, ModelSettings, NewModel
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.backends.vllm.policy import VllmPolicy
from ragen2.backends.vllm.server import VllmServerPolicy
from ragen2.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from ragen2.backends.distributed.process_group import ProcessGroup


def quiet_transformers() -> None:
    """No progress bars, retries or advice from Hugging Face among our own lines."""
    hf_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    hf_logging.disable_progress_bar()


LearnerPolicy = HFPolicy | VllmPolicy | VllmServerPolicy
"""What samples and scores for a learner, always with its newest weights."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A model to train and to sample from; both halves share one set of weights.

    ``local`` samples with those weights in this process, whichever engine ``policy`` is.
    """

    learner: TorchLearner
    policy: LearnerPolicy
    local: HFPolicy


def open_agent(
    model: ModelSettings,
    learner: LearnerSettings,
    *,
    seed: int,
    algorithm: Algorithm | None = None,
    steps: int = 0,
    processes: ProcessGroup | None = None,
    server: ServerSettings | None = None,
) -> Agent:
    """Load the model and put a learner and a policy over it, with what ``algorithm`` needs beside.

    ``steps`` of the run is what a falling learning rate falls over. ``processes`` are those to share
    updates with.
    """
    device = pick_device(model.device)
    if processes is not None:
        _refuse_in_processes(model.engine)
        processes.take_device(device)
    network, tokenizer = open_model(model.path, device=device)
    trained = _learner(network, tokenizer, model, learner, seed, processes)
    critic = None if algorithm is None else algorithm.critic
    policy_steps = steps if critic is None else max(0, steps - critic.warmup)
    trained.set_total_updates(policy_steps * learner.epochs * learner.minibatches)
    if algorithm is not None and algorithm.kl_coefficient > 0.0:
        trained.keep_reference()
    if critic is not None:
        trained.start_critic(critic.lr)
    local = HFPolicy(
        trained.whole,
        tokenizer,
        score_tokens=model.score_tokens,
        precision=model.precision,
        engine=model.engine,
        embedder=trained.embedder,
    )
    return Agent(trained, learner_policy(local, model, server or ServerSettings()), local)


def learner_policy(local: HFPolicy, model: ModelSettings, server: ServerSettings) -> LearnerPolicy:
    """What samples for the learner whose weights ``local`` has: itself, vLLM, or a vLLM server."""
    if model.engine == "vllm":
        location = locate(model.path)
        if location.gguf_file:
            raise ConfigError(
                f'model.path is {model.path}; model.engine = "vllm" needs a Hugging Face folder or hub id'
            )
        return VllmPolicy(local, location.source, memory=model.engine_memory)
    if model.engine == "server":
        if server.api == "chat":
            raise ConfigError(
                'server.api is "chat", but a learner needs the ids of what was sampled; leave it out'
            )
        url, _, name = server.url.partition("#")
        if not url or not name:
            raise ConfigError(
                f'model.engine = "server" needs server.url, got {server.url!r}; set it to '
                "http://host:8000#NAME, the name under which the model is served"
            )
        scorer = ServerScorer(url, name, settings=server)
        served = ServerPolicy(scorer, local.tokenizer, served_context(scorer))
        folder = Path(server.push_folder) if server.push_folder else None
        return VllmServerPolicy(served, local.network, folder)
    return local


def _refuse_in_processes(engine: str) -> None:
    """Each process would push its weights while the others sample."""
    if engine in {"vllm", "server"}:
        raise ConfigError(
            f'model.engine = "{engine}" trains in one process; leave it or --processes out, or use '
            "--engine verl"
        )


def _learner(
    network: Any,
    tokenizer: TemplateTokenizer,
    model: ModelSettings,
    settings: LearnerSettings,
    seed: int,
    processes: ProcessGroup | None,
) -> TorchLearner:
    if processes is None:
        return TorchLearner(network, tokenizer, model, settings, seed=seed)
    if settings.parallel == "fsdp2":
        from ragen2.backends.distributed.sharded import ShardedLearner

        shards = Shards(processes)
        return ShardedLearner(network, tokenizer, model, settings, seed=seed, parallelism=shards)
    replicas = Replicas(processes)
    return TorchLearner(network, tokenizer, model, settings, seed=seed, parallelism=replicas)


def open_policy(model: str, device: str = "auto", *, score_tokens: int = SCORE_TOKENS) -> HFPolicy:
    """A model to play or score with, not to train."""
    network, tokenizer = open_model(model, device=pick_device(device))
    return HFPolicy(network, tokenizer, score_tokens=score_tokens)


def open_server(
    url: str,
    model: str,
    tokenizer: str,
    *,
    settings: ServerSettings | None = None,
    journal: Path | None = None,
) -> ServerPolicy:
    """A model that an OpenAI-compatible server plays and scores with; ``tokenizer`` is opened here.

    ``journal`` is a file of completions: those in it are not asked for again, new ones are added.
    """
    try:
        opened = open_tokenizer(tokenizer)
    except ModelError as error:
        raise ModelError(
            f"the tokenizer of {model} is not found: {error}; set model.path to a folder or hub id that "
            "has it, or play by text alone with --set server.api=chat"
        ) from error
    scorer = ServerScorer(url, model, settings=settings or ServerSettings())
    kept = Journal(journal, model) if journal is not None else None
    return ServerPolicy(scorer, opened, served_context(scorer), kept)


def make_agent(
    shape: NewModel, corpus: list[str], learner: LearnerSettings, *, device: str, seed: int
) -> Agent:
    """A new model of ``shape`` whose tokenizer is trained on ``corpus``."""
    hf_tokenizer = train_tokenizer(corpus, shape.vocabulary, reads_images=shape.vision is not None)
    network = new_model(shape, hf_tokenizer, seed).to(pick_device(device))
    images = None if shape.vision is None else new_inputs(network, hf_tokenizer)
    tokenizer = TemplateTokenizer(hf_tokenizer, [hf_tokenizer.eos_token_id], images)
    model = ModelSettings(vision="trained")  # there is nothing yet that could stay as it is
    trained = TorchLearner(network, tokenizer, model, learner, seed=seed)
    local = HFPolicy(network, tokenizer, embedder=trained.embedder)
    return Agent(trained, local, local)
