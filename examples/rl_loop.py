"""The whole method in one file: a small language model learns FrozenLake, and we watch its reasoning.

Read it from top to bottom. Sampling, scoring and learning are plain transformers and torch, without our
trainer. Three things come from ragen2: the environment (`make`), the filter that drops prompts without
reward signal (`select`), and the measure of how much a reasoning trace says about its prompt (`measure`).

Run it with `python examples/rl_loop.py`. It needs `ragen2[train,figures]` and some minutes of two CPU
cores, prints one line per step, and leaves a plot in rl_loop.png.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragen2.diagnostics import measure
from ragen2.envs import Env, Episode, make
from ragen2.filtering import select

MODEL = str(files("ragen2") / "models" / "ragen2-tiny")  # any chat model's folder or hub name
PROMPTS, GROUP_SIZE, MAX_TOKENS, ACTIONS_PER_TURN = 8, 8, 48, 2
LR, MINIBATCHES, CLIP_LOW, CLIP_HIGH = 3e-4, 4, 0.2, 0.28
KEPT_MASS = 0.9  # the filter keeps the prompts that hold 90% of the batch's reward variance
FORMAT_PENALTY = -0.1
FIRST_TRAINING_SEED = 100_000  # the maps of seeds below this are held out


# 1. The environment: a dialogue that opens with the rules and a map, and goes on with moves and news.


@dataclass
class Play:
    """One episode as the model meets it: a growing list of token ids, some of them its own."""

    episode: Episode
    ids: list[int]
    """The whole dialogue so far. Sampled ids are kept as they are, never tokenised again."""
    logp: list[float | None]
    """Log-prob at which each id was sampled; None where the id was given."""
    prompt: tuple[int, ...]
    """What the model read before its first reply."""
    trace: list[int] = field(default_factory=list)
    """Its first reasoning: the ids it wrote before `</think>`."""
    actions_taken: int = 0
    reward: float = 0.0
    solved: bool = False
    done: bool = False


def begin(tokenizer, env: Env, seed: int, luck: int) -> Play:
    """`seed` names the map; `luck` names the slips, so that members of a group share the map alone."""
    episode = env.start(seed, luck)
    form = f"Reply <think>why</think><answer>up to {ACTIONS_PER_TURN} actions joined by ||</answer>."
    chat = [
        {"role": "system", "content": f"{env.instruction}\n{form}"},
        {"role": "user", "content": f"{episode.observation}\nActions left {env.max_actions}"},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text + "<think>", add_special_tokens=False)
    return Play(episode, ids, [None] * len(ids), tuple(ids))


def act(tokenizer, env: Env, play: Play, written: list[int], logp: list[float]) -> None:
    """Take the actions of a reply, then put the next observation behind it."""
    if not play.trace:
        end_think = tokenizer.convert_tokens_to_ids("</think>")
        play.trace = written[: written.index(end_think)] if end_think in written else written
    play.ids += written
    play.logp += logp
    reply = re.fullmatch(r"(.*?)</think><answer>(.*?)</answer>", tokenizer.decode(written), re.DOTALL)
    if reply is None:
        play.reward += FORMAT_PENALTY
        play.done = True
        return
    for action in reply[2].split("||")[:ACTIONS_PER_TURN]:
        step = play.episode.step(action)
        play.actions_taken += 1
        play.reward += step.reward + (0.0 if step.valid else FORMAT_PENALTY)
        play.solved, play.done = step.solved, step.done
        if step.done:
            return
    left = env.max_actions - play.actions_taken
    news = f"{play.episode.observation}\nActions left {left}"
    text = f"<|im_end|>\n<|im_start|>user\n{news}<|im_end|>\n<|im_start|>assistant\n<think>"
    given = tokenizer.encode(text, add_special_tokens=False)
    play.ids += given
    play.logp += [None] * len(given)


# 2. Sampling: one batch per turn of all episodes that still run.


@torch.no_grad()
def sample(model, tokenizer, prompts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
    """One reply per prompt, up to `</answer>`: its ids, and the log-prob of each."""
    width, pad = max(map(len, prompts)), tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    end = tokenizer.convert_tokens_to_ids("</answer>")
    out = model.generate(
        ids,
        attention_mask=(ids != pad).long(),
        do_sample=True,
        top_k=0,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=end,
        return_dict_in_generate=True,
        output_logits=True,
    )
    written = out.sequences[:, width:]
    logp = token_logp(torch.stack(out.logits, dim=1), written)
    replies = []
    for row, row_logp in zip(written.tolist(), logp.tolist(), strict=True):
        length = row.index(end) + 1 if end in row else len(row)
        replies.append((row[:length], row_logp[:length]))
    return replies


def token_logp(logits, ids):
    """Log-prob of each id under the logits at its position."""
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def play_all(model, tokenizer, env: Env, tasks: Sequence[tuple[int, int]]) -> list[Play]:
    """Play every (seed, luck) to its end."""
    plays = [begin(tokenizer, env, seed, luck) for seed, luck in tasks]
    for _ in range(env.max_turns):
        going = [play for play in plays if not play.done]
        if not going:
            break
        replies = sample(model, tokenizer, [play.ids for play in going])
        for play, (written, logp) in zip(going, replies, strict=True):
            act(tokenizer, env, play, written, logp)
    return plays


# 3. Cross-scoring: how likely is each reasoning trace under every prompt of the batch?


def measure_reasoning(model, plays: Sequence[Play]) -> dict[str, float]:
    """Mutual information of reasoning and prompt, retrieval of the prompt, and entropy."""
    spoken = [play for play in plays if play.trace]
    prompts = list(dict.fromkeys(play.prompt for play in spoken))  # equal prompts are one column
    logp_NP = cross_score(model, prompts, [play.trace for play in spoken])
    lengths = [len(play.trace) for play in spoken]
    owners = [prompts.index(play.prompt) for play in spoken]
    return measure(logp_NP, lengths, owners, resamples=200)


@torch.no_grad()
def cross_score(model, prompts: Sequence[Sequence[int]], traces: Sequence[list[int]]) -> np.ndarray:
    """Summed log-prob of N traces under P prompts; the traces share each prompt's KV cache."""
    ids, is_trace = padded(traces)
    columns = []
    for prompt in prompts:
        read = model(torch.tensor([prompt]), use_cache=True)
        read.past_key_values.batch_repeat_interleave(len(traces))
        after = model(ids, past_key_values=read.past_key_values).logits
        first = read.logits[:, -1:].expand(len(traces), -1, -1)  # predicts a trace's first token
        logp = token_logp(torch.cat([first, after[:, :-1]], dim=1), ids)
        columns.append((logp * is_trace).sum(1))
    return torch.stack(columns, dim=1).double().numpy()


