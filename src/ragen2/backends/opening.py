"""Open everything a run needs of torch in one call: learner and policy over the same weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from transformers.utils import logging as hf_logging

from ragen2.algorithms import PPO, Algorithm
from ragen2.backends.chat import TemplateTokenizer
from ragen2.backends.hf import HFPolicy
from ragen2.backends.learner import TorchLearner
from ragen2.backends.loading import open_model, open_tokenizer, pick_device
from ragen2.backends.new_model import new_inputs, new_model, train_tokenizer
from ragen2.backends.server import ServerScorer
from ragen2.backends.server_policy import ServerPolicy
from ragen2.backends.settings import SCORE_TOKENS, LearnerSettings, ModelSettings, NewModel


def quiet_transformers() -> None:
    """No progress bars, retries or advice from Hugging Face among our own lines."""
    hf_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    hf_logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class Agent:
    """A model that can be trained and played; both halves share one set of weights."""

    learner: TorchLearner
    policy: HFPolicy


def open_agent(
    model: ModelSettings,
    learner: LearnerSettings,
    *,
    seed: int,
    algorithm: Algorithm | None = None,
    steps: int = 0,
    with_reference: bool = False,
) -> Agent:
    """Load the model and put a learner and a policy over it, with what ``algorithm`` needs beside.

    ``steps`` of the run is what a falling learning rate falls over. ``with_reference`` remembers the
    starting model even where the algorithm has no KL term.
    """
    network, tokenizer = open_model(model.path, device=pick_device(model.device))
    trained = TorchLearner(network, tokenizer, model, learner, seed=seed)
    silent = algorithm.critic_warmup if isinstance(algorithm, PPO) else 0
    trained.set_total_updates(max(0, steps - silent) * learner.epochs * learner.minibatches)
    has_kl = algorithm is not None and algorithm.kl_coefficient > 0.0
    if has_kl or with_reference:
        trained.keep_reference()
    if isinstance(algorithm, PPO):
        trained.start_critic(algorithm.critic_lr)
    policy = HFPolicy(
        trained.network,
        tokenizer,
        score_tokens=model.score_tokens,
        precision=model.precision,
        engine=model.engine,
        sight=trained.sight,
    )
    return Agent(trained, policy)


def open_policy(model: str, device: str = "auto", *, score_tokens: int = SCORE_TOKENS) -> HFPolicy:
    """A model to play or score with, not to train."""
    network, tokenizer = open_model(model, device=pick_device(device))
    return HFPolicy(network, tokenizer, score_tokens=score_tokens)


def open_server(url: str, model: str, tokenizer: str) -> ServerPolicy:
    """A model that an OpenAI-compatible server plays and scores with; ``tokenizer`` is opened here."""
    return ServerPolicy(ServerScorer(url, model), open_tokenizer(tokenizer))


def make_agent(
    shape: NewModel, corpus: list[str], learner: LearnerSettings, *, device: str, seed: int
) -> Agent:
    """A new model of ``shape`` whose tokenizer is trained on ``corpus``."""
    hf_tokenizer = train_tokenizer(corpus, shape.vocabulary, sees=shape.vision is not None)
    network = new_model(shape, hf_tokenizer, seed).to(pick_device(device))
    images = None if shape.vision is None else new_inputs(network, hf_tokenizer)
    tokenizer = TemplateTokenizer(hf_tokenizer, [hf_tokenizer.eos_token_id], images)
    model = ModelSettings(vision="trained")  # there is nothing yet that could stay as it is
    trained = TorchLearner(network, tokenizer, model, learner, seed=seed)
    return Agent(trained, HFPolicy(network, tokenizer, sight=trained.sight))
