"""What a model may write instead of an action: wrong, empty, huge, binary and hostile text."""

from __future__ import annotations

EMPTY = ("", " ", "\n\t\r", "\u200b", "||")
BINARY = (
    "\x00",
    "\x00\x01\x02\xff",
    "\x1b[2J\x1b[31m",
    "\ud800",
    "\udcff\udcfe",
    "\ufeff",
    "\x7f" * 9,
)
HUGE = (
    "x" * 100_000,
    "9" * 10_000,
    "(" * 5_000,
    "()" * 500,
    "[" * 2_000 + "]" * 2_000,
    "1+" * 20_000 + "1",
    "a " * 50_000,
    "\n" * 100_000,
    "😀" * 20_000,
    "1" + "0" * 400 + "/3",
)
NUMBERS = ("-1", "nan", "inf", "1e999", "1/0", "9**9**9", "²", "٣", "0x10", "1_000", "None", "True")
TAGS = ("<think>", "</answer>", "<answer></answer>", "<|im_end|>", "</s>", "```", "```python\n```")
HOSTILE = (
    "__import__('os').system('exit 1')",
    "import os; os._exit(3)",
    "raise SystemExit",
    "while True: pass",
    "{0.__class__.__mro__}",
    "%s%s%s%n",
    "'; DROP TABLE tasks; --",
    "../../../../etc/passwd",
    "${jndi:ldap://localhost/x}",
    "$(sleep 100)",
    "a" * 40 + "!",
    "(a+)+$",
    "search[" + "*" * 500,
    "search[\x00]",
    "click[",
    "click[]]]]",
    "\\frac{1}{0}",
    "\\boxed{" * 200,
)
ODD_ACTIONS = (*EMPTY, *BINARY, *HUGE, *NUMBERS, *TAGS, *HOSTILE)
"""The same for every environment."""


def odd_actions(legal: str) -> tuple[str, ...]:
    """``ODD_ACTIONS`` and spoilt forms of a legal action, which reach deeper into a parser."""
    spoilt = (
        legal * 1000,
        legal[: len(legal) // 2],
        legal[::-1],
        legal + "\x00",
        f"{legal} || {legal}",
        f'"{legal}"',
        legal.swapcase(),
        f"  {legal}\n",
        " ".join(legal),
        legal.replace("1", "10000000000000000000000"),
    )
    return (*ODD_ACTIONS, *spoilt)
