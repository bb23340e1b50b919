"""Write the tables and plots of docs/performance.md from results/*.json: no number is typed by hand.

A table's place is between two comments, `<!-- NAME -->` and `<!-- /NAME -->`. Every file
results/NAME_LABEL.json gives it rows; what LABEL begins with names the machine: `cpu`, `h200`, `h200_512`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ragen2.reports.figures import Chart, Figure, chart_figure, standalone
from ragen2.reports.load import Series
from ragen2.runs.files import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images" / "performance"
NOT_MEASURED = "Not measured yet."
LABELS = {"cpu": "2 CPU cores", "h200": "one H200"}
AXES = {
    "prompts": "prompts per step",
    "group_size": "rollouts of a prompt",
    "turns": "turns of an episode",
    "tokens": "tokens of a reply",
    "model": "million parameters",
}
ROWS = (("prompts", "group_size", "turns"), ("tokens", "model"))
"""Which plots stand side by side in one file."""
Found = list[tuple[str, dict[str, Any]]]


def labels(name: str, folder: Path = RESULTS) -> list[str]:
    """What the files of one benchmark are labelled."""
    return [file.stem.removeprefix(f"{name}_") for file in sorted(folder.glob(f"{name}_*.json"))]


def machine_name(label: str) -> str:
    """The machine in words."""
    return LABELS.get(label.partition("_")[0], label)


def results(name: str, folder: Path = RESULTS) -> Found:
    """Every result of one benchmark with the name of its machine."""
    return [
        (machine_name(label), json.loads((folder / f"{name}_{label}.json").read_text()))
        for label in labels(name, folder)
    ]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> str:
    """Markdown; the first ``words`` columns hold words, the others numbers."""
    if not rows:
        return NOT_MEASURED
    line = ["---" if index < words else "---:" for index in range(len(columns))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, line, *rows))


def rollout_table(found: Found) -> str:
    """Tokens a second of every way, and how far log-probs and greedy tokens agree."""
    rows = [
        (
            label,
            Path(one["model"]).name,
            f"{name} ({one['dtype']})",
            f"{one['sequences']}",
            f"{way['tokens_per_second']:,.0f}",
            f"{one['ways']['ours']['tokens_per_second'] / way['tokens_per_second']:.1f}",
        )
        for label, one in found
        for name, way in one["ways"].items()
    ]
    return table(
        ("machine", "model", "way", "sequences", "tokens/s", "ours over this"), rows, words=3
    )


def agreement_table(found: Found) -> str:
    """What the sampler computes, against forward passes and against greedy ``generate``."""
    rows = [
        (
            label,
            Path(one["model"]).name,
            one["dtype"],
            f"{one['logprob_gap']['mean']:.1e}",
            f"{one['logprob_gap']['largest']:.1e}",
            _greedy(one["greedy"]),
        )
        for label, one in found
    ]
    columns = ("machine", "model", "precision", "mean gap", "largest gap", "equal greedy sequences")
    return table(columns, rows, words=3)


def decode_table(found: Found) -> str:
    """Measured against what the memory allows."""
    rows = [
        (
            label,
            Path(one["model"]).name,
            f"{point['sequences']}",
            f"{point['tokens_per_second']:,.0f}",
            f"{point['limit_tokens_per_second']:,.0f}",
            f"{point['share']:.0%}",
        )
        for label, one in found
        for point in one["points"]
    ]
    return table(("machine", "model", "sequences", "tokens/s", "limit", "share"), rows, words=2)


def step_table(found: Found) -> str:
    """Seconds and shares of the phases of a step."""
    phases = list(dict.fromkeys(name for _, one in found for name in one["phases"]))
    rows = [
        (
            label,
            Path(one["model"]).name,
            f"{one['seconds']:.3f}",
            *(f"{one['shares'].get(name, 0.0):.1%}" for name in phases),
            f"{one['sampled_tokens'] / one['phases']['rollout']:,.0f}",
            f"{one['trained_tokens'] / one['phases']['update']:,.0f}",
        )
        for label, one in found
    ]
    columns = ("machine", "model", "seconds", *phases, "sampled/s", "trained/s")
    return table(columns, rows, words=2)


def trl_table(found: Found) -> str:
    """Microseconds a trained token of TRL and of ours, each way by itself."""
    rows = []
    for label, one in found:
        for way, told in one["ways"].items():
            cells = (
                ("-", "-", "does not run")
                if "failed" in told
                else (
                    f"{1e6 * told['theirs']['seconds_a_token']:.1f}",
                    f"{1e6 * told['ours']['seconds_a_token']:.1f}",
                    f"{told['ratio']:.1f}",
                )
            )
            named = f"**{way}**" if way == one["fastest"] else way
            rows.append((label, Path(one["model"]).name, named, *cells))
    return table(
        ("machine", "model", "TRL writes by", "TRL, µs", "ours, µs", "ratio"), rows, words=3
    )


def scaling_table(found: Found) -> str:
    """The first and the last value of each setting: what many times as much of it costs."""
    rows = []
    for label, one in found:
        for axis, name in AXES.items():
            points = [point for point in one["points"] if point["axis"] == axis]
            if len(points) < 2:
                continue
            first, last = points[0], points[-1]
            rows.append(
                (
                    label,
                    name,
                    f"{_across(first):g} to {_across(last):g}",
                    f"{_across(last) / _across(first):.0f}",
                    f"{last['seconds_rollout'] / first['seconds_rollout']:.1f}",
                    f"{last['seconds_update'] / first['seconds_update']:.1f}",
                )
            )
    columns = ("machine", "setting", "from, to", "times as much", "rollout takes x times", "update")
    return table(columns, rows, words=2)


def memory_table(found: Found) -> str:
    """Seconds and peak of an update, and whether it can be repeated bit for bit."""
    rows = [
        (
            label,
            "yes" if one["is_reproducible"] else "no",
            f"{one['tokens']:,}",
            f"{one['vocabulary']:,}",
            f"{one['padding']:.1%}",
            f"{one['seconds']:.2f}",
            "-" if one["peak_gib"] is None else f"{one['peak_gib']:.1f}",
        )
        for label, one in found
    ]
    columns = (
        "machine",
        "same bits again",
        "tokens",
        "vocabulary",
        "padding",
        "seconds",
        "peak GiB",
    )
    return table(columns, rows, words=2)


def lora_table(found: Found) -> str:
    """Seconds and peaks of whole steps; a case that did not run says why."""
    rows = [
        (
            label,
            *one["case"].split(":"),
            f"{one['card_gib']}" if one.get("card_gib") else "-",
            *(
                (one["error"], "-", "-", "-")
                if "error" in one
                else (
                    one["trained"],
                    f"{one['seconds']:.1f}",
                    "-" if one["peak_gib"] is None else f"{one['peak_gib']:.1f}",
                    "-" if one["peak_gib"] is None else f"{one['peak_reserved_gib']:.1f}",
                )
            ),
        )
        for label, each in found
        for one in each["cases"]
    ]
    columns = ("machine", "shape", "way", "GiB of the card", "trained weights", "seconds per step")
    return table((*columns, "peak GiB", "taken by torch, GiB"), rows, words=3)


TABLES: dict[str, tuple[str, Callable[[Found], str]]] = {
    "rollout": ("rollout", rollout_table),
    "agreement": ("rollout", agreement_table),
    "decode": ("decode", decode_table),
    "step": ("step", step_table),
    "memory": ("update_memory", memory_table),
    "lora": ("lora_memory", lora_table),
    "trl": ("trl", trl_table),
    "scaling": ("scaling", scaling_table),
}


def plots(one: dict[str, Any]) -> list[list[Figure]]:
    """Seconds of rollout and update over each setting, in the rows that files are made of."""
    return [[_plot(axis, one["points"]) for axis in row] for row in ROWS]


def pictures(folder: Path = RESULTS) -> str:
    """Links to the plots of every machine."""
    lines = [
        f"![Seconds of rollout and update on {machine_name(label)} over {', '.join(row)}]"
        f"({IMAGES.relative_to(PAGE.parent)}/{picture_name(label, number)})"
        for label in labels("scaling", folder)
        for number, row in enumerate(ROWS, start=1)
    ]
    return "\n\n".join(lines) or NOT_MEASURED


def picture_name(label: str, number: int) -> str:
    """The file of one row of plots of one machine."""
    return f"scaling-{label}-{number}.svg"


def filled(page: str, folder: Path = RESULTS) -> str:
    """The page with every table and the links to plots made anew."""
    parts = {name: make(results(of, folder)) for name, (of, make) in TABLES.items()}
    for name, text in {**parts, "plots": pictures(folder)}.items():
        start, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        before, mark, rest = page.partition(start)
        if not mark or end not in rest:
            raise ValueError(f"{PAGE.name} has no place for {name}")
        page = before + mark + text + end + rest.partition(end)[2]
    return page


def _plot(axis: str, points: Sequence[dict[str, Any]]) -> Figure:
    chosen = [point for point in points if point["axis"] == axis]
    across = tuple(round(_across(point)) for point in chosen)
    lines = [
        Series(part, across, tuple(point[f"seconds_{part}"] for point in chosen))
        for part in ("rollout", "update")
    ]
    title = f"Seconds over {AXES[axis]}"
    return chart_figure(
        Chart(title, lines, unit="seconds", floor=0.0, across=AXES[axis], doubling=True)
    )


def _across(point: dict[str, Any]) -> float:
    """Where a point stands on its axis; models stand at their size, in millions."""
    return point["parameters"] / 1e6 if point["axis"] == "model" else float(point["value"])


def _greedy(found: dict[str, Any] | None) -> str:
    return "-" if found is None else f"{found['equal_sequences']} of {found['sequences']}"


def main() -> None:
    """Fill the page and draw the plots."""
    write_atomically(PAGE, filled(PAGE.read_text(encoding="utf-8")))
    IMAGES.mkdir(parents=True, exist_ok=True)
    for label in labels("scaling"):
        found = json.loads((RESULTS / f"scaling_{label}.json").read_text())
        for number, row in enumerate(plots(found), start=1):
            write_atomically(IMAGES / picture_name(label, number), standalone(row))


if __name__ == "__main__":
    main()
