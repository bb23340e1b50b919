"""Page data with every panel in it, drawn from a seed: what tests and pictures need and small runs lack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FIRST = "collapse/first_turn/"
SOKOBAN = [
    {"symbol": "#", "kind": "wall", "name": "wall"},
    {"symbol": "_", "kind": "floor", "name": "floor"},
    {"symbol": "O", "kind": "target", "name": "target"},
    {"symbol": "√", "kind": "box_on_target", "name": "box on target"},
    {"symbol": "X", "kind": "box", "name": "box"},
    {"symbol": "P", "kind": "player", "name": "you"},
]
ROOMS = (
    ("######", "#___O#", "#_X__#", "#_P__#", "#____#", "######"),
    ("######", "#___O#", "#_X__#", "#P___#", "#____#", "######"),
    ("######", "#___O#", "#PX__#", "#____#", "#____#", "######"),
    ("######", "#___O#", "#_PX_#", "#____#", "#____#", "######"),
    ("######", "#___√#", "#___P#", "#____#", "#____#", "######"),
)


def page_data(runs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The whole object around these runs."""
    return {
        "schema": 1,
        "title": runs[0]["name"] if len(runs) == 1 else f"{len(runs)} runs",
        "version": "0.0.0",
        "generated": "2026-01-01T00:00:00Z",
        "live": None,
        "notes": [],
        "runs": runs,
        "compare": None,
        **more,
    }


