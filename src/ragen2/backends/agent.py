"""Open a model in one call: learner and policy over the same weights, or a served policy.

A model is a folder, a hub id, a GGUF file, a run directory, or the embedded one.
"""

from __future__ import annotations

import logging
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from ragen2.backends.device import compute_dtype, keep_to_share, prepare_products
from ragen2.backends.distributed.parallelism import Replicas, Shards
from ragen2.backends.four_bits import pack_linear_layers
from ragen2.backends.frozen import hold_frozen
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
from ragen2.progress import report
from ragen2.runs.checkpoints import STATE, find_damage, newest_checkpoint
from ragen2.runs.files import MANIFEST
from ragen2.types import Message

if TYPE_CHECKING:
    from ragen2.backends.distributed.process_group import ProcessGroup


def quiet_transformers() -> None:
    """No progress bars, retries or advice from Hugging Face among our own lines."""
    hf_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    hf_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)  # a refusal follows


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
    network, tokenizer = open_trained(model, device)
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
    trained.set_spare(local.give_back)
    return Agent(trained, learner_policy(local, model, server or ServerSettings()), local)


def open_trained(model: ModelSettings, device: str) -> tuple[Any, TemplateTokenizer]:
    """The model of a run and its tokenizer.

    Under LoRA none of the model's own weights is trained: it is never held in float32, and in 4 bits never
    whole on the device.
    """
    if not model.lora_rank:
        return open_model(model.path, device=device)
    dtype, place = compute_dtype(model.precision, torch.device(device)), torch.device(device)
    if model.frozen == "auto":
        return open_model(model.path, device=device, frozen=dtype)
    return open_model(
        model.path,
        device=device,
        frozen=dtype,
        pack=partial(pack_linear_layers, dtype=dtype, device=place),
    )


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
    trained.set_spare(local.give_back)
    return Agent(trained, local, local)


logger = logging.getLogger(__name__)

HUB_SECONDS = 5.0
"""How long the hub may take to say whether it has a model."""


LARGEST_SHAPE = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "hidden_size": 10_000_000,
    "intermediate_size": 100_000_000,
    "vocab_size": 100_000_000,
}
"""Far beyond any model there is, by the names of config.json."""
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
MOST_PER_BYTE = 8
"""Weights in one byte of a file: those of one bit each."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model's files are, as ``from_pretrained`` takes it."""

    source: str
    gguf_file: str | None = None
    only_cached: bool = False
    """A hub id while the hub cannot be reached: each file would be asked for six times, in vain."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for every ``from_pretrained``.

        Code that a model brings is never run: left open, transformers would ask on a terminal.
        """
        gguf = {"gguf_file": self.gguf_file} if self.gguf_file else {}
        cached = {"local_files_only": True} if self.only_cached else {}
        return {"trust_remote_code": False, **gguf, **cached}


def locate(model: str) -> Location:
    """Turn what a user may write into a folder or hub id; a path that is not there is an error."""
    if model in EMBEDDED_MODELS:
        return Location(str(resources.files("ragen2") / "models" / model))
    path = Path(os.path.expanduser(model))
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


def open_model(
    model: str,
    *,
    device: str,
    frozen: torch.dtype = torch.float32,
    pack: Callable[[Any], None] = lambda _: None,
) -> tuple[Any, TemplateTokenizer]:
    """The language model in float32 on ``device``, and its chat tokenizer.

    One that reads images is opened with them, if its folder has all that takes. With another type as
    ``frozen``, none of the weights will be trained: the matrices of a model of text are held in it. ``pack``
    may make such a model smaller before it is moved to the device.
    """
    location = locate(model)
    is_here = location.only_cached or Path(location.source).exists()
    report(f"opening {model}" if is_here else f"fetching {model}", is_long=not is_here)
    load = _load_gguf if location.gguf_file else _load
    is_low = frozen is not torch.float32
    try:
        tokenizer, config, network, found = load(model, location, as_stored=is_low)
    except ModelError:
        raise
    except (
        BaseException
    ) as error:  # libraries read the files: what they raise for odd ones has no end
        _raise_unrelated(error)
        if location.only_cached:
            raise ModelError(
                f"model {model} cannot be opened: it is no folder here, not all of it is in the cache, "
                "and the hub cannot be reached; check the spelling, or the network"
            ) from error
        _refuse_own_code(model, error)
        raise ModelError(f"model {model} cannot be opened: {_one_line(error)}") from error
    _refuse_other_weights(model, found)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    if is_low and not _reads_images(config):  # reading images is tried out in float32 first
        hold_frozen(network.requires_grad_(False), frozen)
        pack(network)
    network.to(device)
    network.eval()
    images, reason = _open_images(model, location, config, tokenizer)
    rows = int(network.get_input_embeddings().weight.shape[0])
    with _tokenizer_errors(model):
        eos_ids = _eos_ids(network, tokenizer)
        chat = TemplateTokenizer(tokenizer, eos_ids, images, blind_because=reason, vocabulary=rows)
        _try_out(chat)
    if images is not None:
        check_image_logits(model, network, chat)
    return network, chat


