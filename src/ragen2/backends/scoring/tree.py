"""Score many continuations under many contexts in few forward passes, without copying a cache.

A row of a forward pass is one context followed by a tree of continuations. A mask lets every token
of the tree see its context and the tokens before it on its own path, so all continuations run
side by side, and what they share is computed once. Contexts whose continuations need several trees keep
their keys and values between the passes; nothing else is kept.

B rows, C tokens of the longest context, W tokens of the widest tree, D hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from ragen2.backends.decoder import PositionLookup
from ragen2.backends.learner.logprobs import SplitModel, target_logprobs
from ragen2.progress import counter
from ragen2.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Tokens in depth-first order, so that what stands below a node is one run of tokens after it.

    Node j is node i itself or before it on its path exactly when ``j <= i < end_W[j]``.
    """

    ids_W: IntArray
    parent_W: IntArray
    """Node just before on the path; -1 where that is the last token of the context."""
    depth_W: IntArray
    end_W: IntArray
    paths: tuple[IntArray, ...]
    """The nodes of each continuation, from its first token to its last."""
    members: tuple[int, ...]
    """Which continuation each path is: its index in the list the trees were grown from."""

    def __len__(self) -> int:
        return len(self.ids_W)


def grow_trees(continuations: Sequence[IntArray], width: int) -> list[TokenTree]:
    """Trees that hold every continuation once, each of at most ``width`` tokens.

    A continuation longer than ``width`` makes its tree as wide as it needs. Neighbours in
    lexicographic order share most, so they go into one tree; trees are about equally wide.
    """
    order = sorted(range(len(continuations)), key=lambda i: continuations[i].tolist())
    shared = [0] + [
        shared_length(continuations[before], continuations[after])
        for before, after in pairwise(order)
    ]
    total = sum(len(continuations[i]) - known for i, known in zip(order, shared, strict=True))
    limit = _even_limit(total, width, max(len(ids) for ids in continuations))
    trees: list[TokenTree] = []
    chosen: list[int] = []
    size = 0
    for index, known in zip(order, shared, strict=True):
        if chosen and size + len(continuations[index]) - known > limit:
            trees.append(_grow(chosen, continuations))
            chosen, size = [], 0
        size += len(continuations[index]) - (known if chosen else 0)
        chosen.append(index)
    return [*trees, _grow(chosen, continuations)]


def shared_length(one: IntArray, other: IntArray) -> int:
    """Tokens that both begin with."""
    most = min(len(one), len(other))
    differs = np.flatnonzero(one[:most] != other[:most])
    return int(differs[0]) if len(differs) else most


