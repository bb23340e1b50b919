"""One batch, scored by its trainer, from its run directory and from every foreign format: same numbers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ragen2
from logged_rollouts import write_csv, write_jsonl, write_parquet
from ragen2.audit import PolicyLikelihood, ReasoningRule, SampleLimits
from ragen2.config import Stops, WarningSettings
from ragen2.diagnostics import Collapse
from ragen2.filtering import KeepAll
from ragen2.rollout.reply import ReplyFormat, parse_reply, reasoning_span
from ragen2.runs.record import AuditRecord
from ragen2.runs.store import RunDirectory
from ragen2.trainer.step_ledger import LedgerSettings, StepLedger
from ragen2.types import Completion, Finish, Group, Prompt, StopReason, Trajectory, Turn

NAMES = (
    "mi_estimate",
    "mi_seq_estimate",
    "retrieval_accuracy",
    "conditional_entropy",
    "conditional_entropy_seq",
    "reasoning_entropy_seq",
    "num_traces",
    "num_prompts",
)
LIMITS = SampleLimits(prompts=64, traces=64)
SAME = 1e-6
BOARDS = ("SF\nFG", "SH\nFG", "SFF\nHFG", "SFH\nFFG")
MEMBERS = 3


@cache
def scorer(habit: str = "") -> PolicyLikelihood:
    """The embedded model; some models' templates open the reasoning, some tokenizers mark beginnings."""
    import torch
    from tokenizers.processors import TemplateProcessing

    from ragen2.backends.agent import open_policy, quiet_transformers

    torch.set_num_threads(1)
    quiet_transformers()
    policy = open_policy("ragen2-tiny", "cpu")
    hf = policy.tokenizer.hf
    if habit == "opens":
        hf.chat_template += "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    if habit == "marks":
        mark = hf.bos_token = "<|im_start|>"  # noqa: S105 - no password
        hf.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{mark} $A", special_tokens=[(mark, hf.bos_token_id)]
        )
    return PolicyLikelihood(policy, "ragen2-tiny")


@cache
def trl_rows() -> ModuleType:
    """How TRL's rows are read; the package around it wants TRL, this module does not."""
    file = Path(ragen2.__file__).parent / "integrations" / "trl" / "rows.py"
    spec = importlib.util.spec_from_file_location("trl_rows", file)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Batch:
    """What a trainer played: prompts, text or chat, and the replies to each."""

    is_chat: bool
    rule: str
    replies: tuple[tuple[str, ...], ...]
    """Of each board."""
    spelled: bool = False
    """Whether replies are sampled letter by letter, as no tokenizer would write them."""
    habit: str = ""
    """Of the model that wrote them."""
    native: bool = False
    """Whether our own loop played them, and the model opens its reasoning itself."""

    @property
    def scorer(self) -> PolicyLikelihood:
        return scorer(self.habit)

    def ids(self, reply: str) -> list[int]:
        """As they were sampled."""
        words = self.scorer.policy.tokenizer
        pieces = list(reply) if self.spelled else [reply]
        return [*(token for piece in pieces for token in words.encode(piece)), min(words.eos_ids)]

    def prompt(self, board: str) -> Any:
        if not self.is_chat:
            return f"Reach G from S.\n{board}\nThe way is"
        system = {"role": "system", "content": "Reach G. Think in <think> first."}
        return [system, {"role": "user", "content": board}]

    def messages(self, board: str) -> list[dict[str, str]]:
        prompt = self.prompt(board)
        return prompt if self.is_chat else [{"role": "user", "content": prompt}]

    def groups(self) -> list[Group]:
        """As TRL's trainer makes them of its rows."""
        made, words = trl_rows(), self.scorer.policy.tokenizer
        rows = []
        for board, replies in zip(BOARDS, self.replies, strict=True):
            prompt = self.prompt(board)
            shown = (
                words.hf.apply_chat_template(
                    prompt, add_generation_prompt=True, tokenize=True, return_dict=False
                )
                if self.is_chat
                else words.hf(text=prompt)["input_ids"]
            )
            messages = made.messages_of(prompt)
            rows += [made.Row(messages, shown, self.ids(reply)) for reply in replies]
        if self.native:
            return [
                self._own_group(rows[place : place + MEMBERS])
                for place in range(0, len(rows), MEMBERS)
            ]
        reader = made.RowReader(words, words.eos_ids, self.rule)
        return reader.groups(rows, np.arange(len(rows)) % 2.0, MEMBERS)

    def _own_group(self, rows: list[Any]) -> Group:
        words = self.scorer.policy.tokenizer
        form = ReplyFormat(prefilled=False)
        prompt = Prompt("Lake", 0, rows[0].messages)
        members = []
        for luck, row in enumerate(rows):
            ids = np.array(row.ids)
            written = Completion(ids, np.zeros(len(ids)), words.decode(row.ids), Finish.EOS)
            turn = Turn(
                np.array(row.prompt_ids),
                written,
                parse_reply(written, form),
                reasoning_span(written, form, words),
                observation="",
                reward=luck % 2.0,
                penalty=0.0,
                executed=(),
            )
            members.append(Trajectory(prompt, luck, (turn,), StopReason.DONE, solved=False))
        return Group(prompt, tuple(members))