Loaded = tuple[Any, Any, Any, dict[str, Any]]
"""Tokenizer, config, network, and what was missing or odd about its weights."""


def _load(model: str, location: Location, *, as_stored: bool = False) -> Loaded:
    """What transformers makes of the files; in float32, or a model of text ``as_stored``."""
    tokenizer = AutoTokenizer.from_pretrained(location.source, **location.options)
    config = AutoConfig.from_pretrained(location.source, **location.options)
    _refuse_odd_shape(model, config)
    _refuse_more_than_stored(model, Path(location.source), config)
    network, found = _class_for(config).from_pretrained(
        location.source,
        config=config,
        dtype="auto" if as_stored and not _reads_images(config) else torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported by name
        **location.options,
    )
    return tokenizer, config, network, found


def _load_gguf(model: str, location: Location, *, as_stored: bool = False) -> Loaded:
    """The same from a GGUF file: quickly, as an ordinary model, with the copy of a tied head joined."""
    del as_stored  # what is stored there are no numbers of torch
    from ragen2.backends.gguf_files import quick_reading, tie_copied_head

    file = Path(location.source, str(location.gguf_file))
    done, total = 0, file.stat().st_size

    def unpacked(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report(f"opening {model}", done, total)

    with quick_reading(unpacked) as read:
        tokenizer, config, network, found = _load(model, location)
        tie_copied_head(model, network, read(str(file)).tensors)
        unpacked(0)  # a line of the log may have taken the place of what was shown
    if quantizer := getattr(network, "hf_quantizer", None):  # with it, it refuses to be saved
        quantizer.remove_quantization_config(network)
    return tokenizer, config, network, found


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
    with _tokenizer_errors(model):
        tokenizer = AutoTokenizer.from_pretrained(location.source, **location.options)
        chat = TemplateTokenizer(tokenizer, [tokenizer.eos_token_id])
        _try_out(chat)
    return chat


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
        is_ours = any((path / name).is_file() for name in (MANIFEST, STATE))
        if is_ours and (damage := find_damage(path)):
            logger.warning("%s is not as it was saved: %s", path, damage)
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
    return sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None and int(i) >= 0})


def _try_out(chat: TemplateTokenizer) -> None:
    """Raise here what the tokenizer would raise in the middle of a run."""
    chat.decode(chat.start([Message("system", "."), Message("user", ".")]))
    chat.bridge(Message("user", "."), after_eos=True)


@contextmanager
def _tokenizer_errors(model: str) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except BaseException as error:
        _raise_unrelated(error)
        _refuse_own_code(model, error)
        raise ModelError(
            f"the tokenizer of {model} cannot be opened ({_one_line(error)}); give the folder or hub id "
            "that has it with --set model.path=..."
        ) from error


def _raise_unrelated(error: BaseException) -> None:
    """What is not about files; but a tokenizer that breaks inside is no ``Exception`` either."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _refuse_odd_shape(model: str, config: Any) -> None:
    """Numbers that no model has would give one without layers, or be built for hours."""
    described = config.get_text_config()
    for name, most in LARGEST_SHAPE.items():
        value = getattr(described, name, None)
        if isinstance(value, int) and not 1 <= value <= most:
            raise ModelError(
                f"model {model}: config.json has {name} = {value}, which must be from 1 to {most}; get "
                "its files again"
            )


def _refuse_more_than_stored(model: str, folder: Path, config: Any) -> None:
    """A shape of many more weights than the files hold would be filled with random numbers, for hours."""
    stored = sum(file.stat().st_size for kind in WEIGHTS for file in folder.glob(kind))
    shape = config.get_text_config()
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    sizes = [one for name in names if isinstance(one := getattr(shape, name, None), int)]
    if not stored or len(sizes) < len(names):
        return
    layers, hidden, intermediate, vocabulary = sizes
    least = hidden * (layers * (hidden + intermediate) + vocabulary)
    if least > MOST_PER_BYTE * stored:
        raise ModelError(
            f"model {model}: config.json asks for more than {least:,} weights, but the files of weights "
            f"have {stored:,} bytes; get its files again"
        )


def _refuse_own_code(model: str, error: BaseException) -> None:
    """In place of advice to pass an argument that no user of ours can pass."""
    if "trust_remote_code" in str(error):
        raise ModelError(
            f"model {model} brings code of its own, which is not run; use a model that transformers knows"
        ) from error


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
    if isinstance(error, pickle.UnpicklingError):  # torch's own words are how to run the code
        return (
            "its weights are a pickle with more than tensors in it, which could run code; get them "
            "as safetensors"
        )
    text = " ".join(str(error).split())
    return (f"{type(error).__name__} {text}" if len(text) < 30 else text)[:300]
