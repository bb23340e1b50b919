"""Filter a batch of rewards from any trainer: no model, no torch, no run file.

Run it with `python examples/02_filter_a_batch.py`.
"""

from ragen2.filtering import select
from ragen2.types import Selection

REWARDS = {
    "too easy": [1, 1, 1, 1],
    "too hard": [0, 0, 0, 0],
    "even odds": [0, 1, 1, 0],
    "one in four": [0, 0, 0, 1],
    "a small group": [0, 1],
}


def show(title: str, selection: Selection) -> None:
    print(f"\n{title}: keeps {selection.kept_ratio:.0%} of the prompts")
    for name, score, kept in zip(REWARDS, selection.scores_P, selection.kept_P, strict=True):
        print(f"  {name:<14} signal {score:.3f}  {'kept' if kept else '-'}")


def main() -> None:
    groups = list(REWARDS.values())
    show("top_p, 90% of the variance", select(groups, kind="top_p", mass=0.9))
    show("top_p, half of it", select(groups, kind="top_p", mass=0.5))
    show("top_p by std", select(groups, kind="top_p", mass=0.9, signal="reward_std"))
    show("keep_all", select(groups, kind="keep_all"))

    nothing = select([[1, 1], [0, 0]])
    print(f"\na batch without signal keeps {nothing.kept_P.sum()} prompts: {nothing.reason}")


if __name__ == "__main__":
    main()
