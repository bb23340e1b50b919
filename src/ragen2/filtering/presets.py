"""The definitions of the filter that are in circulation, each under a name of its own.

They differ in what is ranked (variance or standard deviation), in how mass is counted (linear or softmax),
and in what happens to prompts without signal. On the same rewards they keep different prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"kind": "top_p", "signal": "reward_variance", "mass": 0.9},
    "ragen_main_table": {
        "kind": "top_p_softmax",
        "signal": "reward_std",
        "mass": 0.9,
        "include_zero": True,
    },
    "ragen_guide": {"kind": "top_p", "signal": "reward_std", "mass": 0.9, "eps": 0.01},
    "upstream_pr": {"kind": "top_p", "signal": "reward_variance", "ddof": 0, "mass": 0.9},
}
"""``paper``: linear mass of variance. ``ragen_main_table``: the released main-table script.
``ragen_guide``: what the released guide recommends. ``upstream_pr``: what the author proposed to other
frameworks, where ``ddof`` can be set."""


def resolve(data: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a filter whose ``kind`` may be a preset's name; what is given beside it wins."""
    preset = PRESETS.get(str(data.get("kind")).lower())
    if preset is None:
        return dict(data)
    return {**preset, **{name: value for name, value in data.items() if name != "kind"}}
