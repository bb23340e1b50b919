"""The learner: one gradient however a batch is cut, steps that can be trusted, exact saves."""

from __future__ import annotations

import copy
import math
import pickle
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragen2.algorithms import GRPO, PPO
from ragen2.backends.agent import open_agent
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.learner.microbatches import packed_batches
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.errors import RunError
from ragen2.policy import Request, SamplingParams
from ragen2.trainer.warmstart import Supervised
from ragen2.types import FloatArray, Sample

Samples = Callable[..., list[Sample]]

LENGTHS = [40, 44, 41, 50, 47, 42, 49, 45, 43, 48, 46, 40]
"""Twelve samples of different lengths."""
LORA = ModelSettings(lora_rank=4)


def learner_of(
    parts: Any, model: ModelSettings | None = None, *, seed: int = 0, **settings: Any
) -> TorchLearner:
    """A learner with its own copy of the network."""
    network = copy.deepcopy(parts[0])
    chosen = LearnerSettings(**{"lr": 1e-3, **settings})
    return TorchLearner(network, parts[1], model or ModelSettings(), chosen, seed=seed)


def flat_gradient(learner: TorchLearner) -> torch.Tensor:
    trained = [p for p in learner.network.parameters() if p.requires_grad]
    return torch.cat([p.grad.flatten() for p in trained])


def flat_weights(learner: TorchLearner) -> torch.Tensor:
    return torch.cat([value.flatten() for _, value in sorted(learner.network.state_dict().items())])


def on_policy(learner: TorchLearner, samples: Sequence[Sample]) -> list[Sample]:
    """The samples as if these weights had written them."""
    found = []
    for sample in samples:
        with torch.no_grad():
            logits = learner.network(input_ids=torch.tensor(sample.ids_T)[None]).logits[0]
        logp = torch.log_softmax(logits, -1)[:-1].gather(-1, torch.tensor(sample.ids_T)[1:, None])
        old = np.concatenate([[0.0], logp[:, 0].double().numpy()])
        found.append(replace(sample, old_logprobs_T=np.where(sample.loss_mask_T, old, 0.0)))
    return found


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
@pytest.mark.parametrize("terms", [{}, {"kl_coefficient": 0.1, "entropy_coefficient": 0.01}])
def test_micro_batches_of_1_3_and_all_samples_give_the_same_gradient(
    small: Any, random_samples: Samples, aggregation: Any, terms: dict[str, float]
) -> None:
    samples = random_samples(LENGTHS)
    objective = GRPO(aggregation=aggregation, **terms)
    found = []
    for size in (1, 3, len(samples)):
        budget = size * max(LENGTHS)
        assert len(packed_batches(LENGTHS, budget)) >= len(samples) // (size + 1)
        learner = learner_of(small, micro_tokens=budget)
        learner.keep_reference()
        with torch.no_grad():
            learner.network.model.embed_tokens.weight.mul_(1.01)  # so that KL has a gradient
        parts = learner.gradients(samples, objective, scale=0.5)
        found.append((flat_gradient(learner), parts["loss"]))
    assert found[0][0].norm() > 0.1
    for gradient, loss in found[1:]:
        assert (gradient - found[0][0]).abs().max() < 1e-5
        assert loss == pytest.approx(found[0][1], abs=1e-5)


def test_micro_batches_give_the_same_weights_after_an_update(
    small: Any, random_samples: Samples
) -> None:
    samples = random_samples(LENGTHS)
    weights = []
    for size in (1, 3, len(samples)):
        learner = learner_of(small, micro_tokens=size * max(LENGTHS))
        learner.update(samples, GRPO(), scale=1.0)
        weights.append(flat_weights(learner))
    for other in weights[1:]:
        assert (other - weights[0]).abs().max() < 1e-5


def test_the_embedded_model_has_one_gradient_too(embedded: Any, random_samples: Samples) -> None:
    samples = random_samples(LENGTHS, vocabulary=500)
    gradients = []
    for size in (1, 3, len(samples)):
        learner = learner_of(embedded, micro_tokens=size * max(LENGTHS))
        learner.gradients(samples, GRPO())
        gradients.append(flat_gradient(learner))
    for other in gradients[1:]:
        assert (other - gradients[0]).abs().max() < 1e-5


