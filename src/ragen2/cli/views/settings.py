"""What ``--dry-run`` prints: a run file with what differs from the defaults, or with every setting."""

from __future__ import annotations

import tomli_w

from ragen2.config import RunConfig, changed_settings, count_settings, dump_config


def print_settings(config: RunConfig, *, full: bool, name: str = "") -> None:
    """A run file that gives the same run again, with comments above it; ``name`` is that of a job."""
    if name:
        print(f"# {name}")
    if full:
        print(dump_config(config), end="")
        return
    changed = changed_settings(config)
    everything = count_settings(config.model_dump(mode="json", exclude_none=True))
    rollout = config.rollout
    print(
        f"# {config.env.kind}, {config.algorithm.kind}, filter {config.filter.kind}, model "
        f"{config.model.path}: {config.steps} steps of {rollout.prompts} prompts x "
        f"{rollout.group_size} rollouts"
    )
    print(
        f"# {count_settings(changed)} of {everything} settings differ from their defaults; "
        "--full prints every one"
    )
    print(tomli_w.dumps(changed), end="")
