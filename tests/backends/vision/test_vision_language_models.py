"""Models that read images: our way to read gives the numbers of their own code, for three architectures."""

from __future__ import annotations

import copy
import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vision_models import FOLDERS

from ragen2.backends.agent import open_model
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.learner.microbatches import Microbatch
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.scoring.pairs import honours_trees, score_by_copies
from ragen2.backends.scoring.tree import ScoringJob, score_by_trees
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.backends.vision import embedding as embedding_module
from ragen2.backends.vision.embedding import FIRST_IMAGE_ID, ImageEmbedder
from ragen2.envs import make
from ragen2.errors import ModelError
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.context import refuse_blind
from ragen2.trainer.update import flatten, samples_of
from ragen2.trainer.warmstart import Supervised
from ragen2.types import Image, Message, Sample

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, stop=())
ENV = make("FrozenLake", observation="image", hole_ratio=0.2)
LAKES = [Image(ENV.start(seed, 0).shown_image) for seed in range(6)]


@pytest.fixture(scope="session", params=sorted(FOLDERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FOLDERS[request.param](tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="session")
def opened(folder: Path) -> tuple[Any, TemplateTokenizer]:
    return open_model(str(folder), device="cpu")


@pytest.fixture
def network(opened: tuple[Any, TemplateTokenizer]) -> Any:
    return copy.deepcopy(opened[0])


@pytest.fixture
def tokenizer(opened: tuple[Any, TemplateTokenizer]) -> TemplateTokenizer:
    return opened[1]


def dialogue(*images: Image) -> list[Message]:
    """One image a turn, words around them."""
    messages = [Message("system", "rules")]
    for turn, image in enumerate(images):
        messages.append(Message("user", f"Actions left {turn}", (image,)))
        if turn + 1 < len(images):
            messages.append(Message("assistant", "so down"))
    return messages


def ids_of(tokenizer: TemplateTokenizer, *images: Image) -> np.ndarray:
    return np.array(tokenizer.start(dialogue(*images)), dtype=np.int64)


def own_logits(
    network: Any, tokenizer: TemplateTokenizer, ids_T: np.ndarray, images: Any
) -> torch.Tensor:
    """Logits after every token by the model's own code, from pixels."""
    parts = [tokenizer.images.pixels([image]) for image in images]
    pixels = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if network.config.model_type == "idefics3":  # one conversation with all its images
        pixels = {name: value.flatten(0, 1)[None] for name, value in pixels.items()}
    ids = torch.as_tensor(ids_T)[None]
    kinds = {"mm_token_type_ids": (ids == tokenizer.images.token_id).long()}
    takes = inspect.signature(network.forward).parameters
    more = kinds if "mm_token_type_ids" in takes else {}
    pixels = {name: value for name, value in pixels.items() if name in takes}
    mask = torch.ones_like(ids)
    return network(input_ids=ids, attention_mask=mask, use_cache=False, **pixels, **more).logits[0]


def own_logp(network: Any, tokenizer: Any, ids_T: np.ndarray, images: Any) -> torch.Tensor:
    """Log-prob of each token after the first."""
    logp = own_logits(network, tokenizer, ids_T, images)[:-1].double().log_softmax(-1)
    return logp.gather(-1, torch.as_tensor(ids_T[1:])[:, None])[:, 0]


def seen_sample(tokenizer: TemplateTokenizer, *images: Image) -> Sample:
    """A sample whose last eight tokens were written."""
    ids_T = np.concatenate([ids_of(tokenizer, *images), np.arange(40, 48)])
    mask = np.zeros(len(ids_T), dtype=np.bool_)
    mask[-8:] = True
    return Sample(ids_T, mask, np.zeros(len(ids_T)), mask.astype(float), images=images)


def learner_of(network: Any, tokenizer: Any, vision: str = "trained", **more: Any) -> TorchLearner:
    settings = LearnerSettings(lr=1e-3, **more.pop("learner", {}))
    return TorchLearner(network, tokenizer, ModelSettings(vision=vision, **more), settings, seed=0)


# --- tokens and positions --------------------------------------------------------------------------


def test_tokens_are_those_of_the_models_own_processor(tokenizer: TemplateTokenizer) -> None:
    messages = dialogue(*LAKES[:3])
    found = tokenizer.images.processor(
        text=[tokenizer.render(messages)],
        images=[image.pixels for image in LAKES[:3]],
        add_special_tokens=False,
    )
    assert tokenizer.start(messages) == list(found["input_ids"][0])


def test_images_of_other_sizes_have_their_own_number_of_tokens(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    wide = Image(np.zeros((56, 112, 3), np.uint8))
    encodings = ImageEmbedder(network, tokenizer.images).encoder
    for image in (LAKES[0], wide):
        assert [len(rows) for rows in encodings([image])] == [tokenizer.images.num_tokens(image)]
    if network.config.model_type == "qwen2_5_vl":
        assert tokenizer.images.num_tokens(LAKES[0]) == 16  # one for each cell
        assert tokenizer.images.num_tokens(wide) == 8


def test_a_bridge_carries_the_image_of_the_next_turn(tokenizer: TemplateTokenizer) -> None:
    before = [Message("user", "go", (LAKES[0],))]
    user = Message("user", "on", (LAKES[1],))
    reply = tokenizer.encode("so down")
    joined = [*tokenizer.start(before), *reply, *tokenizer.bridge(user, after_eos=False)]
    whole = tokenizer.start([*before, Message("assistant", "so down"), user])
    assert joined == whole


def test_positions_are_those_of_the_model(network: Any, tokenizer: TemplateTokenizer) -> None:
    if network.config.model_type != "qwen2_5_vl":
        pytest.skip("positions of this model are plain indices")
    images = (LAKES[0], Image(np.zeros((56, 112, 3), np.uint8)), LAKES[2])
    ids_T = ids_of(tokenizer, *images)
    grid = torch.cat([tokenizer.images.pixels([image])["image_grid_thw"] for image in images])
    ids = torch.as_tensor(ids_T)[None]
    kinds = (ids == tokenizer.images.token_id).int()
    wanted, delta = network.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grid)
    embedder = ImageEmbedder(network, tokenizer.images)
    placed = embedder.with_image_ids(ids_T, images)
    assert np.array_equal(embedder.positions(placed), wanted[:, 0].numpy())
    later = embedder.position_lookup([placed], torch.device("cpu"))(
        torch.tensor([[len(ids_T) + 2]])
    )
    assert later.tolist() == [[[len(ids_T) + 2 + int(delta[0, 0])]]] * 3


def test_equal_rows_with_other_images_are_placed_apart(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    embedder = ImageEmbedder(network, tokenizer.images)
    ids_T = ids_of(tokenizer, LAKES[0])
    one, other = (
        embedder.with_image_ids(ids_T, LAKES[:1]),
        embedder.with_image_ids(ids_T, LAKES[1:2]),
    )
    assert np.array_equal(ids_T == tokenizer.images.token_id, one != other)
    assert ((one >= FIRST_IMAGE_ID) == (ids_T == tokenizer.images.token_id)).all()
    assert np.array_equal(one, embedder.with_image_ids(ids_T, (Image(LAKES[0].pixels.copy()),)))
    with pytest.raises(ValueError, match="2 images have"):
        embedder.with_image_ids(ids_T, LAKES[:2])


# --- sampling --------------------------------------------------------------------------------------


def asked(tokenizer: TemplateTokenizer, *images: Image, key: Any = (0,)) -> Request:
    return Request(ids_of(tokenizer, *images), key, images)


def test_greedy_writing_is_that_of_the_models_own_code(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    requests = [asked(tokenizer, *images) for images in (LAKES[:1], LAKES[1:3], LAKES[2:3])]
    for request, completion in zip(
        requests, HFPolicy(network, tokenizer).sample(requests, GREEDY), strict=True
    ):
        ids = request.prompt_ids_T
        for token, logp in zip(completion.ids_T, completion.logprobs_T, strict=True):
            with torch.no_grad():
                last = own_logits(network, tokenizer, ids, request.images)[-1].double()
            assert float(last.log_softmax(-1)[token]) == pytest.approx(logp, abs=2e-3)
            last[tokenizer.images.token_id] = -torch.inf
            assert int(last.argmax()) == token
            ids = np.append(ids, token)


def test_a_next_turn_is_read_from_the_cache_as_from_the_start(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    params = SamplingParams(max_tokens=5, stop=())
    kept, fresh = (HFPolicy(network, tokenizer) for _ in range(2))
    first = [asked(tokenizer, image, key=(n,)) for n, image in enumerate(LAKES[:3])]
    written = kept.sample(first, params)
    user = Message("user", "on", (LAKES[4],))
    second = [
        Request(
            np.concatenate([one.prompt_ids_T, done.ids_T, tokenizer.bridge(user, after_eos=False)]),
            (n, "next"),
            (*one.images, LAKES[4]),
        )
        for n, (one, done) in enumerate(zip(first, written, strict=True))
    ]
    sizes = []
    original = kept.split_model.model_inputs
    kept.split_model.model_inputs = lambda ids: (sizes.append(ids.shape[1]), original(ids))[1]
    continued, again = kept.sample(second, params), fresh.sample(second, params)
    assert sizes[0] < len(second[0].prompt_ids_T) / 2  # only what is new was read
    for one, other in zip(continued, again, strict=True):
        assert one.ids_T.tolist() == other.ids_T.tolist()
        assert one.logprobs_T == pytest.approx(other.logprobs_T, abs=1e-4)


def test_a_cache_of_other_images_is_not_continued(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    policy = HFPolicy(network, tokenizer)
    params = SamplingParams(max_tokens=3, stop=())
    (done,) = policy.sample([asked(tokenizer, LAKES[0])], params)
    ids = np.concatenate([ids_of(tokenizer, LAKES[0]), done.ids_T, tokenizer.encode("go")])
    request = Request(ids, (1,), (LAKES[1],))
    (found,) = policy.sample([request], params)
    (wanted,) = HFPolicy(network, tokenizer).sample([request], params)
    assert found.logprobs_T == pytest.approx(wanted.logprobs_T, abs=1e-5)


def test_an_image_token_is_never_written(network: Any, tokenizer: TemplateTokenizer) -> None:
    head = network.get_output_embeddings()
    with torch.no_grad():
        head.weight.zero_()
    network.lm_head = torch.nn.Linear(*reversed(head.weight.shape))
    with torch.no_grad():
        network.lm_head.weight.zero_()
        network.lm_head.bias.zero_()
        network.lm_head.bias[tokenizer.images.token_id] = 50.0
        network.lm_head.bias[45] = 1.0
    policy = HFPolicy(network, tokenizer)
    requests = [asked(tokenizer, LAKES[0], key=(n,)) for n in range(4)]
    for params in (GREEDY, SamplingParams(max_tokens=20, stop=())):
        for completion in policy.sample(requests, params):
            assert tokenizer.images.token_id not in completion.ids_T
            # What a learner can reproduce: the log-prob among all tokens, not among those allowed.
            assert completion.logprobs_T.max() < -40.0


def test_members_of_a_group_share_the_reading_of_their_prompt(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    policy = HFPolicy(network, tokenizer)
    rows = []
    original = policy.split_model.model_inputs
    policy.split_model.model_inputs = lambda ids: (rows.append(len(ids)), original(ids))[1]
    requests = [asked(tokenizer, LAKES[n // 4], key=(n,)) for n in range(8)]
    policy.sample(requests, SamplingParams(max_tokens=2, stop=()))
    assert rows[0] == 2
    assert policy.split_model.embedder.encoder.num_encoded == 2


# --- scoring ---------------------------------------------------------------------------------------


def test_scores_are_those_of_the_models_own_code(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    words = [np.array(ids) for ids in ([41, 42, 43], [41, 50], [44])]
    contexts = [LAKES[:1], LAKES[1:2], LAKES[2:4]]
    pairs = [
        Pair(ids_of(tokenizer, *images), word, tuple(images))
        for images in contexts
        for word in words
    ]
    scores = HFPolicy(network, tokenizer).score(pairs)
    for pair, found in zip(pairs, scores, strict=True):
        whole = np.concatenate([pair.context_ids_T, pair.continuation_ids_T])
        with torch.no_grad():
            wanted = own_logp(network, tokenizer, whole, pair.images)
        assert found == pytest.approx(wanted[-len(found) :].numpy(), abs=2e-3)


def test_trees_and_copies_agree_about_images(network: Any, tokenizer: TemplateTokenizer) -> None:
    policy = HFPolicy(network, tokenizer)
    words = tuple(np.array(ids) for ids in ([41, 42, 43], [41, 50], [44], [41, 42, 60]))
    jobs = [
        ScoringJob(policy.split_model.with_image_ids(ids_of(tokenizer, *images), images), words)
        for images in (LAKES[:1], LAKES[1:3])
    ]
    assert honours_trees(policy.split_model)
    with torch.no_grad():
        copies = score_by_copies(policy.split_model, jobs, 1.0, 4096)
        for width in (None, 4):
            trees = score_by_trees(policy.split_model, jobs, 1.0, 4096, width=width)
            for one, other in zip(copies, trees, strict=True):
                for mine, theirs in zip(one, other, strict=True):
                    assert mine == pytest.approx(theirs, abs=1e-3)


def test_each_image_is_encoded_once(network: Any, tokenizer: TemplateTokenizer) -> None:
    policy = HFPolicy(network, tokenizer)
    policy.sample([asked(tokenizer, image) for image in LAKES[:3]], GREEDY)
    pairs = [
        Pair(ids_of(tokenizer, image), np.array([word]), (image,))
        for image in LAKES[:4]
        for word in (41, 42)
    ]
    policy.score(pairs)
    assert policy.split_model.embedder.encoder.num_encoded == 4
    with torch.no_grad():
        next(iter(policy.split_model.embedder.encoder.tower)).mul_(1.5)
    policy.score(pairs[:2])
    assert policy.split_model.embedder.encoder.num_encoded == 5  # other weights, other rows


def test_encodings_are_kept_within_a_limit(
    network: Any, tokenizer: TemplateTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragen2.backends.vision import embedding as module

    encodings = ImageEmbedder(network, tokenizer.images).encoder
    one = encodings(LAKES[:1])[0].nbytes
    monkeypatch.setattr(module, "KEPT_BYTES", 2 * one)
    found = encodings(LAKES)
    assert len(found) == 6
    assert len(encodings._kept) == 2
    encodings(LAKES[-2:])
    assert encodings.num_encoded == 6
    encodings(LAKES[:1])
    assert encodings.num_encoded == 7


def test_images_are_encoded_in_parts_of_a_bounded_size(
    network: Any, tokenizer: TemplateTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragen2.backends.vision import embedding as module

    whole = ImageEmbedder(network, tokenizer.images).encoder(LAKES)
    size = sum(value.numel() for value in tokenizer.images.pixels([LAKES[0]]).values())
    monkeypatch.setattr(module, "VALUES_AT_ONCE", 2 * size)
    calls = []
    encodings = ImageEmbedder(network, tokenizer.images).encoder
    original = encodings._features
    encodings._features = lambda pixels: (calls.append(1), original(pixels))[1]
    with torch.no_grad():
        for one, other in zip(whole, encodings(LAKES), strict=True):
            assert torch.allclose(one, other, atol=1e-5)
    assert len(calls) == 3


# --- learning --------------------------------------------------------------------------------------


def wanted_gradients(
    network: Any, tokenizer: Any, samples: list[Sample]
) -> dict[str, torch.Tensor]:
    """Of the mean negative log-prob of written tokens, by the model's own code."""
    network.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        logp = own_logp(network, tokenizer, sample.ids_T, sample.images)
        total = total - logp[torch.as_tensor(sample.loss_mask_T[1:])].sum()
    (total / sum(int(sample.loss_mask_T.sum()) for sample in samples)).backward()
    return {n: w.grad.clone() for n, w in network.named_parameters() if w.grad is not None}


@pytest.mark.parametrize("micro_tokens", [4096, 64])
def test_gradients_are_those_of_the_models_own_code(
    network: Any, tokenizer: TemplateTokenizer, micro_tokens: int
) -> None:
    samples = [seen_sample(tokenizer, *images) for images in (LAKES[:1], LAKES[:2], LAKES[3:5])]
    wanted = wanted_gradients(copy.deepcopy(network), tokenizer, samples)
    learner = learner_of(network, tokenizer, learner={"micro_tokens": micro_tokens})
    learner.gradients(samples, Supervised())
    found = {n: w.grad for n, w in network.named_parameters() if w.grad is not None}
    assert found.keys() == wanted.keys()
    assert any("vis" in name for name in found)
    for name, grad in wanted.items():
        assert torch.allclose(found[name], grad, atol=2e-4, rtol=2e-2), name


def test_a_frozen_tower_is_left_as_it_is(network: Any, tokenizer: TemplateTokenizer) -> None:
    samples = [seen_sample(tokenizer, image) for image in LAKES[:2]]
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    learner = learner_of(network, tokenizer, "frozen")
    tower = set(map(id, learner.embedder.encoder.tower))
    for _ in range(2):
        learner.update(samples, Supervised(), scale=1.0)
    for name, weight in network.named_parameters():
        is_same = torch.equal(weight, before[name])
        assert is_same == (id(weight) in tower), name
    assert learner.embedder.encoder.num_encoded == 2


def test_a_trained_tower_is_read_anew_after_each_update(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    samples = [seen_sample(tokenizer, image) for image in LAKES[:2]]
    learner = learner_of(network, tokenizer)
    policy = HFPolicy(learner.network, tokenizer, embedder=learner.embedder)
    pair = Pair(samples[0].ids_T[:-8], samples[0].ids_T[-8:], samples[0].images)
    before = policy.score([pair])[0]
    learner.update(samples, Supervised(), scale=1.0)
    after = policy.score([pair])[0]
    assert after.sum() > before.sum()
    with torch.no_grad():
        wanted = own_logp(learner.network, tokenizer, samples[0].ids_T, samples[0].images)[-8:]
    assert after == pytest.approx(wanted.numpy(), abs=2e-3)


def test_only_written_tokens_are_trained_on(network: Any, tokenizer: TemplateTokenizer) -> None:
    """The positions that carry loss are exactly the sampled tokens; no image token is among them."""
    policy = HFPolicy(network, tokenizer)
    tasks = [[Task(seed, luck) for luck in range(2)] for seed in range(2)]
    rollout = Rollout(max_tokens=6)
    groups = play(ENV.model_copy(update={"max_turns": 3}), policy, tasks, rollout, key=("t",))
    samples = list(flatten(samples_of(groups, 1.0)))
    learner = learner_of(network, tokenizer, "frozen")
    trajectories = [one for group in groups for one in group.trajectories]
    for sample, trajectory in zip(samples, trajectories, strict=True):
        (_, batch), *_ = learner.forward.batches([sample])
        written = np.concatenate([turn.completion.ids_T for turn in trajectory.turns])
        assert batch.targets_N.tolist() == written.tolist()
        assert tokenizer.images.token_id not in written
        placed = learner.split_model.with_image_ids(sample.ids_T, sample.images)
        assert (placed >= FIRST_IMAGE_ID).sum() == sum(
            map(tokenizer.images.num_tokens, sample.images)
        )
        assert not sample.loss_mask_T[placed >= FIRST_IMAGE_ID].any()
        before = batch.predictors_N + 1
        if batch.packing is not None:
            assert batch.ids[0][before].tolist() == written.tolist()


def test_loss_on_an_image_token_is_refused(network: Any, tokenizer: TemplateTokenizer) -> None:
    sample = seen_sample(tokenizer, LAKES[0])
    place = int(np.flatnonzero(sample.ids_T == tokenizer.images.token_id)[3])
    sample.loss_mask_T[place] = True
    with pytest.raises(ValueError, match="an image token carries loss"):
        learner_of(network, tokenizer).gradients([sample], Supervised())


def test_sampled_logprobs_are_what_the_learner_finds(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    learner = learner_of(network, tokenizer, "frozen")
    policy = HFPolicy(learner.network, tokenizer, embedder=learner.embedder)
    groups = play(ENV, policy, [[Task(0, 0), Task(0, 1)]], Rollout(max_tokens=8), key=("m",))
    samples = list(flatten(samples_of(groups, 1.0)))
    parts = learner.gradients(samples, Supervised())
    assert parts["sampler_mismatch"] < 1e-4


def test_samples_that_begin_alike_but_show_other_images_share_no_more_than_they_may(
    network: Any, tokenizer: TemplateTokenizer
) -> None:
    learner = learner_of(network, tokenizer, "frozen")
    twin = [seen_sample(tokenizer, LAKES[0], LAKES[2]), seen_sample(tokenizer, LAKES[0], LAKES[3])]
    ((_, batch),) = learner.forward.batches(twin)
    if batch.packing is not None and learner.forward.shares:
        (shared,) = {count for _, count in batch.packing.shared if count}
        assert shared == int(np.flatnonzero(
            learner.split_model.with_image_ids(twin[0].ids_T, twin[0].images)
            != learner.split_model.with_image_ids(twin[1].ids_T, twin[1].images)
        )[0])  # fmt: skip
    wanted = [own_logp(network, tokenizer, one.ids_T, one.images)[-8:] for one in twin]
    with learner.forward.ready():
        found, _ = learner.forward.logprobs(batch)
    rows = batch.targets_N.reshape(2, 8)
    assert rows.tolist() == [list(range(40, 48))] * 2
    order = next(rows for rows, _ in learner.forward.batches(twin))
    for place, row in enumerate(order):
        assert torch.allclose(found.reshape(2, 8)[place].double(), wanted[row], atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("vision", ["frozen", "trained"])
def test_adapters_go_where_the_tower_allows(
    network: Any, tokenizer: TemplateTokenizer, vision: str, precision: str
) -> None:
    pytest.importorskip("peft")
    learner = learner_of(network, tokenizer, vision, lora_rank=2, precision=precision)
    trained = [name for name, weight in learner.network.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    assert any("vis" in name for name in trained) == (vision == "trained")
    samples = [seen_sample(tokenizer, image) for image in LAKES[:2]]
    before = learner.gradients(samples, Supervised())["loss"]
    for _ in range(3):
        learner.update(samples, Supervised(), scale=1.0)
    assert learner.gradients(samples, Supervised())["loss"] < before


def test_the_reference_sees_images_too(network: Any, tokenizer: TemplateTokenizer) -> None:
    learner = learner_of(network, tokenizer)
    learner.keep_reference()
    sample = seen_sample(tokenizer, LAKES[0])
    logp = own_logp(network, tokenizer, sample.ids_T, sample.images)[-8:].detach().numpy()
    sample.old_logprobs_T[-8:] = logp
    (kl,) = learner.kl_to_reference([sample], "k3")
    assert kl == pytest.approx(np.zeros(8), abs=1e-4)
    learner.update([sample], Supervised(), scale=1.0)
    (kl,) = learner.kl_to_reference([sample], "k3")
    assert kl == pytest.approx(np.zeros(8), abs=1e-4)  # the reference stays what it was


def test_a_critic_values_what_was_seen(network: Any, tokenizer: TemplateTokenizer) -> None:
    import dataclasses

    from ragen2.algorithms import PPO

    learner = learner_of(network, tokenizer, "frozen")
    learner.start_critic(1e-2)
    samples = [seen_sample(tokenizer, image) for image in LAKES[:2]]
    ready = [
        dataclasses.replace(
            one,
            values_T=np.zeros(len(one.ids_T)),
            returns_T=np.where(one.loss_mask_T, target, 0.0),
        )
        for one, target in zip(samples, (1.0, -1.0), strict=True)
    ]
    losses = [learner.update_critic(ready, PPO().critic)["value_loss"] for _ in range(80)]
    assert losses[-1] < losses[0] / 2
    first, second = (values.mean() for values in learner.values(samples))
    assert first > second + 0.3  # nothing but the image tells them apart


@pytest.mark.parametrize("more", [{}, {"lora_rank": 2}], ids=["whole", "adapters"])
def test_a_saved_model_opens_with_its_images(
    network: Any, tokenizer: TemplateTokenizer, tmp_path: Path, more: dict[str, int]
) -> None:
    learner = learner_of(network, tokenizer, **more)
    learner.update([seen_sample(tokenizer, LAKES[0])], Supervised(), scale=1.0)
    learner.save(tmp_path)
    again, chat = open_model(str(tmp_path), device="cpu")
    assert chat.blind_because == ""
    pair = Pair(ids_of(chat, LAKES[1]), np.array([41, 42]), (LAKES[1],))
    assert np.array_equal(ids_of(chat, LAKES[1]), ids_of(tokenizer, LAKES[1]))
    wanted = HFPolicy(learner.network, tokenizer, embedder=learner.embedder).score([pair])[0]
    assert HFPolicy(again, chat).score([pair])[0] == pytest.approx(wanted, abs=1e-5)
    other = learner_of(copy.deepcopy(again), chat, **more)
    other.load(tmp_path)
    assert other.num_updates == learner.num_updates


# --- refusals --------------------------------------------------------------------------------------


def broken(folder: Path, tmp_path: Path, *missing: str) -> Path:
    copied = tmp_path / "broken"
    shutil.copytree(folder, copied)
    for name in missing:
        (copied / name).unlink()
    return copied


def test_a_model_without_an_image_processor_reads_text_and_says_why_not_images(
    folder: Path, tmp_path: Path
) -> None:
    path = broken(folder, tmp_path, "preprocessor_config.json", "processor_config.json")
    network, chat = open_model(str(path), device="cpu")
    policy = HFPolicy(network, chat)
    assert policy.sample([Request(np.array(chat.start([Message("user", "hi")])), (0,))], GREEDY)
    with pytest.raises(ModelError) as error:
        refuse_blind(ENV, policy)
    text = str(error.value)
    assert text.startswith(
        f"FrozenLake shows images, but model {path} cannot read them: its image "
    )
    assert "\n" not in text
    with pytest.raises(ModelError, match="a message holds an image, but model"):
        chat.start([Message("user", "hi", (LAKES[0],))])


def test_a_template_without_a_place_for_images_is_refused(folder: Path, tmp_path: Path) -> None:
    path = broken(folder, tmp_path)
    plain = "{% for message in messages %}{{ message['content'][-1]['text'] }}{% endfor %}"
    (path / "chat_template.jinja").write_text(plain)
    with pytest.raises(
        ModelError, match="the chat template of this model has 0 places for 2 images"
    ):
        open_model(str(path), device="cpu")


def test_a_model_that_is_read_otherwise_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were our positions or our embeddings others than the model's, opening it would say so."""
    original = ImageEmbedder.embed
    monkeypatch.setattr(ImageEmbedder, "embed", lambda self, ids: original(self, ids) * 1.1)
    with pytest.raises(
        ModelError, match="reads images in a way that is not known here: its logits"
    ):
        open_model(str(folder), device="cpu")


def test_wrong_positions_of_images_are_noticed(
    folder: Path, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if network.config.model_type != "qwen2_5_vl":
        pytest.skip("positions of this model are plain indices")

    def as_text(self: ImageEmbedder, ids_T: np.ndarray) -> np.ndarray:
        return np.tile(np.arange(len(ids_T)), (3, 1))

    monkeypatch.setattr(embedding_module.ImageEmbedder, "positions", as_text)
    with pytest.raises(ModelError, match="reads images in a way that is not known here"):
        open_model(str(folder), device="cpu")


def test_without_pillow_text_is_read_and_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    _, chat = open_model(str(folder), device="cpu")
    assert "images need pillow; pip install 'ragen2[vision]'" in chat.blind_because


def test_a_batch_of_text_has_no_positions_of_its_own(tokenizer: TemplateTokenizer) -> None:
    sample = Sample(np.array([1, 2, 3]), np.array([False, True, True]), np.zeros(3), np.zeros(3))
    batch = Microbatch.of([sample], np.ones(1), torch.device("cpu"), is_packed=True)
    assert batch.positions is None


def test_the_folder_names_what_transformers_needs(folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text())["vision_config"]
    assert (folder / "preprocessor_config.json").is_file()