def test_an_update_follows_the_gradient_of_expected_reward(small: Any) -> None:
    """A bandit whose arms are all tokens: the sampled gradient, taken over every arm, is exact.

    Arm a gets advantage ``K pi(a) (r(a) - b)`` so that the mean over K arms is the sum over a of
    ``pi(a) (r(a) - b) grad log pi(a)``: the gradient of expected reward, for any baseline b.
    """
    learner = learner_of((small[0].double(), small[1]))
    network, prompt = learner.network, torch.arange(10, 22)[None]
    count = network.config.vocab_size
    rewards = torch.tensor(np.random.default_rng(1).random(count))

    @torch.no_grad()
    def chances() -> torch.Tensor:
        return torch.softmax(network(input_ids=prompt).logits[0, -1], -1)

    pi = chances()
    samples = []
    for arm in range(count):
        written = np.arange(prompt.shape[1] + 1) == prompt.shape[1]
        samples.append(
            Sample(
                ids_T=np.append(prompt[0].numpy(), arm),
                loss_mask_T=written,
                old_logprobs_T=np.where(written, math.log(pi[arm]), 0.0),
                advantages_T=np.where(written, count * float(pi[arm] * (rewards[arm] - 0.4)), 0.0),
            )
        )
    learner.gradients(samples, GRPO())
    gradients = [-parameter.grad for parameter in network.parameters()]
    numbers = torch.Generator().manual_seed(0)
    for _ in range(4):
        direction = [torch.randn(g.shape, generator=numbers, dtype=g.dtype) for g in gradients]
        ahead, behind = (
            expected_reward_along(network, direction, size, lambda: float(chances() @ rewards))
            for size in (1e-4, -1e-4)
        )
        slope = (ahead - behind) / 2e-4
        wanted = float(sum((g * d).sum() for g, d in zip(gradients, direction, strict=True)))
        assert abs(wanted) > 1e-2
        assert slope == pytest.approx(wanted, rel=1e-3)


@torch.no_grad()
def expected_reward_along(
    network: Any, direction: list[torch.Tensor], size: float, value: Callable[[], float]
) -> float:
    """``value()`` with the weights moved by ``size`` along ``direction``, and back."""
    for parameter, change in zip(network.parameters(), direction, strict=True):
        parameter.add_(change, alpha=size)
    found = value()
    for parameter, change in zip(network.parameters(), direction, strict=True):
        parameter.sub_(change, alpha=size)
    return found


def test_the_supervised_gradient_is_that_of_cross_entropy(
    small: Any, random_samples: Samples
) -> None:
    learner = learner_of(small)
    (sample,) = random_samples([30])
    learner.gradients([sample], Supervised())
    found = flat_gradient(learner)
    learner.network.zero_grad()
    ids = torch.tensor(sample.ids_T)[None]
    labels = ids.masked_fill(~torch.tensor(sample.loss_mask_T)[None], -100)
    learner.network(input_ids=ids, labels=labels).loss.backward()
    torch.testing.assert_close(found, flat_gradient(learner), atol=1e-6, rtol=1e-4)


def test_scale_multiplies_the_gradient(small: Any, random_samples: Samples) -> None:
    learner, samples = learner_of(small), random_samples(LENGTHS)
    learner.gradients(samples, GRPO(), scale=1.0)
    whole = flat_gradient(learner)
    learner.gradients(samples, GRPO(), scale=0.25)
    torch.testing.assert_close(flat_gradient(learner), whole * 0.25)