def made_up_run(
    identity: str = "r0", name: str = "made-up", *, steps: int = 60, text: str = "{}"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run that collapses half way, and its blocks; ``text`` stands round everything a model wrote."""
    rng = np.random.default_rng(7)
    at = list(range(steps + 1))
    scored = [step for step in at if step % 5 == 0]
    run = {
        "id": identity,
        "name": text.format(name),
        "kind": "run",
        "state": "finished",
        "facts": [["environment", text.format("Sokoban")], ["algorithm", "grpo"], ["steps", "60"]],
        "steps": at,
        "metrics": _metrics(at, rng),
        "charts": _charts(),
        "events": [
            {"step": steps // 2, "kind": "warning", "text": text.format("retrieval falls")},
            {"step": steps // 2 + 6, "kind": "regime", "text": "template collapse"},
            {"step": steps - 5, "kind": "filter_empty", "text": "no prompt has variance"},
            {"step": steps, "kind": "checkpoint", "text": "checkpoint"},
        ],
        "verdict": {
            "word": f"Template collapse since step {steps // 2}",
            "tone": "bad",
            "text": text.format("Retrieval fell from 0.96 to chance while entropy rose."),
            "certainty": text.format("95% interval 0% to 8%."),
            "next": text.format("Filter: `--set filter.kind=top_p`."),
            "evidence": [
                {
                    "head": text.format("Is reasoning about its prompt? No."),
                    "text": text.format("retrieval accuracy 0.96, then 0.14"),
                    "metric": f"{FIRST}retrieval_accuracy",
                    "tone": "bad",
                },
                {
                    "head": "Do replies parse? Yes.",
                    "text": "98% of replies are valid.",
                    "metric": None,
                    "tone": "good",
                },
            ],
        },
        "plane": {
            "x_metric": f"{FIRST}conditional_entropy",
            "y_metric": f"{FIRST}mi_estimate",
            "x_unit": "nats per token",
            "y_unit": "nats per token",
            "bound": math.log(8),
            "points": [],
        },
        "scores": [
            {
                "step": step,
                "scope": "first_turn",
                "label": f"step {step}, first turn",
                "num_traces": 32,
                "num_prompts": 8,
                "accuracy": 0.5,
                "chance": 0.125,
                "block": f"{identity}-scores-{step}",
                "note": "",
            }
            for step in (0, steps)
        ],
        "flow": [_flow(steps, turn) for turn in (1, 2)],
        "reward": _reward(at[1:], rng, text),
        "probes": [_probe(steps, rng)],
        "replays": [{"step": steps, "count": 2, "of": 128, "block": f"{identity}-replays-{steps}"}],
        "timings": {
            "rollout": [None, *(float(v) for v in rng.uniform(3, 4, steps))],
            "update": [None, *(float(v) for v in rng.uniform(1, 2, steps))],
            "evaluate": [1.5 if step % 10 == 0 else None for step in at],
        },
        "settings": [["env", [["kind", "Sokoban"], ["size", "6"]]], ["filter", [["mass", "0.9"]]]],
        "versions": [["ragen2", "0.0.0"], ["numpy", np.__version__]],
        "absent": [["reward/effective_prompts", text.format("no prompt has variance")]],
        "audit": None,
        "notes": [text.format("Episodes of 1 of 60 steps are in this page.")],
    }
    values = run["metrics"]
    run["plane"]["points"] = [
        {
            "step": step,
            "x": values[f"{FIRST}conditional_entropy"]["values"][step],
            "y": values[f"{FIRST}mi_estimate"]["values"][step],
            "regime": "diverse_grounded" if step < steps // 2 + 6 else "template_collapse",
        }
        for step in scored
    ]
    blocks = {
        f"{identity}-scores-0": _scores(rng, 1.2, text),
        f"{identity}-scores-{steps}": _scores(rng, 0.02, text),
        f"{identity}-replays-{steps}": {"episodes": [_episode(text), _search_episode(text)]},
    }
    return run, blocks


def made_up_compare(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """A comparison of the runs."""
    points = [
        {
            "run": run["id"],
            "step": step,
            "x": run["metrics"][f"{FIRST}mi_estimate"]["values"][step] + 0.02 * i,
            "y": run["metrics"]["eval/success"]["values"][step],
        }
        for i, run in enumerate(runs)
        for step in run["steps"]
        if run["metrics"]["eval/success"]["values"][step] is not None
    ]
    one = {"value": 0.72, "low": 0.6, "high": 0.81, "step": 30}
    correlation = {
        "metric": f"{FIRST}mi_estimate",
        "rho": 0.83,
        "low": 0.5,
        "high": 0.95,
        "p": 0.001,
        "n": len(points),
        "over": "checkpoints",
        "text": "",
        "x_unit": "nats per token",
        "points": points,
    }
    return {
        "success": "eval/success",
        "columns": ["final retrieval"],
        "table": [
            {
                "run": run["id"],
                "verdict": "Template collapse",
                "tone": "bad",
                "peak": one,
                "final": {**one, "step": None},
                "cells": ["0.14"],
            }
            for run in runs
        ],
        "filter_delta": [
            {
                "with": runs[0]["id"],
                "without": runs[1]["id"],
                "differs": "filter.kind: top_p, keep_all",
                "peak": {"value": 0.1, "low": -0.02, "high": 0.22, "step": None},
                "final": {"value": 0.2, "low": 0.1, "high": 0.3, "step": None},
                "text": "",
            }
        ],
        "correlations": [
            {"name": "I(X;Z)", **correlation},
            {"name": "H(Z|X)", **correlation, "rho": -0.1},
        ],
        "notes": ["Runs of one seed each."],
    }


def _metrics(at: list[int], rng: np.random.Generator) -> dict[str, Any]:
    half = len(at) / 2
    fall = [1 / (1 + math.exp((step - half) / 3)) for step in at]

    def metric(values: list[float], width: float = 0.0, unit: str = "share") -> dict[str, Any]:
        noisy = [float(v + rng.normal(0, width / 4)) for v in values]
        found: dict[str, Any] = {"values": noisy, "unit": unit, "about": "how to read it"}
        if width:
            found |= {"low": [v - width for v in noisy], "high": [v + width for v in noisy]}
        return found

    sparse: dict[str, Any] = metric([0.2 + 0.5 * (1 - abs(i - half) / half) for i in at], 0.08)
    for name in ("values", "low", "high"):
        sparse[name] = [v if i % 5 == 0 else None for i, v in enumerate(sparse[name])]
    return {
        "eval/success": sparse,
        "rollout/success": metric([0.2 + 0.3 * f for f in fall], 0.0),
        f"{FIRST}retrieval_accuracy": metric([0.125 + 0.83 * f for f in fall], 0.06),
        f"{FIRST}retrieval_chance": metric([0.125 for _ in at]),
        f"{FIRST}mi_estimate": metric([0.02 + 0.5 * f for f in fall], 0.03, "nats per token"),
        f"{FIRST}mi_bound": metric([math.log(8) for _ in at], 0.0, "nats"),
        f"{FIRST}conditional_entropy": metric(
            [0.9 - 0.4 * f for f in fall], 0.05, "nats per token"
        ),
        "reward/variance_std_over_mean": metric([0.6 + 0.3 * f for f in fall], 0.0, ""),
        "filter/kept_ratio": metric([0.3 + 0.4 * f for f in fall]),
        "filter/kept_signal": metric([0.9 for _ in at]),
        "triage/live": metric([0.3 + 0.4 * f for f in fall]),
        "triage/too_easy": metric([0.1 for _ in at]),
        "triage/too_hard": metric([0.6 - 0.4 * f for f in fall]),
        f"{FIRST}a_metric_with_a_very_long_name_that_no_phone_is_wide_enough_for": metric(
            [0.0 for _ in at]
        ),
        "update/loss": metric([float(v) for v in rng.normal(0, 0.1, len(at))], 0.0, ""),
    }


def _charts() -> list[dict[str, Any]]:
    def chart(
        title: str, unit: str, series: list[tuple[str, str]], *guides: tuple[str, str], top: Any
    ) -> dict[str, Any]:
        lines = [[{"metric": m, "name": n} for m, n in one] for one in (series, guides)]
        identity = title.lower().replace(" ", "-")
        return {
            "id": identity,
            "title": title,
            "unit": unit,
            "floor": 0.0,
            "ceiling": top,
            "series": lines[0],
            "guides": lines[1],
            "about": "",
        }

    training = [("eval/success", "held out"), ("rollout/success", "training")]
    retrieval = [(f"{FIRST}retrieval_accuracy", "retrieval accuracy")]
    information = [(f"{FIRST}mi_estimate", "I(X;Z)")]
    entropy = [(f"{FIRST}conditional_entropy", "H(Z|X)")]
    return [
        chart("Success", "share", training, top=1.0),
        chart("Retrieval", "share", retrieval, (f"{FIRST}retrieval_chance", "chance"), top=1.0),
        chart(
            "Information", "nats per token", information, (f"{FIRST}mi_bound", "log P"), top=None
        ),
        chart("Entropy", "nats per token", entropy, top=None),
        chart(
            "Why prompts are flat",
            "share",
            [("triage/live", "live"), ("triage/too_easy", "easy"), ("triage/too_hard", "hard")],
            top=1.0,
        ),
        chart("Std over mean", "", [("reward/variance_std_over_mean", "Std/Mean")], top=None),
        chart("Kept", "share", [("filter/kept_ratio", "prompts")], top=1.0),
        chart("Never measured", "", [("none/such", "none")], top=None),
    ]


def _scores(rng: np.random.Generator, grounded: float, text: str) -> dict[str, Any]:
    owners = np.repeat(np.arange(8), 4)
    lengths = rng.integers(18, 30, 32)
    own = (owners[:, None] == np.arange(8)[None, :]) * grounded
    logp = (-2.0 + own + rng.normal(0, 0.05, (32, 8))) * lengths[:, None]
    rows = [[float(v) for v in row] for row in logp]
    rows[0][5] = None  # type: ignore[call-overload]
    room = "\n".join(ROOMS[0])
    return {
        "logp_NP": rows,
        "length_N": [int(v) for v in lengths],
        "owner_N": [int(v) for v in owners],
        "prompts": [
            {"label": f"seed {100 + p}", "text": text.format(f"Push the box.\nRoom {p}\n{room}")}
            for p in range(8)
        ],
        "traces": [
            {
                "label": f"seed {100 + owner}, play {n % 4}",
                "text": text.format(f"The box is near, so trace {n} goes up."),
                "action": text.format("Up || Left"),
            }
            for n, owner in enumerate(owners)
        ],
        "phrases": [
            {
                "text": text.format("the box is near"),
                "prompts": 8,
                "of": 8,
                "traces": 30,
                "of_traces": 32,
            }
        ],
        "nearest": [{"a": 0, "b": 9, "similarity": 0.97}],
        "nearest_about": "Share of words in the same order.",
    }


def _flow(step: int, turn: int) -> dict[str, Any]:
    def link(start: str, end: str, name: str, value: float | None, seen: bool | None) -> Any:
        ends = {"from": start, "to": end, "name": name, "metric": None, "value": value}
        return {
            **ends,
            "low": None,
            "high": None,
            "p": 0.004,
            "unit": "nats per token",
            "seen": seen,
        }

    return {
        "step": step,
        "turn": turn,
        "label": f"turn {turn}",
        "reading": "The prompt does not reach the reasoning.",
        "links": [
            link("X", "Z", "I(X;Z)", 0.02, False),
            link("Z", "A", "what the action loses after another prompt's reasoning", 0.31, True),
            link("X", "A", "past the reasoning", None, None),
        ],
    }


def _reward(at: list[int], rng: np.random.Generator, text: str) -> dict[str, Any]:
    steps = []
    for step in at:
        scores = [max(0.0, float(v)) for v in rng.normal(0.12, 0.15, 16)]
        kept = [v > 0.05 for v in scores]
        seeds = list(range(100, 116))
        steps.append({"step": step, "scores": scores, "kept": kept, "seeds": seeds, "labels": []})
    example = {
        "step": at[-1],
        "label": "too_hard",
        "name": "seed 104",
        "reason": "no play is solved, the expert's is",
        "examples": [text.format("rollout: Up, Up, Up: 0")],
    }
    return {"signal": "reward variance", "steps": steps, "triage": [example], "note": ""}


def _probe(step: int, rng: np.random.Generator) -> dict[str, Any]:
    buckets = [
        {
            "name": str(i),
            "variance": 0.05 * i,
            "prompts": 4,
            "snr": 0.8 + 0.3 * i,
            "norms": {"task": 0.1 * i, "centred": 0.09 * i, "kl": 0.05, "entropy": 0.07},
            "cosines": {"task_kl": 0.1},
        }
        for i in range(1, 7)
    ]
    prompts = [
        {"seed": 100 + i, "variance": v, "norm": 0.5 * math.sqrt(v), "bound": math.sqrt(v)}
        for i, v in enumerate(sorted(float(v) for v in rng.uniform(0, 0.3, 20)))
    ]
    return {
        "step": step,
        "text": "The task gradient grows with reward variance; KL and entropy are flat.",
        "readings": ["20 of 20 prompts are inside their bound"],
        "buckets": buckets,
        "prompts": prompts,
    }


def _board(room: tuple[str, ...]) -> dict[str, Any]:
    return {
        "text": "\n".join(room),
        "board": {"rows": [list(row) for row in room], "legend": SOKOBAN},
    }


def _turn(seen: dict[str, Any], text: str, **more: Any) -> dict[str, Any]:
    return {
        "seen": seen,
        "reasoning": text.format("I go round the box."),
        "actions": [text.format("Left"), "Up"],
        "fates": ["taken", "not taken"],
        "valid": True,
        "problem": "",
        "reward": -0.1,
        "penalty": 0.0,
        "raw": text.format("<think>I go round</think>"),
        **more,
    }


def _episode(text: str) -> dict[str, Any]:
    return {
        "label": "seed 100, play 0",
        "env": text.format("Sokoban"),
        "seed": 100,
        "luck": 0,
        "reward": 10.6,
        "solved": True,
        "stop": "done",
        "error": "",
        "kept": True,
        "system": text.format("Push every box onto a target."),
        "turns": [_turn(_board(room), text) for room in ROOMS[:-1]],
        "end": _board(ROOMS[-1]),
    }


def _search_episode(text: str) -> dict[str, Any]:
    page = {"text": text.format("Results:\n1. A page about <b>boxes</b>"), "board": None}
    return {
        **_episode(text),
        "label": "seed 101, play 0",
        "env": "SearchQA",
        "solved": False,
        "kept": False,
        "error": text.format("ValueError: no such page"),
        "turns": [_turn(page, text, valid=False, problem=text.format("no answer tag"))],
        "end": None,
    }
