"""A person plays an environment in the terminal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ragen2.envs.base import Env, Episode
from ragen2.envs.guard import start_episode, text_of
from ragen2.errors import MissingMethod

MOST_COLUMNS = 56
"""Characters that an image is wide at most."""
HELP = "type an action (several with ||, where an answer may hold several), or: hint, help, quit"


def play_in_terminal(env: Env, seed: int) -> None:
    """Show, ask, step, until done or out of actions."""
    console = Console()
    episode = start_episode(env, seed, 0)
    console.print(
        Panel(
            Text(text_of(env, "instruction")), title=f"{env.kind}, task {seed}", title_align="left"
        )
    )
    console.print(Text(HELP, style="dim"))
    total, taken = 0.0, 0
    while taken < env.max_actions:
        console.print(Panel(_shown(episode), expand=False))
        words = _ask(console, env.max_actions - taken)
        if words is None:
            console.print("stopped")
            return
        if _answer(console, episode, words):
            continue
        pieces = [words] if env.one_action else words.split("||")
        for action in [piece.strip() for piece in pieces if piece.strip()]:
            step = episode.step(action)
            taken, total = taken + int(step.valid), total + step.reward
            if not step.valid:
                console.print(Text(f"unknown action {action!r}; {HELP}", style="yellow"))
                break
            effect = "" if step.effective else ", nothing moved"
            console.print(Text(f"{action}: reward {step.reward:g}{effect}", style="dim"))
            if step.done:
                console.print(Panel(_shown(episode), expand=False))
                verdict = "[green]solved[/]" if step.solved else "[red]not solved[/]"
                console.print(f"{verdict}, total reward {total:g} in {taken} actions")
                return
    console.print(f"[red]out of actions[/], total reward {total:g}")


def _shown(episode: Episode) -> Text:
    """What the agent is shown; an image in half blocks, two pixels a character."""
    parts = [Text(episode.observation)] if episode.observation else []
    pixels = episode.shown_image
    if pixels is not None:
        step = -(-max(pixels.shape[:2]) // MOST_COLUMNS)
        coarse = pixels[step // 2 :: step, step // 2 :: step]
        coarse = coarse[: len(coarse) // 2 * 2]
        for above, below in zip(coarse[::2], coarse[1::2], strict=True):
            blocks = [
                ("▀", f"{_colour(a)} on {_colour(b)}") for a, b in zip(above, below, strict=True)
            ]
            parts.append(Text.assemble(*blocks))
    return Text("\n").join(parts)


def _colour(pixel: npt.NDArray[np.uint8]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*pixel.tolist())


def _ask(console: Console, left: int) -> str | None:
    try:
        words = console.input(f"[bold]{left} left>[/] ").strip()
    except EOFError:
        return None
    return None if words.lower() in {"quit", "q", "exit"} else words


def _answer(console: Console, episode: Episode, words: str) -> bool:
    """Handle words that are not actions; True when handled."""
    if words.lower() in {"", "help", "?"}:
        console.print(Text(HELP, style="dim"))
        return True
    if words.lower() == "hint":
        try:
            hint = f"the expert would: {' || '.join(episode.expert()) or 'stop'}"
        except MissingMethod as error:
            hint = f"{error}: there is no hint"
        console.print(Text(hint, style="dim"))
        return True
    return False
