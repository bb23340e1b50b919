"""Reward spread of a batch, in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics import Evidence, Reward, reward_spread


def spread(*groups: list[float]) -> dict[str, float]:
    return reward_spread([np.array(group) for group in groups])


def test_spread_of_a_live_and_a_dead_prompt():
    assert spread([0.0, 1.0], [1.0, 1.0]) == pytest.approx(
        {
            "mean": 0.75,
            "variance": 0.25,
            "std": np.sqrt(0.5) / 2,
            "dead_ratio": 0.5,
            "variance_std_over_mean": 1.0,
        }
    )


def test_prompts_of_equal_variance_have_ratio_zero():
    assert spread([0.0, 1.0], [2.0, 3.0])["variance_std_over_mean"] == 0.0


def test_the_ratio_does_not_depend_on_the_scale_of_rewards():
    small = spread([0.0, 1.0, 1.0], [0.0, 0.5, 0.0])
    large = spread([0.0, 11.0, 11.0], [0.0, 5.5, 0.0])
    assert small["variance_std_over_mean"] == pytest.approx(large["variance_std_over_mean"])


@pytest.mark.parametrize("groups", [([0.1, 0.1, 0.1],), ([0.1 + 0.2, 0.3],), ([1.0], [0.0])])
def test_without_any_variance_the_ratio_is_left_out(groups):
    found = spread(*groups)
    assert "variance_std_over_mean" not in found
    assert (found["variance"], found["std"], found["dead_ratio"]) == (0.0, 0.0, 1.0)


def test_groups_may_differ_in_size():
    found = spread([0.0, 1.0], [0.0, 0.0, 3.0], [5.0])
    assert found["variance"] == pytest.approx((0.5 + 3.0 + 0.0) / 3)
    assert found["mean"] == pytest.approx(9.0 / 6)


def test_the_diagnostic_names_its_numbers(group_of):
    found = Reward().measure(Evidence(1, [group_of([0.0, 1.0]), group_of([1.0, 1.0])]))
    assert found == pytest.approx(
        {f"reward/{name}": value for name, value in spread([0.0, 1.0], [1.0, 1.0]).items()}
    )
