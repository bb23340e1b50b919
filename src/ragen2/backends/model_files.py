"""Find and open a model: a folder, a hub id, a GGUF file, a run directory, or the embedded one."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from ragen2.backends.device import keep_to_share, prepare_products
from ragen2.backends.settings import EMBEDDED_MODELS
from ragen2.backends.tokenizer import TEXT_ONLY, TemplateTokenizer
from ragen2.backends.vision.checking import check_image_logits
from ragen2.backends.vision.inputs import ImageInputs, open_inputs
from ragen2.errors import DependencyError, ModelError
from ragen2.runs.checkpoints import newest_checkpoint

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