def padded(rows: Sequence[Sequence[float]], fill: float = 0):
    """Rows of different lengths as one tensor, and where it is filled with them."""
    width = max(map(len, rows))
    values = torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
    return values, torch.arange(width) < torch.tensor([[len(row)] for row in rows])


# 4. Learning: GRPO on the prompts that the filter keeps.


def advantages(rewards: Sequence[float]) -> np.ndarray:
    """How much better than its group each member did, in standard deviations (Shao et al. 2024)."""
    rewards_G = np.array(rewards)
    return (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + 1e-6)


def grpo_step(model, optimiser, groups: Sequence[Sequence[Play]], rng, scale: float) -> None:
    """One pass over all kept episodes: PPO's clipped loss, averaged over the sampled tokens."""
    samples = [
        (play, advantage)
        for group in groups
        for play, advantage in zip(group, advantages([p.reward for p in group]), strict=True)
    ]
    for part in np.array_split(rng.permutation(len(samples)), MINIBATCHES):
        chosen = [samples[index] for index in part]
        if not chosen:
            continue
        ids, is_token = padded([play.ids for play, _ in chosen])
        old = [[np.nan if logp is None else logp for logp in play.logp] for play, _ in chosen]
        old_logp = padded(old, np.nan)[0][:, 1:]
        is_sampled = ~old_logp.isnan()  # the loss is on what the model wrote, nothing else
        advantage = torch.tensor([[advantage] for _, advantage in chosen]).expand(old_logp.shape)
        logits = model(ids, attention_mask=is_token.long()).logits[:, :-1]
        logp = token_logp(logits, ids[:, 1:])[is_sampled]
        ratio = (logp - old_logp[is_sampled]).exp()
        gain = ratio * advantage[is_sampled]
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage[is_sampled]
        loss = -torch.minimum(gain, clipped).mean() * scale
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


# 5. The loop: play, score, diagnose, filter, update, record.


def held_out_success(model, tokenizer, env: Env, tasks: int) -> float:
    plays = play_all(model, tokenizer, env, [(seed, 0) for seed in range(tasks)])
    return float(np.mean([play.solved for play in plays]))


def main(steps: int = 30, seed: int = 0, tasks: int = 256, plot: Path | None = None) -> list[dict]:
    """Train; returns one record per step. Step 0 and the last one have the held-out success."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    env = make("FrozenLake", max_turns=3)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    records = [{"step": 0, "held_out": held_out_success(model, tokenizer, env, tasks)}]
    print(f"step   0  held-out success {records[0]['held_out']:.2f}")
    for step in range(1, steps + 1):
        first = FIRST_TRAINING_SEED + (1000 * seed + step) * PROMPTS
        seeds = range(first, first + PROMPTS)
        lucks = range(GROUP_SIZE)
        plays = play_all(model, tokenizer, env, [(s, luck) for s in seeds for luck in lucks])
        found = measure_reasoning(model, plays)
        groups = [plays[at : at + GROUP_SIZE] for at in range(0, len(plays), GROUP_SIZE)]
        rewards = [[play.reward for play in group] for group in groups]
        selection = select(rewards, kind="top_p", mass=KEPT_MASS)
        kept = [group for group, is_kept in zip(groups, selection.kept_P, strict=True) if is_kept]
        grpo_step(model, optimiser, kept, rng, selection.kept_ratio)
        record = {
            "step": step,
            "success": float(np.mean([play.solved for play in plays])),
            "kept": len(kept),
            "mi": found["mi_estimate"],
            "retrieval": found["retrieval_accuracy"],
            "chance": found["retrieval_chance"],
        }
        if step == steps:
            record["held_out"] = held_out_success(model, tokenizer, env, tasks)
        records.append(record)
        print(record, flush=True)
    return records


if __name__ == "__main__":
    import sys, time
    t=time.time()
    main(steps=int(sys.argv[1]), seed=int(sys.argv[2]))
    print(time.time()-t)
