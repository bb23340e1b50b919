"""What ``ragen2 envs show`` prints: the first messages of a task, coloured by part, and their length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ragen2.envs.guard import start_episode
from ragen2.rollout.context import opened_by_template, prompt_ids
from ragen2.rollout.prompts import PromptWriter, TurnState
from ragen2.rollout.wording import Part

if TYPE_CHECKING:
    from ragen2.backends.tokenizer import TemplateTokenizer
    from ragen2.config import RunConfig

STYLES = {
    "rules": "cyan",
    "instruction": "cyan",
    "actions": "green",
    "form": "magenta",
    "example": "yellow",
    "observation": "bold",
    "budget": "blue",
    "turn": "blue",
    "turns": "blue",
    "actions_left": "blue",
    "reward": "blue",
    "problem": "red",
}


def show_first_prompt(config: RunConfig, seed: int, tokenizer: TemplateTokenizer | None) -> None:
    """The messages; with a tokenizer also what its template makes of them, and how many tokens."""
    console = Console()
    env, prompt = config.env, config.prompt
    writer = PromptWriter.of(env, config.rollout, prompt)
    shown = start_episode(env, seed, 0).observation
    parts = [("system", writer.system_parts())]
    for user, reply in writer.opening(shown).exchanges:
        parts += [("user", [("example", user.content)]), ("assistant", [("example", reply)])]
    parts.append(("user", writer.turn_parts(TurnState(shown, env.max_actions))))
    for role, found in parts:
        console.print(Panel(_coloured(found), title=role, title_align="left"))
    names = dict.fromkeys(name for _, found in parts for name, _ in found if name in STYLES)
    legend = Text("parts: ").append_text(
        Text(", ").join(Text(name.replace("_", " "), style=STYLES[name]) for name in names)
    )
    console.print(legend)
    opened = writer.form.prefill or "nothing; the model writes its first tag itself"
    console.print(Text(f"the reply is opened with {opened}"))
    console.print(
        Text(
            f"style {prompt.style}; a reply may have {config.rollout.reply_tokens(env)} tokens; an invalid "
            f"one costs {-config.rollout.penalty(env):g}"
        )
    )
    if tokenizer is not None:
        _show_tokens(console, config, tokenizer, writer, seed)


def _show_tokens(
    console: Console,
    config: RunConfig,
    tokenizer: TemplateTokenizer,
    writer: PromptWriter,
    seed: int,
) -> None:
    chat = tokenizer.with_arguments(config.prompt.template_arguments)
    *_, user = writer.first(seed)
    is_open = opened_by_template(chat, writer.form.opening)
    prefill = "" if is_open else writer.form.prefill
    opening = writer.opening(start_episode(config.env, seed, 0).observation)
    ids = prompt_ids(chat, opening, [user], [], first=0, prefill_ids=chat.encode(prefill))
    text = chat.hf.decode(ids)
    console.print(Panel(Text(text), title="through the chat template", title_align="left"))
    console.print(Text(f"{len(ids)} tokens", style="bold"))


def _coloured(parts: Sequence[Part]) -> Text:
    return Text.assemble(*((text, STYLES.get(name, "dim")) for name, text in parts))
