"""The model card: front matter that the hub reads, the numbers of the records, the settings."""

from __future__ import annotations

import tomllib

import yaml
from huggingface_hub import ModelCard

from ragen2.config import RunConfig, dump_config
from ragen2.runs.record import StepRecord
from ragen2.trainer.card import model_card, warmstart_card
from ragen2.trainer.warmstart import WarmstartConfig

SCOPE = "collapse/first_turn"


def evaluated(step: int, success: float) -> dict[str, float]:
    return {
        "eval/success": success,
        "eval/success_low": success - 0.05,
        "eval/success_high": success + 0.06,
        "eval/reward": success * 2,
    }


def scored(mi: float) -> dict[str, float]:
    return {
        f"{SCOPE}/mi_estimate": mi,
        f"{SCOPE}/retrieval_accuracy": mi / 2,
        f"{SCOPE}/retrieval_chance": 0.125,
        f"{SCOPE}/conditional_entropy": 0.4,
    }


RECORDS = [
    StepRecord(step=0, metrics=evaluated(0, 0.25)),
    StepRecord(step=1, metrics=scored(0.9), regime="diverse_grounded"),
    StepRecord(step=2, metrics=evaluated(2, 0.31) | scored(0.7), regime="diverse_grounded"),
    StepRecord(step=3, metrics=scored(0.1) | {"warning/level": 1.0}, regime="template_collapse"),
    StepRecord(step=4, metrics=evaluated(4, 0.5), regime="template_collapse"),
]


def test_the_front_matter_is_yaml_that_the_hub_reads() -> None:
    text = model_card(RunConfig(), RECORDS)
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["library_name"] == "transformers"
    assert front["tags"] == ["ragen2", "reinforcement-learning", "FrozenLake", "grpo"]
    assert "base_model" not in front
    (result,) = ModelCard(text).data.eval_results
    assert (result.metric_name, result.metric_value) == ("held-out success", 0.5)
    assert result.task_name == "FrozenLake"


def test_a_model_of_the_hub_is_named_as_the_base() -> None:
    config = RunConfig(model={"path": "Qwen/Qwen2.5-0.5B-Instruct"})
    front = yaml.safe_load(model_card(config, RECORDS).split("---\n")[1])
    assert front["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct"


def test_success_before_and_after_and_collapse_of_the_newest_measurement() -> None:
    lines = model_card(RunConfig(), RECORDS).splitlines()
    assert "# FrozenLake agent after 4 steps of grpo" in lines
    assert "| 0 | 0.250 | 0.200 to 0.310 | 0.500 |" in lines
    assert "| 4 | 0.500 | 0.450 to 0.560 | 1.000 |" in lines
    assert not any(line.startswith("| 2 |") for line in lines)
    assert (
        "**template collapse** at step 3: reasoning is varied, but no longer depends on its prompt."
        in lines
    )
    assert "The early warning was raised first at step 3." in lines
    assert "| first turn | step 1 | step 3 |" in lines
    assert "| mutual information, nats per token | 0.900 | 0.100 |" in lines
    assert "| retrieval accuracy | 0.450 | 0.050 |" in lines


def test_the_settings_are_the_run_file() -> None:
    config = RunConfig(seed=7)
    text = model_card(config, RECORDS)
    block = text.split("```toml\n")[1].split("```")[0]
    assert block == dump_config(config)
    assert tomllib.loads(block)["seed"] == 7


def test_what_was_not_measured_is_said() -> None:
    text = model_card(RunConfig(), [StepRecord(step=1, metrics={})])
    assert "Not evaluated." in text
    assert "Not measured." in text
    assert "model-index" not in text


def test_the_card_of_a_warm_start_says_what_was_imitated_and_claims_no_more() -> None:
    config = WarmstartConfig(steps=7, quality=0.25, model={"path": "Qwen/Qwen2.5-0.5B-Instruct"})
    text = warmstart_card(config, loss=0.51234)
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["tags"] == ["ragen2", "imitation-learning", "FrozenLake"]
    assert front["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert ModelCard(text).data.eval_results is None
    assert "7 steps of supervised learning" in text
    assert "the expert's move with chance 0.25 and" in text
    assert "Loss at the last step: 0.5123 nats per token." in text
    assert "## Success\n\nNot evaluated." in text
    assert text.split("```toml\n")[1].split("```")[0] == dump_config(config)
    fresh = warmstart_card(WarmstartConfig(new={}, model=config.model), loss=1.0)
    assert "base_model" not in fresh
    assert "from a new model:" in fresh