def trained(batch: Batch, folder: Path) -> dict[str, float]:
    """What the trainer records; ``folder`` becomes its run directory."""
    run = RunDirectory.create(folder, 'engine = "trl"\n')
    stops = Stops(variance_steps=0, empty_steps=0, success_evaluations=0)
    made = LedgerSettings((Collapse(),), WarningSettings(), stops, seed=0, temperature=1.0)
    ledger, groups = StepLedger(made, run), batch.groups()
    ledger.open(1, no_success="TRL knows rewards only")
    ledger.diagnose(groups, batch.scorer.policy)
    ledger.filtered(groups, KeepAll().select(groups))
    ledger.close()
    (record,) = run.records()
    return first_turn(record.metrics)


def first_turn(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[f"collapse/first_turn/{name}"] for name in NAMES}


def rows_of(batch: Batch) -> list[tuple[str, str, Trajectory]]:
    """Board, reply and episode of each row."""
    found = []
    for board, replies, group in zip(BOARDS, batch.replies, batch.groups(), strict=True):
        found += [(board, *pair) for pair in zip(replies, group.trajectories, strict=True)]
    return found


def trl(batch: Batch, folder: Path) -> Path:
    rows = [
        {
            "step": 1,
            "prompt": batch.prompt(board),
            "completion": [{"role": "assistant", "content": reply}] if batch.is_chat else reply,
            "paid": episode.reward,
            "advantage": episode.reward - 0.5,
        }
        for board, reply, episode in rows_of(batch)
    ]
    return write_parquet(folder / "completions_00001.parquet", rows)


def verl(batch: Batch, folder: Path) -> Path:
    """Prompts as verl decodes them, without their special tokens."""
    decode = batch.scorer.policy.tokenizer.decode
    rows = [
        {
            "input": decode(shown_ids(batch, episode)),
            "output": reply,
            "score": episode.reward,
            "step": 1,
            "uid": board,
        }
        for board, reply, episode in rows_of(batch)
    ]
    return write_jsonl(folder / "1.jsonl", rows)


def shown_ids(batch: Batch, episode: Trajectory) -> list[int]:
    """The prompt's ids before the trainer added the tag that the model wrote itself."""
    words, ids = batch.scorer.policy.tokenizer, episode.turns[0].prompt_ids_T.tolist()
    tag = words.encode("<think>")
    return ids[: -len(tag)] if ids[-len(tag) :] == tag else ids


def verifiers(batch: Batch, folder: Path) -> Path:
    """The older results.jsonl, which has no token ids."""
    rows = [
        {
            "example_id": board,
            "prompt": batch.prompt(board),
            "completion": [{"role": "assistant", "content": reply}] if batch.is_chat else reply,
            "reward": episode.reward,
        }
        for board, reply, episode in rows_of(batch)
    ]
    return write_jsonl(folder / "results.jsonl", rows)