def _even_limit(total: int, width: int, longest: int) -> int:
    """Largest size of a tree, so that the fewest trees are needed and none is nearly empty."""
    least = -(-total // max(1, -(-total // width)))
    return min(width, least + longest)


def _grow(order: Sequence[int], continuations: Sequence[IntArray]) -> TokenTree:
    ids: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: list[IntArray] = []
    path: list[int] = []
    last = np.empty(0, dtype=np.int64)
    for index in order:
        tokens = continuations[index]
        known = shared_length(last, tokens)
        for node in path[known:]:
            ends[node] = len(ids)
        path = path[:known]
        for depth in range(known, len(tokens)):
            parents.append(path[-1] if path else -1)
            path.append(len(ids))
            ids.append(int(tokens[depth]))
            depths.append(depth)
            ends.append(0)
        paths.append(np.array(path, dtype=np.int64))
        last = tokens
    for node in path:
        ends[node] = len(ids)
    return TokenTree(
        ids_W=np.array(ids, dtype=np.int64),
        parent_W=np.array(parents, dtype=np.int64),
        depth_W=np.array(depths, dtype=np.int64),
        end_W=np.array(ends, dtype=np.int64),
        paths=tuple(paths),
        members=tuple(order),
    )


TREE_WIDTH = {"cpu": 128, "cuda": 2048}
"""Most tokens of a tree. Wider trees need fewer passes, which is what a GPU waits for; but every token
is compared with the whole tree before the mask is laid on, which is what a CPU waits for."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoringJob:
    """A context with the distinct continuations to be scored after it."""

    context_ids_T: IntArray
    continuations: tuple[IntArray, ...]


@dataclass(slots=True, eq=False)
class _ContextRows:
    """The contexts of the rows: their ids and, once they have run, what later trees need of them."""

    ids_BC: torch.Tensor
    length_B: torch.Tensor
    places: PositionLookup
    cache: Cache | None
    last_BD: torch.Tensor | None = None
    """Hidden state of the last context token, which predicts every first token."""


def score_by_trees(
    split_model: SplitModel,
    jobs: Sequence[ScoringJob],
    temperature: float,
    max_tokens: int,
    *,
    width: int | None = None,
) -> list[list[FloatArray]]:
    """Log-prob of every token of every continuation, job by job.

    A pass has at most ``max_tokens`` padded tokens, and the contexts kept between passes are no
    more than that; only a single context with its longest continuation may be longer. Trees are at
    most ``width`` wide, by default what suits the device.
    """
    widest = width or TREE_WIDTH.get(split_model.device.type, max(TREE_WIDTH.values()))
    forest = _forest([job.continuations for job in jobs], max(1, min(widest, max_tokens // 2)))
    batches = list(_batches(jobs, forest, max_tokens))
    count = counter("scoring", sum(max(len(forest[one]) for one in batch) for batch in batches))
    passes = []
    for batch in batches:
        for piece in _run_batch(split_model, jobs, forest, batch, temperature):
            passes.append(piece)
            count(1)
    found: list[list[FloatArray]] = [[np.empty(0)] * len(job.continuations) for job in jobs]
    for rows, trees, logp in passes:  # copied off the device last, so that no pass waits for it
        values = logp.double().cpu().numpy()
        ends = np.cumsum([len(tree) for tree in trees])[:-1]
        for row, tree, nodes in zip(rows, trees, np.split(values, ends), strict=True):
            for member, path in zip(tree.members, tree.paths, strict=True):
                found[row][member] = nodes[path]
    return found


def _batches(
    jobs: Sequence[ScoringJob], forest: Sequence[Sequence[TokenTree]], max_tokens: int
) -> Iterator[list[int]]:
    """Contexts that run together; neighbours in length need the least padding."""
    batch: list[int] = []
    widest = 0
    for index in sorted(range(len(jobs)), key=lambda i: len(jobs[i].context_ids_T)):
        own = max(len(tree) for tree in forest[index])
        width = len(jobs[index].context_ids_T) + max(widest, own)
        if batch and (len(batch) + 1) * width > max_tokens:
            yield batch
            batch, widest = [], 0
        batch.append(index)
        widest = max(widest, own)
    if batch:
        yield batch


def _run_batch(
    split_model: SplitModel,
    jobs: Sequence[ScoringJob],
    forest: Sequence[Sequence[TokenTree]],
    batch: Sequence[int],
    temperature: float,
) -> Iterator[tuple[list[int], list[TokenTree], torch.Tensor]]:
    """Pass by pass: the jobs in it, their trees, and the log-probs of all nodes, joined."""
    most = max(len(forest[index]) for index in batch)
    contexts = _pad_contexts(split_model, [jobs[index].context_ids_T for index in batch], most > 1)
    for turn in range(most):
        trees = [forest[index][turn] if turn < len(forest[index]) else None for index in batch]
        logp = _run_trees(split_model, contexts, trees, temperature)
        rows = [index for index, tree in zip(batch, trees, strict=True) if tree is not None]
        yield rows, [tree for tree in trees if tree is not None], logp


def _forest(members: Sequence[tuple[IntArray, ...]], width: int) -> list[list[TokenTree]]:
    """The trees of each row; rows with the same continuations, the usual case, share them."""
    grown: dict[tuple[int, ...], list[TokenTree]] = {}
    forest = []
    for continuations in members:
        key = tuple(id(ids) for ids in continuations)
        if key not in grown:
            grown[key] = grow_trees(continuations, width)
        forest.append(grown[key])
    return forest


def _pad_contexts(
    split_model: SplitModel, contexts: Sequence[IntArray], is_kept: bool
) -> _ContextRows:
    width = max(len(ids) for ids in contexts)
    ids_BC = np.zeros((len(contexts), width), dtype=np.int64)
    for row, ids in enumerate(contexts):
        ids_BC[row, : len(ids)] = ids
    layer = partial(_ContextLayer, width)
    return _ContextRows(
        ids_BC=torch.from_numpy(ids_BC).to(split_model.device),
        length_B=torch.tensor([len(ids) for ids in contexts], device=split_model.device),
        places=split_model.places(contexts),
        cache=Cache(layer_class_to_replicate=layer) if is_kept else None,
    )


class _ContextLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped
    """Keeps the keys and values of the first tokens it is given; later ones are seen and dropped."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values that the new tokens may look at."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys = key_states[..., : self.length, :].clone()
            self.values = value_states[..., : self.length, :].clone()
            return key_states, value_states
        return (
            torch.cat([self.keys, key_states], dim=-2),
            torch.cat([self.values, value_states], dim=-2),
        )


def _run_trees(
    split_model: SplitModel,
    contexts: _ContextRows,
    trees: Sequence[TokenTree | None],
    temperature: float,
) -> torch.Tensor:
    """Log-prob of every node of the rows' trees, joined; the first call also runs the contexts."""
    width = max(len(tree) for tree in trees if tree is not None)
    plan = np.zeros((4, len(trees), width), dtype=np.int64)
    plan[3] = np.arange(1, width + 1)  # padding sees itself, since seeing nothing is not a number
    is_node = np.zeros((len(trees), width), dtype=np.bool_)
    for row, tree in enumerate(trees):
        if tree is not None:
            plan[:, row, : len(tree)] = tree.ids_W, tree.parent_W, tree.depth_W, tree.end_W
            is_node[row, : len(tree)] = True
    ids, parent, depth, end = torch.from_numpy(plan).to(split_model.device)
    before, head = _forward(split_model, contexts, ids, depth, end)
    row_N, node_N = torch.from_numpy(np.stack(np.nonzero(is_node))).to(split_model.device)
    predicting = before[row_N, parent[row_N, node_N] + 1]
    return target_logprobs(predicting, ids[row_N, node_N], head, temperature)


def _forward(
    split_model: SplitModel,
    contexts: _ContextRows,
    ids: torch.Tensor,
    depth: torch.Tensor,
    end: torch.Tensor,
) -> tuple[torch.Tensor, Any]:
    """Hidden states after the contexts and after each node, and the head for them."""
    length = contexts.length_B[:, None]
    positions = length + depth
    mask = _tree_mask(contexts, end)
    if contexts.last_BD is None:
        span = torch.arange(contexts.ids_BC.shape[1], device=ids.device).expand_as(contexts.ids_BC)
        ids = torch.cat([contexts.ids_BC, ids], dim=1)
        positions = torch.cat([span.minimum(length - 1), positions], dim=1)
        mask = torch.cat([_context_mask(contexts, end.shape[1]), mask], dim=1)
    hidden, head, _ = split_model(
        ids,
        _additive(mask, split_model)[:, None],
        position_ids=contexts.places(positions),
        past_key_values=contexts.cache,
        use_cache=contexts.cache is not None,
    )
    if contexts.last_BD is None:
        rows = torch.arange(len(ids), device=ids.device)
        contexts.last_BD = hidden[rows, contexts.length_B - 1]
    return torch.cat([contexts.last_BD[:, None], hidden[:, -end.shape[1] :]], dim=1), head


def _tree_mask(contexts: _ContextRows, end: torch.Tensor) -> torch.Tensor:
    """What the nodes see: the real tokens of their context, themselves and the nodes above them."""
    rows, width = end.shape
    column = torch.arange(contexts.ids_BC.shape[1], device=end.device)
    is_real = column[None] < contexts.length_B[:, None]
    node = torch.arange(width, device=end.device)
    sees = (node[None, None] <= node[None, :, None]) & (node[None, :, None] < end[:, None])
    return torch.cat([is_real[:, None].expand(rows, width, len(column)), sees], dim=2)


def _context_mask(contexts: _ContextRows, width: int) -> torch.Tensor:
    """What context tokens see: those up to themselves, never the tree."""
    rows, length = contexts.ids_BC.shape
    causal = torch.ones((length, length), dtype=torch.bool, device=contexts.ids_BC.device).tril()
    unseen = torch.zeros((rows, length, width), dtype=torch.bool, device=causal.device)
    return torch.cat([causal.expand(rows, length, length), unseen], dim=2)


def _additive(mask: torch.Tensor, split_model: SplitModel) -> torch.Tensor:
    """The mask as numbers to add, which every attention takes; in the precision it computes in."""
    kind = split_model.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else split_model.dtype
    closed = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, closed)
