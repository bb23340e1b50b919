"""The table of environments for the docs, written from the code: ``python -m ragen2.envs.table``.

With paths of Markdown pages as arguments it rewrites the table between the two marks on each page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ragen2.envs.base import Env
from ragen2.errors import ConfigError

BEGIN = "<!-- begin: written by python -m ragen2.envs.table -->"
END = "<!-- end -->"
_HEADER = ("Environment", "Stochastic", "Multi-turn", "State", "Reward")
_PACKAGE = "ragen2.envs."


def built_in() -> list[type[Env]]:
    """The environments that come with the package, by name; third-party ones are left out."""
    members = (Env.find(kind) for kind in Env.kinds())
    return [member for member in members if member.__module__.startswith(_PACKAGE)]


def page_name(member: type[Env]) -> str:
    """The docs page of an environment, named after its module."""
    return member.__module__.removeprefix(_PACKAGE).split(".")[0] + ".md"


def markdown_table() -> str:
    """One row an environment with its default settings; names link to their pages."""
    rows = [_HEADER, ("---",) * len(_HEADER), *(_row(member) for member in built_in())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def with_table(page: str) -> str:
    """The page with a fresh table between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page has no place for the table; add the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{markdown_table()}\n{END}{after}"


def main(paths: list[str]) -> None:
    """Print the table, or write it into the pages given."""
    if not paths:
        sys.stdout.write(markdown_table() + "\n")
    for path in map(Path, paths):
        path.write_text(with_table(path.read_text("utf-8")), "utf-8")


def _row(member: type[Env]) -> tuple[str, ...]:
    name = f"[{member.model_fields['kind'].default}](environments/{page_name(member)})"
    is_multi_turn = member.model_fields["max_turns"].default > 1
    flags = ("yes" if flag else "no" for flag in (member.stochastic, is_multi_turn))
    return (name, *flags, member.state_kind, member.reward_kind)


if __name__ == "__main__":
    main(sys.argv[1:])