def verifiers_ids(batch: Batch, folder: Path) -> Path:
    """traces.jsonl of a training run: every message has its token ids."""
    rows = []
    for board, reply, episode in rows_of(batch):
        ids = batch.ids(reply)
        *shown, scaffold = shown_ids(batch, episode)
        messages = batch.messages(board)
        nodes: list[dict[str, Any]] = [
            {"message": one, "sampled": False, "parent": place - 1 if place else None}
            for place, one in enumerate(messages)
        ]
        nodes[-1] |= {"token_ids": shown, "mask": [False] * len(shown)}
        written = {"token_ids": [scaffold, *ids], "mask": [False, *[True] * len(ids)]}
        message = {"role": "assistant", "content": reply}
        nodes.append({"message": message, "sampled": True, "parent": len(messages) - 1, **written})
        task = {"type": "Lake", "key": board}
        rewards = {"all": {"score": episode.reward, "weight": 1.0}}
        rows.append({"task": task, "traces": [{"nodes": nodes, "rewards": rewards}]})
    return write_jsonl(folder / "traces.jsonl", rows)


def ragen(batch: Batch, folder: Path) -> Path:
    rows = [
        {
            "messages": [*batch.messages(board), {"role": "assistant", "content": reply}],
            "metadata": {"group_id": board, "total_reward": episode.reward, "step": 1},
        }
        for board, reply, episode in rows_of(batch)
    ]
    return write_jsonl(folder / "rollouts.jsonl", rows)


def openai(batch: Batch, folder: Path) -> Path:
    """Contents in parts."""

    def parts(message: dict[str, str]) -> dict[str, Any]:
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    rows = [
        {
            "messages": [parts(one) for one in batch.messages(board)],
            "response": [parts({"role": "assistant", "content": reply})],
        }
        for board, reply, _ in rows_of(batch)
    ]
    return write_jsonl(folder / "chats.jsonl", rows)


def _table(batch: Batch) -> list[dict[str, Any]]:
    return [
        {
            "prompt": json.dumps(batch.prompt(board)) if batch.is_chat else batch.prompt(board),
            "completion": reply,
            "reward": episode.reward,
        }
        for board, reply, episode in rows_of(batch)
    ]


def jsonl(batch: Batch, folder: Path) -> Path:
    return write_jsonl(folder / "log.jsonl", _table(batch))


def comma_separated(batch: Batch, folder: Path) -> Path:
    return write_csv(folder / "log.csv", _table(batch))


Write = Callable[[Batch, Path], Path]
FORMATS: dict[str, Write] = {
    "TRL's parquet (`trl`)": trl,
    "verl's dump (`verl`)": verl,
    "verifiers' `results.jsonl`": verifiers,
    "verifiers' `traces.jsonl` of a training run": verifiers_ids,
    "OpenAI chats (`columns`)": openai,
    "RAGEN's export (`ragen`)": ragen,
    "plain JSONL (`columns`)": jsonl,
    "plain CSV (`columns`)": comma_separated,
}
CHATS_ONLY = {"OpenAI chats (`columns`)", "RAGEN's export (`ragen`)"}
RUN, BY_RULE = "run directory (`ragen2`)", "run directory, by a rule that is said"
HOLD_IDS = {RUN, BY_RULE, "verifiers' `traces.jsonl` of a training run"}


def differences(
    audited: Callable[..., AuditRecord], batch: Batch, folder: Path
) -> dict[str, float]:
    """How far each format's numbers are from the trainer's at most."""
    folder.mkdir()
    expected = trained(batch, folder / "run")
    paths = {RUN: folder / "run", BY_RULE: folder / "run"}
    for name, write in FORMATS.items():
        if batch.is_chat or name not in CHATS_ONLY:
            (folder / name).mkdir()
            paths[name] = write(batch, folder / name)
    found = {}
    for name, path in paths.items():
        record = audited(
            path,
            likelihood=batch.scorer,
            rule=ReasoningRule() if name == RUN else ReasoningRule(batch.rule),
            limits=LIMITS,
            template_opens=batch.scorer.template_opens,
        )
        numbers = first_turn(record.steps[0].metrics)
        found[name] = max(abs(numbers[one] - expected[one]) for one in NAMES)
        is_told = any("were tokenised again, because the log holds no" in n for n in record.notes)
        assert is_told == (name not in HOLD_IDS), record.notes
    return found


