"""Write a filter in one file and use it from a run file, with no other edit.

Run it with `python examples/06_write_a_filter.py`. In a run file, name the file under `plugins`.
"""

import tomllib
from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.config import RunConfig, parse_config
from ragen2.errors import ConfigError
from ragen2.filtering import Filter, select
from ragen2.types import BoolArray, FloatArray


class AboveMedian(Filter):
    """Keep prompts whose signal is well above the batch median, whatever the scale of the rewards."""

    kind: Literal["above_median"] = "above_median"
    margin: float = Field(
        0.0, ge=0.0, description="how far above the median, in units of the signal"
    )

    def keep(self, scores_P: FloatArray) -> BoolArray:
        return scores_P > np.median(scores_P) + self.margin


RUN_FILE = """
steps = 10

[filter]
kind = "above_median"
margin = 0.01
"""


def main() -> None:
    rewards = [[0, 1, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]]
    selection = select(rewards, kind="above_median")
    print(f"scores {selection.scores_P.round(3)}, kept {selection.kept_P}")

    config = parse_config(RunConfig, tomllib.loads(RUN_FILE))
    print(f"the run file gives {config.filter!r}")

    try:
        parse_config(RunConfig, {"filter": {"kind": "above_medium", "margin": 0.1}})
    except ConfigError as error:
        print(f"a typo is answered: {error}")
    try:
        select(rewards, kind="above_median", margin=-1)
    except ConfigError as error:
        print(f"and so is a bad value: {error}")


if __name__ == "__main__":
    main()
