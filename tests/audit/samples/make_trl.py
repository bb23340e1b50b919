"""How trl/completions_*.parquet were written: TRL 1.16.0, GRPOTrainer, two steps, the embedded model.

pip install torch==2.13.0 trl==1.16.0 pyarrow
python tests/audit/samples/make_trl.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = Path(__file__).parent
MODEL = HERE.parents[2] / "src" / "ragen2" / "models" / "ragen2-tiny"
SYSTEM = "Reach G. Reply <think>why</think><answer>action</answer>."
LAKES = ("SF\nFG", "SH\nFG", "SFF\nHFG", "SFH\nFFG")


def closes_reasoning(completions, log_extra, **_):
    """Two numbers that are no rewards are logged besides."""
    log_extra("temperature", [0.7 + 0.1 * (index % 4) for index, _ in enumerate(completions)])
    log_extra("words", [len(one[0]["content"].split()) for one in completions])
    return [float("</think>" in one[0]["content"]) for one in completions]


def is_short(completions, **_):
    return [1.0 / (1 + len(one[0]["content"])) for one in completions]


def main() -> None:
    prompts = [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": lake}] for lake in LAKES
    ]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=2,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=48,
            log_completions=True,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            seed=0,
            save_strategy="no",
        )
        GRPOTrainer(
            str(MODEL),
            reward_funcs=[closes_reasoning, is_short],
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
        ).train()
        target = HERE / "trl" / "completions"
        shutil.rmtree(HERE / "trl", ignore_errors=True)
        shutil.copytree(Path(folder) / "completions", target)


if __name__ == "__main__":
    main()