WORDS = st.sampled_from(
    ["go", "the", "left", "right.", "hole,", "(1,2)", "G", "I", "see", "so:", "7", "é", "\n", "..."]
)
THOUGHTS = st.lists(WORDS, min_size=1, max_size=8).map(" ".join).filter(str.strip)


@st.composite
def batches(draw: st.DrawFn, *, is_chat: bool, habit: str = "") -> Batch:
    """Replies with the tag, with text before it, with a pre-filled one, cut off, or without any."""
    rule = draw(st.sampled_from(["think", "all"]))
    forms = (
        "<think>{}</think><answer>Up</answer>",
        "Well. <think>{}</think>Up",
        "{}</think>Up",
        "<think>{}",
        "{}",
        "<think>\n\n</think>{}",
    )
    others = st.tuples(THOUGHTS, st.sampled_from(forms)).map(lambda one: one[1].format(one[0]))
    replies = tuple(
        (f"<think>{draw(THOUGHTS)}</think>", *(draw(others) for _ in range(MEMBERS - 1)))
        for _ in BOARDS
    )
    return Batch(is_chat, rule, replies, habit=habit)


@pytest.mark.parametrize(
    ("is_chat", "habit"), [(False, ""), (True, ""), (True, "opens"), (False, "marks")]
)
def test_trainer_run_directory_and_every_format_agree(audited, tmp_path_factory, is_chat, habit):
    @settings(max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(batch=batches(is_chat=is_chat, habit=habit))
    def agree(batch: Batch) -> None:
        found = differences(audited, batch, tmp_path_factory.mktemp("agree") / "batch")
        assert {name: gap for name, gap in found.items() if gap > SAME} == {}

    agree()


REPLIES = tuple(
    (
        f"<think>go left to the {place}.</think><answer>Up</answer>",
        f"So. <think>\nnot the {place}, but\n</think>Up",
        f"<think>(1,2) is no {place}",
    )
    for place in ("goal", "hole", "lake", "wall")
)


def test_a_run_whose_model_opens_its_reasoning_itself_agrees(audited, tmp_path):
    batch = Batch(is_chat=True, rule="think", replies=REPLIES, native=True)
    found = differences(audited, batch, tmp_path / "batch")
    assert {name: gap for name, gap in found.items() if gap > SAME} == {}


def table(audited: Callable[..., AuditRecord], folder: Path) -> list[str]:
    """One line for each format: prompts that are text, chat, and replies of unusual tokens."""
    kinds = [(False, False), (True, False), (True, True)]
    measured = []
    for place, (is_chat, spelled) in enumerate(kinds):
        gaps: dict[str, float] = {}
        for rule in ("think", "all"):
            batch = Batch(is_chat, rule, REPLIES, spelled)
            for name, gap in differences(audited, batch, folder / f"{place} {rule}").items():
                gaps[name] = max(gap, gaps.get(name, 0.0))
        measured.append(gaps)

    def cell(gap: float | None) -> str:
        if gap is None:
            return "holds chats only"
        return "the same" if gap <= SAME else "differs, and says so"

    names = [name for name in measured[1] if name != BY_RULE]
    return [
        f"| {name} | {' | '.join(cell(gaps.get(name)) for gaps in measured)} |" for name in names
    ]


def test_the_table_in_the_docs_is_what_is_measured(audited, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "diagnostics" / "audit.md").read_text()
    lines = table(audited, tmp_path)
    assert len(lines) == 1 + len(FORMATS)
    assert "\n".join(lines) in page, "\n".join(lines)
