"""Open a model in one call: learner and policy over the same weights, or a served policy.

A model is a folder, a hub id, a GGUF file, a run directory, or the embedded one.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.utils import logging as hf_logging

from ragen2.algorithms import Algorithm
from ragen2.backends.device import keep_to_share, prepare_products
from ragen2.backends.distributed.parallelism import Replicas, Shards
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.new_model import new_inputs, new_model, train_tokenizer
from ragen2.backends.remote.journal import Journal
from ragen2.backends.remote.policy import ServerPolicy, served_context
from ragen2.backends.remote.scorer import ServerScorer
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import (
    EMBEDDED_MODELS,
    SCORE_TOKENS,
    LearnerSettings,
    ModelSettings,
    NewModel,
    ServerSettings,
)
from ragen2.backends.tokenizer import TEXT_ONLY, TemplateTokenizer
from ragen2.backends.vision.embedding import check_image_logits
from ragen2.backends.vision.inputs import ImageInputs, open_inputs
from ragen2.backends.vllm.policy import VllmPolicy, VllmServerPolicy
from ragen2.errors import ConfigError, DependencyError, ModelError
from ragen2.runs.checkpoints import newest_checkpoint

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


logger = logging.getLogger(__name__)

HUB_SECONDS = 5.0
"""How long the hub may take to say whether it has a model."""

FILE_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    ImportError,
)
"""What transformers raises for a folder that it cannot open."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model's files are, as ``from_pretrained`` takes it."""

    source: str
    gguf_file: str | None = None
    only_cached: bool = False
    """A hub id while the hub cannot be reached: each file would be asked for six times, in vain."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for every ``from_pretrained``."""
        gguf = {"gguf_file": self.gguf_file} if self.gguf_file else {}
        return {**gguf, "local_files_only": True} if self.only_cached else gguf


def locate(model: str) -> Location:
    """Turn what a user may write into a folder or hub id; a path that is not there is an error."""
    if model in EMBEDDED_MODELS:
        return Location(str(resources.files("ragen2") / "models" / model))
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return Location(str(path.parent), path.name)
    if path.is_dir():
        return _locate_folder(path)
    if (
        path.suffix == ".gguf"
        or path.is_absolute()
        or model.startswith(".")
        or model.count("/") > 1
    ):
        raise ModelError(f"model {model} does not exist; give a folder, a GGUF file or a hub id")
    return Location(model, only_cached=not _hub_answers(model))