def test_logprobs_are_taken_at_the_temperature_of_sampling(small: Any) -> None:
    learner = learner_of(small)
    prompt = np.arange(10, 20)
    (completion,) = HFPolicy(learner.network, small[1]).sample(
        [Request(prompt, (1,))], SamplingParams(temperature=0.6, max_tokens=12, stop=())
    )
    written = np.arange(len(prompt) + len(completion.ids_T)) >= len(prompt)
    old = np.concatenate([np.zeros(len(prompt)), completion.logprobs_T])
    sample = Sample(
        np.concatenate([prompt, completion.ids_T]), written, old, written * 1.0, temperature=0.6
    )
    assert learner.gradients([sample], GRPO())["sampler_mismatch"] < 1e-5


def test_a_gradient_longer_than_the_clip_is_scaled_to_it(
    small: Any, random_samples: Samples
) -> None:
    samples = random_samples(LENGTHS)
    plain = learner_of(small, grad_clip=1e9)
    norm = plain.update(samples, GRPO(), scale=1.0).metrics["grad_norm"]
    clipped = learner_of(small, grad_clip=norm / 5)
    update = clipped.update(samples, GRPO(), scale=1.0)
    assert update.metrics["grad_norm"] == pytest.approx(norm)
    assert first_moment_norm(plain) == pytest.approx(0.1 * norm, rel=1e-4)
    assert first_moment_norm(clipped) == pytest.approx(0.1 * norm / 5, rel=1e-4)


def first_moment_norm(learner: TorchLearner) -> float:
    """After one step AdamW's first moment is a tenth of the gradient it was given."""
    moments = [state["exp_avg"].flatten() for state in learner.optimiser.state.values()]
    return float(torch.cat(moments).norm())


@pytest.fixture(params=["old_logprobs_T", "advantages_T"])
def poisoned(random_samples: Samples, request: pytest.FixtureRequest) -> list[Sample]:
    """Three samples, one of which holds numbers that are not numbers."""
    samples = random_samples([30, 30, 30])
    return [*samples[:2], replace(samples[2], **{request.param: np.full(30, np.nan)})]


def test_a_gradient_that_is_not_a_number_changes_nothing_and_is_counted(
    small: Any, poisoned: list[Sample]
) -> None:
    learner = learner_of(small)
    before = flat_weights(learner)
    update = learner.update(poisoned, GRPO(), scale=1.0)
    assert torch.equal(flat_weights(learner), before)
    assert not learner.optimiser.state
    assert update.metrics["skipped_steps"] == 1.0
    assert update.num_steps == 0


def test_a_skipped_step_reports_no_number_that_is_not_one(
    small: Any, poisoned: list[Sample]
) -> None:
    update = learner_of(small).update(poisoned, GRPO(), scale=1.0)
    assert set(update.metrics) == {"skipped_steps", "lr"}


def test_steps_after_a_skipped_one_are_taken_and_averaged_alone(
    small: Any, random_samples: Samples, poisoned: list[Sample]
) -> None:
    learner = learner_of(small, minibatches=3)
    update = learner.update(poisoned, GRPO(), scale=1.0)
    assert (update.num_steps, update.metrics["skipped_steps"]) == (2, 1.0)
    assert all(math.isfinite(value) for value in update.metrics.values())
    good = learner.update(random_samples(LENGTHS), GRPO(), scale=1.0)
    assert (good.num_steps, good.metrics["skipped_steps"]) == (3, 0.0)


def test_an_update_counts_tokens_and_steps(small: Any, random_samples: Samples) -> None:
    samples = random_samples(LENGTHS)
    update = learner_of(small, epochs=2, minibatches=3).update(samples, GRPO(), scale=1.0)
    assert update.num_steps == 6
    assert update.num_tokens == sum(int(sample.loss_mask_T.sum()) for sample in samples)


