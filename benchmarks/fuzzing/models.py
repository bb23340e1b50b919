"""Readers of model folders, and of what a served model has written."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from fuzzing.mutations import BYTES, JSON, JSON_LINES, Form, safetensors
from fuzzing.reader import Make, Reader, written


def model_reader(name: str, form: Form) -> Make:
    """One file of a model's folder: it is opened, a chat is tokenised and a reply sampled."""

    def make(folder: Path) -> Reader:
        from ragen2.backends.agent import locate

        copy = Path(shutil.copytree(locate("ragen2-tiny").source, folder / "model"))
        seed = (copy / name).read_bytes()
        known = safetensors(seed) if name.endswith(".safetensors") else form
        return Reader(known, [seed], written(copy / name, lambda: speak(str(copy))))

    return make


def gguf_reader(folder: Path) -> Reader:
    """The head of a GGUF file."""
    import gguf

    file = folder / "model.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "<e>"])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Reader(BYTES, [file.read_bytes()], written(file, lambda: speak(str(file))))


def speak(model: str) -> None:
    """Open a model and let it say two tokens."""
    from ragen2.backends.agent import open_policy
    from ragen2.policy import Request, SamplingParams
    from ragen2.types import Message

    policy = open_policy(model, "cpu")
    prompt = policy.tokenizer.start([Message("system", "Be brief."), Message("user", "Go.")])
    policy.tokenizer.bridge(Message("user", "On."), after_eos=True)
    if len(prompt) >= policy.max_context:
        return  # the episode would end here
    request = Request(np.array(prompt, dtype=np.int64), ("fuzz",))
    policy.sample([request], SamplingParams(max_tokens=2))


def shape_reader(folder: Path) -> Reader:
    """config.json, as the estimate of an experiment's cost reads it."""
    from ragen2.backends.agent import locate
    from ragen2.experiments.costs import shape_of

    seeds = [Path(locate(name).source, "config.json") for name in ("ragen2-tiny", "ragen2-tiny-vl")]
    read = written(folder / "config.json", lambda: shape_of(str(folder)))
    return Reader(JSON, [one.read_bytes() for one in seeds], read)


def journal_reader(folder: Path) -> Reader:
    """Completions that an evaluation keeps to go on with."""
    from ragen2.backends.remote.journal import Journal
    from ragen2.types import Completion, Finish

    file = folder / "journal.jsonl"
    journal = Journal(file, "model")
    for n in range(3):
        journal.add(f"n{n}", Completion(np.arange(2), np.zeros(2), "x", Finish.STOP))
    return Reader(JSON_LINES, [file.read_bytes()], written(file, lambda: Journal(file, "model")))


MODELS: dict[str, Make] = {
    "journal": journal_reader,
    "model: shape": shape_reader,
    "model: config.json": model_reader("config.json", JSON),
    "model: generation_config.json": model_reader("generation_config.json", JSON),
    "model: tokenizer.json": model_reader("tokenizer.json", JSON),
    "model: tokenizer_config.json": model_reader("tokenizer_config.json", JSON),
    "model: chat template": model_reader("chat_template.jinja", BYTES),
    "model: safetensors": model_reader("model.safetensors", BYTES),
    "model: GGUF": gguf_reader,
}
"""By name."""