def open_model(model: str, *, device: str) -> tuple[Any, TemplateTokenizer]:
    """The language model in float32 on ``device``, and its chat tokenizer.

    One that reads images is opened with them, if its folder has all that takes.
    """
    location = locate(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(location.source, **location.options)
        config = AutoConfig.from_pretrained(location.source, **location.options)
        network, found = _class_for(config).from_pretrained(
            location.source,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **location.options,
        )
    except Exception as error:
        if not _is_about_files(error):
            raise
        if location.only_cached:
            raise ModelError(
                f"model {model} cannot be opened: it is no folder here, not all of it is in the cache, "
                "and the hub cannot be reached; check the spelling, or the network"
            ) from error
        raise ModelError(f"model {model} cannot be opened: {_one_line(error)}") from error
    _refuse_other_weights(model, found)
    if location.gguf_file:
        network = without_quantisation(network)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    network.to(device)
    network.eval()
    images, reason = _open_images(model, location, config, tokenizer)
    eos_ids = _eos_ids(network, tokenizer)
    chat = TemplateTokenizer(tokenizer, eos_ids, images, blind_because=reason)
    if images is not None:
        check_image_logits(model, network, chat)
    return network, chat


def _class_for(config: Any) -> Any:
    return AutoModelForImageTextToText if _reads_images(config) else AutoModelForCausalLM


def _reads_images(config: Any) -> bool:
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def _open_images(
    model: str, location: Location, config: Any, tokenizer: Any
) -> tuple[ImageInputs | None, str]:
    """The image side of a model, or why it has none; it can be used for text all the same."""
    if not _reads_images(config):
        return None, TEXT_ONLY
    try:
        return open_inputs(location.source, location.options, config, tokenizer), ""
    except (ModelError, DependencyError) as error:
        return None, f"model {model} cannot read them: {error}"


def open_tokenizer(model: str) -> TemplateTokenizer:
    """The chat tokenizer alone, for a model that is served elsewhere."""
    location = locate(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(location.source, **location.options)
    except Exception as error:
        if not _is_about_files(error):
            raise
        raise ModelError(
            f"the tokenizer of {model} cannot be opened ({_one_line(error)}); give the folder or hub id "
            "that has it with --set model.path=..."
        ) from error
    return TemplateTokenizer(tokenizer, [tokenizer.eos_token_id])


def without_quantisation(network: Any) -> Any:
    """The same weights in an ordinary model: one read from GGUF refuses to be saved."""
    config = copy.deepcopy(network.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(network.state_dict())
    plain.generation_config = network.generation_config
    return plain


def pick_device(device: str) -> str:
    """``auto`` -> cuda when there is one; asking for a GPU that is not there is an error."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("model.device is cuda, but torch sees no GPU; use auto or cpu")
    if device == "cuda":
        prepare_products()
        keep_to_share()
    return device


def _hub_answers(model: str) -> bool:
    """Ask the hub once, and briefly; a model that it does not have is an error here already."""
    try:
        HfApi().model_info(model, timeout=HUB_SECONDS)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"model {model} cannot be opened: it is no folder here, and the hub has no such model; "
            "check the spelling"
        ) from error
    except HfHubHTTPError:
        return True  # it answers, if only to complain: from_pretrained says more
    except Exception as error:
        if not _is_about_connection(error):
            raise
        return False
    return True


def _is_about_connection(error: Exception) -> bool:
    """Whether the web client could not connect; the hub library has had three clients so far."""
    is_client = type(error).__module__.split(".")[0] in {"httpx", "httpx2", "requests"}
    return is_client or isinstance(error, OSError)


def _locate_folder(path: Path) -> Location:
    if (path / "config.json").is_file():
        return Location(str(path))
    quantised = sorted(path.glob("*.gguf"))
    if quantised:
        return Location(str(path), quantised[0].name)
    if (path / "run.toml").is_file():
        checkpoint = newest_checkpoint(path)
        if checkpoint is None:
            raise ModelError(f"run directory {path} has no checkpoint; train it first")
        return Location(str(checkpoint))
    raise ModelError(
        f"folder {path} holds no model (no config.json, no .gguf, no run.toml); "
        "give the folder that from_pretrained would open"
    )


def _eos_ids(network: Any, tokenizer: Any) -> list[int]:
    found = getattr(network.generation_config, "eos_token_id", None)
    ids = list(found) if isinstance(found, list) else [found]
    return sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None})


def _is_about_files(error: Exception) -> bool:
    """Whether a library may raise this for files it can make no sense of.

    tokenizers raises bare ``Exception``, safetensors a type of its own right below it.
    """
    is_library = type(error).__module__.split(".")[0] in {"safetensors", "safetensors_rust"}
    return is_library or type(error) is Exception or isinstance(error, FILE_ERRORS)


def _refuse_other_weights(model: str, found: dict[str, Any]) -> None:
    """What is absent or has another shape, transformers would fill with random numbers."""
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"model {model} lacks {len(missing)} weights, {missing[0]} for one; get its files again"
        )
    for name, stored, wanted in sorted(found["mismatched_keys"]):
        raise ModelError(
            f"model {model}: {name} is stored as {tuple(stored)}, but config.json asks for "
            f"{tuple(wanted)}; get its files again"
        )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (f"{type(error).__name__} {text}" if len(text) < 30 else text)[:300]