def test_the_learning_rate_warms_up(small: Any, random_samples: Samples) -> None:
    learner = learner_of(small, lr=0.4, warmup_steps=4)
    samples = random_samples([20])
    rates = [learner.update(samples, GRPO(), scale=1.0).metrics["lr"] for _ in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


@pytest.mark.parametrize("model", [ModelSettings(), LORA])
def test_kl_to_the_start_is_zero_before_the_first_step_and_positive_after(
    small: Any, random_samples: Samples, model: ModelSettings
) -> None:
    learner = learner_of(small, model, lr=1e-2)
    learner.keep_reference()
    objective, samples = GRPO(kl_coefficient=0.1), random_samples(LENGTHS)
    first = learner.update(samples, objective, scale=1.0).metrics["kl"]
    second = learner.update(samples, objective, scale=1.0).metrics["kl"]
    assert first == pytest.approx(0.0, abs=1e-9)
    assert second > 1e-6


def test_kl_pulls_back_to_the_start(small: Any, random_samples: Samples) -> None:
    samples = random_samples(LENGTHS)
    kept = {}
    for coefficient in (1e-9, 10.0):
        learner = learner_of(small, lr=3e-3)
        learner.keep_reference()
        objective = GRPO(kl_coefficient=coefficient)
        for _ in range(8):
            update = learner.update(on_policy(learner, samples), objective, scale=1.0)
        kept[coefficient] = update.metrics["kl"]
    assert kept[10.0] < 0.5 * kept[1e-9]


def test_kl_without_a_kept_reference_is_an_error(small: Any, random_samples: Samples) -> None:
    with pytest.raises(RunError, match=r"call keep_reference\(\) before training"):
        learner_of(small).update(random_samples([20]), GRPO(kl_coefficient=0.1), scale=1.0)


def test_better_actions_become_likelier(small: Any, random_samples: Samples) -> None:
    learner = learner_of(small, lr=1e-3)
    samples = on_policy(learner, random_samples(LENGTHS))
    learner.update(samples, GRPO(), scale=1.0)
    after = on_policy(learner, samples)
    gained = sum(
        float(((new.old_logprobs_T - old.old_logprobs_T) * old.advantages_T).sum())
        for new, old in zip(after, samples, strict=True)
    )
    assert gained > 0.0


def test_lora_trains_its_adapters_and_nothing_else(small: Any, random_samples: Samples) -> None:
    learner = learner_of(small, LORA)
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    for _ in range(2):
        learner.update(random_samples(LENGTHS), GRPO(), scale=1.0)
    changed = {
        name
        for name, value in learner.network.state_dict().items()
        if not torch.equal(value, before[name])
    }
    adapters = {name for name in before if "lora_" in name}
    assert changed == adapters
    assert int(learner.describe()["trained"].replace(",", "")) == sum(
        before[name].numel() for name in adapters
    )


def test_a_new_lora_plays_like_its_base(small: Any) -> None:
    ids = torch.arange(10, 40)[None]
    with torch.no_grad():
        wrapped, plain = learner_of(small, LORA).network(ids).logits, small[0](ids).logits
    torch.testing.assert_close(wrapped, plain)


def test_the_same_seed_gives_the_same_lora_and_leaves_the_global_random_state_alone(
    small: Any,
) -> None:
    before = torch.random.get_rng_state()
    one, two, other = (flat_weights(learner_of(small, LORA, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("model", [ModelSettings(), LORA])
def test_a_checkpoint_opens_with_transformers_and_plays_the_same(
    small: Any, random_samples: Samples, tmp_path: Path, model: ModelSettings
) -> None:
    learner = learner_of(small, model, lr=1e-2)
    for _ in range(2):
        learner.update(random_samples(LENGTHS), GRPO(), scale=1.0)
    learner.save(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.arange(10, 40)[None]
    with torch.no_grad():
        ours, theirs = learner.network(ids).logits, opened(ids).logits
        start = small[0](ids).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert (ours - start).abs().max() > 1e-2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode("go down") == small[1].encode("go down")
    assert tokenizer.chat_template == small[1].hf.chat_template


@pytest.mark.parametrize("model", [ModelSettings(), LORA])
def test_save_and_load_restore_bit_for_bit(
    small: Any, random_samples: Samples, tmp_path: Path, model: ModelSettings
) -> None:
    settings = {"epochs": 2, "minibatches": 3, "warmup_steps": 20, "weight_decay": 0.01}
    one = learner_of(small, model, **settings)
    one.update(random_samples(LENGTHS, seed=1), GRPO(), scale=1.0)
    one.save(tmp_path)
    two = learner_of(small, model, **settings)
    two.load(tmp_path)
    assert torch.equal(flat_weights(one), flat_weights(two))
    after = [
        learner.update(random_samples(LENGTHS, seed=2), GRPO(), scale=0.7) for learner in (one, two)
    ]
    assert dict(after[0].metrics) == dict(after[1].metrics)
    assert torch.equal(flat_weights(one), flat_weights(two))


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Let no file grow beyond so many bytes, as on a disk that is full by then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_a_file_that_finds_no_room_is_an_os_error(
    small: Any,
    random_samples: Samples,
    tmp_path: Path,
    file_limit: Callable[[int], None],
    name: str,
) -> None:
    learner = learner_of(small)
    learner.update(random_samples([20]), GRPO(), scale=1.0)
    learner.save(tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes["model.safetensors"] < sizes["optimizer.pt"]
    file_limit(sizes[name] - 1)
    with pytest.raises(OSError, match="File too large"):
        learner.save(tmp_path)


def test_saving_changes_nothing(small: Any, random_samples: Samples, tmp_path: Path) -> None:
    for model in (ModelSettings(), LORA):
        one, two = learner_of(small, model), learner_of(small, model)
        for learner in (one, two):
            learner.update(random_samples(LENGTHS, seed=1), GRPO(), scale=1.0)
        (tmp_path / str(model.lora_rank)).mkdir()
        one.save(tmp_path / str(model.lora_rank))
        for learner in (one, two):
            learner.update(random_samples(LENGTHS, seed=2), GRPO(), scale=1.0)
        assert torch.equal(flat_weights(one), flat_weights(two))


@pytest.mark.parametrize("damage", [b"", b"no archive at all", pickle.dumps(Path())])
def test_a_damaged_optimiser_file_is_one_line(small: Any, tmp_path: Path, damage: bytes) -> None:
    learner = learner_of(small)
    learner.save(tmp_path)
    (tmp_path / "optimizer.pt").write_bytes(damage)
    with pytest.raises(RunError, match=r"checkpoint .* cannot be read") as caught:
        learner.load(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    assert "weights_only" not in str(caught.value), "torch tells how to run the code in it"


def test_the_learner_says_what_it_trains(small: Any) -> None:
    facts = learner_of(small).describe()
    assert facts["architecture"] == "llama"
    assert facts["device"] == "cpu"
    assert facts["parameters"] == facts["trained"]


def test_values_of_unwritten_tokens_do_not_matter(small: Any, random_samples: Samples) -> None:
    learner = learner_of(small)
    samples = random_samples([30, 40])
    learner.gradients(samples, GRPO())
    wanted = flat_gradient(learner)
    noise: list[FloatArray] = [np.where(s.loss_mask_T, 0.0, 99.0) for s in samples]
    loud = [
        replace(
            sample,
            old_logprobs_T=sample.old_logprobs_T + extra,
            advantages_T=sample.advantages_T + extra,
        )
        for sample, extra in zip(samples, noise, strict=True)
    ]
    learner.gradients(loud, GRPO())
    assert torch.equal(flat_gradient(learner), wanted)


# --- learning-rate schedules -----------------------------------------------------------------------


def rates_of(learner: TorchLearner, samples: list[Sample], count: int) -> list[float]:
    return [learner.update(samples, GRPO(), scale=1.0).metrics["lr"] for _ in range(count)]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"schedule": "linear"}, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ({"schedule": "linear", "lr_end": 0.2}, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ({"schedule": "linear", "warmup_steps": 2}, [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]),
        ({"schedule": "cosine"}, [1.0, 0.8535534, 0.5, 0.1464466, 0.0, 0.0]),
        ({"schedule": "constant"}, [1.0] * 6),
    ],
)
def test_a_schedule_falls_over_the_updates_of_the_run(
    small: Any, random_samples: Samples, settings: dict[str, Any], wanted: list[float]
) -> None:
    learner = learner_of(small, lr=1e-2, **settings)
    learner.set_total_updates(5)
    found = rates_of(learner, random_samples([20]), 6)
    assert found == pytest.approx([1e-2 * share for share in wanted], abs=1e-9)


def test_a_schedule_is_really_stepped(small: Any, random_samples: Samples) -> None:
    """At rate 0 nothing moves; before that, the first step is that of AdamW at its own rate."""
    learner, samples = learner_of(small, schedule="linear", lr=1e-2), random_samples(LENGTHS)
    learner.set_total_updates(2)
    plain = learner_of(small, lr=1e-2)
    for one in (learner, plain):
        one.update(samples, GRPO(), scale=1.0)
    moved = flat_weights(learner)
    assert torch.equal(moved, flat_weights(plain))
    learner.update(samples, GRPO(), scale=1.0)
    assert torch.equal(flat_weights(learner), moved)
    half = learner_of(small, lr=5e-3)
    half.update(samples, GRPO(), scale=1.0)
    start = flat_weights(learner_of(small))
    torch.testing.assert_close(flat_weights(half) - start, 0.5 * (moved - start))


def test_without_a_known_end_a_schedule_stays_up(small: Any, random_samples: Samples) -> None:
    learner = learner_of(small, lr=1e-2, schedule="cosine")
    assert rates_of(learner, random_samples([20]), 3) == pytest.approx([1e-2] * 3)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_resumed_schedule_goes_on_where_it_was(
    small: Any, random_samples: Samples, tmp_path: Path, schedule: str
) -> None:
    settings = {"schedule": schedule, "warmup_steps": 2, "minibatches": 3, "lr_end": 0.1}
    one, two = (learner_of(small, **settings) for _ in range(2))
    samples = random_samples(LENGTHS)
    for learner in (one, two):
        learner.set_total_updates(12)
    rates_of(one, samples, 2)
    one.save(tmp_path)
    two.load(tmp_path)
    assert rates_of(one, samples, 2) == rates_of(two, samples, 2)
    assert torch.equal(flat_weights(one), flat_weights(two))


@pytest.mark.parametrize(("warmup", "wanted"), [(0, 0.75), (2, 0.5)])
def test_steps_that_train_the_critic_alone_are_no_updates_of_the_schedule(
    random_samples: Samples, warmup: int, wanted: float
) -> None:
    settings = LearnerSettings(lr=1e-3, schedule="linear")
    algorithm = PPO(critic_warmup=warmup)
    agent = open_agent(ModelSettings(device="cpu"), settings, seed=0, algorithm=algorithm, steps=5)
    rates = rates_of(agent.learner, random_samples([20]), 2)
    assert rates == pytest.approx([1e-3, wanted * 1e-3])


# --- steps that cannot be taken --------------------------------------------------------------------


def test_the_run_ends_after_so_many_bad_steps_in_a_row(
    small: Any, random_samples: Samples, poisoned: list[Sample]
) -> None:
    learner = learner_of(small, max_bad_updates=3)
    good = random_samples([30])
    for samples in (poisoned, poisoned, good, poisoned, poisoned):
        learner.update(samples, GRPO(), scale=1.0)
    before = flat_weights(learner)
    with pytest.raises(RunError, match=r"^3 updates of the policy in a row .* lower learner.lr"):
        learner.update(poisoned, GRPO(), scale=1.0)
    assert torch.equal(flat_weights(learner), before)


def test_bad_steps_are_counted_over_minibatches_and_over_a_resume(
    small: Any, poisoned: list[Sample], tmp_path: Path
) -> None:
    one, two = (learner_of(small, max_bad_updates=3, epochs=2) for _ in range(2))
    one.update(poisoned, GRPO(), scale=1.0)
    one.save(tmp_path)
    two.load(tmp_path)
    with pytest.raises(RunError, match="3 updates of the policy in a row"):
        two.update(poisoned, GRPO(), scale=1.0)


def test_zero_allows_any_number_of_bad_steps(small: Any, poisoned: list[Sample]) -> None:
    learner = learner_of(small, max_bad_updates=0)
    skipped = [
        learner.update(poisoned, GRPO(), scale=1.0).metrics["skipped_steps"] for _ in range(12)
    ]
    assert skipped == [1] * 12


def test_a_checkpoint_of_before_bad_steps_were_counted_can_be_loaded(
    small: Any, random_samples: Samples, tmp_path: Path
) -> None:
    one, two = learner_of(small), learner_of(small)
    one.update(random_samples([20]), GRPO(), scale=1.0)
    one.save(tmp_path)
    state = torch.load(tmp_path / "optimizer.pt", weights_only=True)
    del state["bad_in_a_row"]
    torch.save(state, tmp_path / "optimizer.pt")
    two.load(tmp_path)
    assert torch.equal(flat_weights(one), flat_weights(two))
    assert two.num_updates == 1


def test_a_checkpoint_that_lacks_its_adapters_is_one_line(small: Any, tmp_path: Path) -> None:
    learner_of(small).save(tmp_path)
    with pytest.raises(RunError, match=r"^checkpoint .* cannot be read: it lacks 'trained'$"):
        learner_of(small, LORA).load(tmp_path)


# --- KL, gradients and the log ---------------------------------------------------------------------


@pytest.mark.parametrize("model", [ModelSettings(), LORA])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_kl_to_the_reference_is_that_of_the_sampling_log_probs(
    small: Any,
    random_samples: Samples,
    forward_logprobs: Callable[..., FloatArray],
    model: ModelSettings,
    temperature: float,
) -> None:
    """Whatever the weights are by now: the reference is the start, the other side what was sampled."""
    learner = learner_of(small, model, lr=1e-2, micro_tokens=100)
    learner.keep_reference()
    samples = [replace(s, temperature=temperature) for s in random_samples([40, 33, 36])]
    learner.update(samples, GRPO(), scale=1.0)
    hand = {
        "k1": lambda d: d,
        "k2": lambda d: d**2 / 2,
        "k3": lambda d: np.minimum(np.exp(-d) + d - 1, 10.0),
        "abs": np.abs,
        "k1+": lambda d: d,
    }
    for estimator, formula in hand.items():
        found = learner.kl_to_reference(samples, estimator)  # type: ignore[arg-type]
        for sample, values in zip(samples, found, strict=True):
            reference = forward_logprobs(
                small[0], sample.ids_T[:1], sample.ids_T[1:], temperature=temperature
            )
            mask = sample.loss_mask_T
            gap = sample.old_logprobs_T[mask] - reference[mask[1:]]
            assert values == pytest.approx(formula(gap), rel=1e-3, abs=1e-4), estimator


def test_the_gradient_as_a_vector_is_the_gradient(small: Any, random_samples: Samples) -> None:
    learner, samples = learner_of(small), random_samples(LENGTHS)
    before = flat_weights(learner)
    vector = learner.gradient(samples, GRPO()).values.numpy()
    assert all(p.grad is None for p in learner.network.parameters())
    assert torch.equal(flat_weights(learner), before)
    learner.gradients(samples, GRPO())
    assert np.array_equal(vector, flat_gradient(learner).numpy())


def test_the_gradient_of_adapters_is_as_long_as_they_are(
    small: Any, random_samples: Samples
) -> None:
    learner = learner_of(small, LORA)
    vector = learner.gradient(random_samples([20]), GRPO()).values.numpy()
    assert len(vector) == int(learner.describe()["trained"].replace(",", ""))


@pytest.mark.parametrize(
    "aggregation",
    ["token_sum", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"],
)
def test_the_units_of_what_is_logged_do_not_depend_on_the_aggregation(
    small: Any, random_samples: Samples, aggregation: Any
) -> None:
    samples = random_samples([30, 30, 30])
    learner = learner_of(small, micro_tokens=60)
    learner.keep_reference()
    terms = {"kl_coefficient": 0.1}
    wanted = learner.gradients(samples, GRPO(**terms))
    found = learner.gradients(samples, GRPO(aggregation=aggregation, **terms))
    names = {"clip_fraction", "entropy", "sampler_mismatch", "kl"}
    assert {n: found[n] for n in names} == pytest.approx({n: wanted[n] for n in names}, rel=1e-5)
    factor = {"token_sum": 3.0, "seq_mean_token_sum": 1.0, "seq_mean_token_sum_norm": 1 / 1024}
    tokens = int(samples[0].loss_mask_T.sum())
    scale = factor[aggregation] * tokens if aggregation in factor else 1.0
    for name in ("loss", "policy_loss"):
        assert found[name] == pytest.approx(wanted[name] * scale, rel=1e-4), name


# --- what an update does not compute ---------------------------------------------------------------


def test_an_update_reads_each_token_once_and_the_reference_only_for_kl(
    small: Any, random_samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old log-probs come with the samples, so no pass is spent on them."""
    learner, samples = learner_of(small, micro_tokens=100), random_samples(LENGTHS)
    learner.keep_reference()
    learner.update(samples, GRPO(), scale=1.0)
    assert learner.forward.tokens_run == sum(LENGTHS)
    kl = learner._reference_logp
    referred: list[int] = []
    monkeypatch.setattr(
        learner, "_reference_logp", lambda batch: (referred.append(batch.ids.numel()), kl(batch))[1]
    )
    learner.update(samples, GRPO(), scale=1.0)
    assert referred == []
    learner.update(samples, GRPO(kl_coefficient=0.1), scale=1.0)
    assert learner.forward.tokens_run == 3 * sum(LENGTHS)
    assert sum(referred) == sum(LENGTHS)


def test_the_first_step_on_fresh_samples_has_ratio_one(small: Any, random_samples: Samples) -> None:
    """The sampler's log-probs are the learner's to rounding, so nothing is clipped."""
    learner = learner_of(small)
    samples = on_policy(learner, random_samples(LENGTHS))
    metrics = learner.update(samples, GRPO(), scale=1.0).metrics
    assert metrics["sampler_mismatch"] < 1e-5
    assert metrics["clip_fraction"] == 0.0
    advantages = np.concatenate([s.advantages_T[s.loss_mask_T] for s in samples])
    assert metrics["policy_loss"] == pytest.approx(-advantages.mean(), abs=1e-5)


@pytest.mark.parametrize("minibatches", [1, 3])
def test_the_share_of_padding_is_reported(
    small: Any, random_samples: Samples, minibatches: int
) -> None:
    samples = random_samples([40] * 5 + [38])
    learner = learner_of(small, micro_tokens=10_000, minibatches=minibatches)
    assert learner.update(samples, GRPO(), scale=1.0).metrics["padding"] == 0.0
    learner.forward.is_packed = False
    shares = {1: 2 / 240, 3: 2 / 80 / 3}
    found = learner.update(samples, GRPO(), scale=1.0).metrics["padding"]
    assert found == pytest.approx(shares[minibatches])


def test_a_checkpoint_of_the_plain_optimiser_is_taken_over(
    small: Any, random_samples: Samples, tmp_path: Path
) -> None:
    one, two = learner_of(small), learner_of(small)
    trained = [p for group in one.optimiser.param_groups for p in group["params"]]
    one.optimiser = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    one.update(random_samples(LENGTHS), GRPO(), scale=1.0)
    one.save(tmp_path)
    two.load(tmp_path)
    for learner in (one, two):
        learner.update(random_samples(LENGTHS, seed=1), GRPO(), scale=1.0)
    torch.testing.assert_close(flat_weights(one), flat_weights(two))


def test_the_precision_of_the_model_is_that_of_an_update(
    small: Any, random_samples: Samples
) -> None:
    """bfloat16 products on a CPU are asked for: near the float32 result, and not it."""
    samples = random_samples(LENGTHS)
    plain = learner_of(small).gradients(samples, Supervised())["loss"]
    low = learner_of(small, ModelSettings(precision="bfloat16")).gradients(samples, Supervised())
    assert low["loss"] == pytest.approx(plain, rel=0.02)
    assert low["loss"] != pytest.approx(plain, rel=1e-6)
