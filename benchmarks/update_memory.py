"""What one update takes: seconds, and the most memory a GPU holds meanwhile.

    python benchmarks/update_memory.py --tokens 32768

Without --model the network has SmolLM2-135M's shape and random weights, so nothing is downloaded. Samples are
like those of two turns: of different lengths, a third of their tokens written.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ragen2.algorithms import GRPO
from ragen2.backends.agent import pick_device
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.new_model import train_tokenizer
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.types import Sample

SMOL = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
GIB = 2**30


def make_samples(tokens: int, vocabulary: int, longest: int) -> list[Sample]:
    """Samples of ``tokens`` in all, each with a prompt, a written part, an observation, a written part."""
    rng = np.random.default_rng(0)
    samples: list[Sample] = []
    left = tokens
    while left > 1:
        length = min(left, int(rng.integers(longest // 3, longest + 1)))
        written_T = np.zeros(length, dtype=np.bool_)
        written_T[length // 3 : length // 2] = True
        written_T[-max(1, length // 6) :] = True
        samples.append(
            Sample(
                ids_T=rng.integers(5, vocabulary, length),
                loss_mask_T=written_T,
                old_logprobs_T=np.where(written_T, -np.log(vocabulary), 0.0),
                advantages_T=np.where(written_T, rng.normal(), 0.0),
            )
        )
        left -= length
    return samples


def make_learner(args: argparse.Namespace) -> TorchLearner:
    """A learner with the settings asked for."""
    torch.manual_seed(0)
    if args.model:
        network = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.float32, trust_remote_code=False
        )
    else:
        shape = {**SMOL, "num_hidden_layers": args.layers, "vocab_size": args.vocabulary}
        network = LlamaForCausalLM(LlamaConfig(**shape))
    words = train_tokenizer(["go down"], 300)
    settings = LearnerSettings(
        micro_tokens=args.micro_tokens,
        gradient_checkpointing={"auto": "auto", "on": True, "off": False}[args.checkpointing],
        compile=args.compile,
    )
    network = network.to(args.device).eval()
    tokenizer = TemplateTokenizer(words, [words.eos_token_id])
    return TorchLearner(network, tokenizer, ModelSettings(), settings, seed=0)


def measure(learner: TorchLearner, samples: list[Sample], repeats: int) -> dict[str, object]:
    """Seconds of each update after a first one, the peak of all, and what a user would see."""
    is_gpu = learner.device.type == "cuda"
    took, metrics = [], {}
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats + 1):
        started = time.perf_counter()
        metrics = learner.update(samples, GRPO(), scale=1.0).metrics
        if is_gpu:
            torch.cuda.synchronize()
        took.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() / GIB if is_gpu else None
    return {
        "seconds": float(np.median(took[1:])),
        "seconds_first": took[0],
        "peak_gib": peak,
        "is_reproducible": is_reproducible(learner, samples),
        "is_packed": learner.forward.is_packed,
        "padding": metrics["padding"],
        "loss": metrics["loss"],
        "grad_norm": metrics["grad_norm"],
    }


def is_reproducible(learner: TorchLearner, samples: list[Sample]) -> bool:
    """Whether two gradients from the same weights are the same bit for bit."""
    one, two = (learner.gradient(samples, GRPO()).values for _ in range(2))
    return torch.equal(one, two)


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="a folder; without it SmolLM2-135M's shape")
    parser.add_argument("--layers", type=int, default=SMOL["num_hidden_layers"])
    parser.add_argument("--vocabulary", type=int, default=SMOL["vocab_size"])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--longest", type=int, default=512, help="tokens of the longest sample")
    parser.add_argument("--micro-tokens", type=int, default=0)
    parser.add_argument("--checkpointing", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--padded", action="store_true", help="pad samples instead of packing them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    pick_device(args.device)
    learner = make_learner(args)
    if args.padded:
        learner.forward.is_packed = False
    vocabulary = int(learner.network.config.vocab_size)
    samples = make_samples(args.tokens, vocabulary, args.longest)
    found = {
        "tokens": sum(len(sample.ids_T) for sample in samples),
        "loss_tokens": sum(int(sample.loss_mask_T.sum()) for sample in samples),
        "samples": len(samples),
        "vocabulary": vocabulary,
        "micro_tokens": learner.forward.micro_tokens,
        "checkpointing": args.checkpointing,
        "compile": args.compile,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "torch": torch.__version__,
    }
    print(json.dumps({**found, **measure(learner, samples, args.repeats)}))


if __name__ == "__main__":
    main()
