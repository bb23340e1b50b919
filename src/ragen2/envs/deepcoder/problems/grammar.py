"""Read ``grammar.txt``, the list of everything that problems are composed of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources

from ragen2.envs.deepcoder.problems.parts import Grammar, GrammarPart, Kind, Value

MODULUS = 1_000_007
"""Where a number of ways may be large, the grammar asks for it modulo this."""
_LISTS = "ints words letters rows"


def read_grammar(text: str) -> Grammar:
    """The grammar that ``text`` describes, in the format that its first lines explain."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    sections: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("== "):
            section = sections.setdefault(line[3:], [])
        else:
            section.append(line)
    expressions: dict[tuple[Kind, str], tuple[GrammarPart, ...]] = {}
    for title, body in sections.items():
        category, _, kinds = title.partition(" of ")
        kind, _, other = kinds.partition(" with ")
        if kind:
            included = expressions[kind, other] if other else ()
            expressions[kind, category] = (*included, *map(_expression, body))
    starts, steps, goals = (
        tuple(_parts(sections[title])) for title in ("starts", "steps", "goals")
    )
    return Grammar(starts, steps, goals, expressions)


def _expression(line: str) -> GrammarPart:
    cost, text, code, *rest = line.split(" :: ")
    words = rest[0].split() if rest else []
    choices = _choices(word for word in words if word != "grows")
    return GrammarPart(text, code, int(cost), grows="grows" in words, choices=choices)


def _parts(lines: Sequence[str]) -> Iterator[GrammarPart]:
    """One part for every line of English; the Python after it may be shared with those before."""
    header = ""
    texts: list[str] = []
    code: list[str] = []
    for line in [*lines, "->"]:
        is_code = line.startswith("    ")
        if not is_code and (code or " -> " in line or line == "->"):
            yield from (_part(header, text, code) for text in texts)
            texts, code = [], []
        if is_code:
            code.append(line[4:])
        elif "->" in line and "=>" not in line:
            header = line
        else:
            texts.append(line)


def _part(header: str, text: str, code: Sequence[str]) -> GrammarPart:
    kinds, _, idea = header.partition(" | ")
    takes, _, rest = kinds.partition(" -> ")
    gives, cost, *choices = rest.split(", ")
    text, _, answer = text.partition(" => ")
    lines = [*code, f"return {answer}"] if answer else code
    return GrammarPart(
        text=text,
        code="\n".join(lines),
        cost=int(cost),
        takes=takes.replace("lists", _LISTS),
        gives=gives if gives != "same" else "",
        idea=idea,
        choices=_choices(choices[0].split() if choices else ()),
    )


def _choices(words: Iterator[str] | Sequence[str]) -> dict[str, Sequence[Value]]:
    """``c=1..4`` is a range, ``c=2,3,5`` a list of numbers, ``c=abc`` a list of letters."""
    found: dict[str, Sequence[Value]] = {}
    for word in words:
        name, _, values = word.partition("=")
        first, dots, last = values.partition("..")
        if dots:
            found[name] = range(int(first), int(last) + 1)
        else:
            found[name] = tuple(map(int, values.split(","))) if "," in values else values
    return found


GRAMMAR = read_grammar(
    resources.files(__package__).joinpath("grammar.txt").read_text(encoding="utf-8")
)
