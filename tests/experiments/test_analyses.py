"""Every analysis on runs whose answer can be worked out by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from made_runs import run_of

from ragen2.experiments.analyses import ANALYSES, find_analysis
from ragen2.experiments.analyses import collapse as collapse_module
from ragen2.experiments.analyses import dynamics as chain_module
from ragen2.experiments.analyses import proxies as prompts_module
from ragen2.experiments.analyses.dynamics import falls_at, first_warning
from ragen2.experiments.analyses.reward_variance import find_pairs
from ragen2.experiments.cells import ENTROPY, MI, RETRIEVAL, SUCCESS, CellRun, Cells
from ragen2.experiments.intervals import Estimate
from ragen2.filtering import PRESETS
from ragen2.reports.load import Run
from ragen2.runs.scores import ScopeScores, ScoreRecord, write_scores

SEEDS = (0, 1, 2)


def jitter(seed: int) -> float:
    """Something that tells seeds apart and cancels in pairs."""
    return 0.01 * seed


def success(seed: int, best: float) -> dict[str, list[float]]:
    return {SUCCESS: [0.1, best + jitter(seed), 0.2]}


@pytest.mark.parametrize("name", sorted(ANALYSES))
def test_without_a_finished_run_an_analysis_has_empty_tables_and_no_claims(name):
    found = find_analysis(name)(Cells([]))
    assert list(found.claims) == []
    assert found.tables


def test_an_unknown_analysis_suggests_one():
    with pytest.raises(ValueError, match="did you mean 'noise'"):
        find_analysis("nose")


def test_main_table_pairs_seeds_and_averages_over_tasks_inside_them(cell_of, claims_of):
    best = {
        ("Lake", "none"): 0.3,
        ("Lake", "top_p"): 0.5,
        ("Box", "none"): 0.4,
        ("Box", "top_p"): 0.3,
    }
    cells = [
        cell_of(seed, success(seed, value), algorithm="ppo", task=task, filter=arm)
        for (task, arm), value in best.items()
        for seed in SEEDS
    ]
    cells += [
        cell_of(seed, success(seed, value), model="mini", algorithm="ppo", task="Lake", filter=arm)
        for arm, value in (("none", 0.2), ("top_p", 0.2))
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["main_table"], cells)
    assert found["gain/ppo/Lake"].value == pytest.approx(20.0)
    assert found["gain/ppo/Box"].value == pytest.approx(-10.0)
    assert found["gain/ppo/average"].value == pytest.approx(5.0)
    assert found["gain/mini/ppo/Lake"].value == pytest.approx(0.0)
    assert {one.num for one in found.values()} == {3}


def test_main_table_averages_algorithms_and_leaves_other_models_out(cell_of, claims_of):
    gains = {("", "ppo"): 0.3, ("", "grpo"): 0.1, ("mini", "ppo"): 0.0, ("vl", "ppo"): -0.2}
    cells = [
        cell_of(seed, success(seed, 0.4 + (gain if arm == "top_p" else 0.0)), **labels)
        for (model, algorithm), gain in gains.items()
        for arm in ("none", "top_p")
        for seed in SEEDS
        for labels in [
            {"task": "Lake", "filter": arm, "algorithm": algorithm}
            | ({"model": model} if model else {})
        ]
    ]
    found = claims_of(ANALYSES["main_table"], cells)
    assert found["gain/all/average"].value == pytest.approx(20.0)  # +30, +10
    seeing = [one for one in cells if one.has(model="vl")]
    found = claims_of(ANALYSES["main_table"], seeing)
    assert found["gain/all/average"].value == pytest.approx(-20.0)


def test_dynamics_finds_the_lead_of_mi_and_signs_of_changes(cell_of, claims_of):
    steps = np.arange(30)
    falls_early = np.where(steps < 6, 1.0, 0.2)
    falls_late = np.where(steps < 18, 0.8, 0.2)
    rng = np.random.default_rng(0)

    def curves(seed: int) -> dict[str, list[float]]:
        noise = 0.01 * rng.normal(size=(3, 30))
        return {
            MI: (falls_early + noise[0]).tolist(),
            "rollout/success": (falls_late + noise[1]).tolist(),
            ENTROPY: (np.linspace(1.0, 1.5, 30) + noise[2]).tolist(),
            "rollout/reasoning_tokens": np.linspace(40, 20, 30).tolist(),
            "warning/level": [0.0] * 9 + [1.0] * 21,
        }

    cells = [cell_of(seed, curves(seed), task="Lake", filter="none") for seed in SEEDS]
    found = claims_of(ANALYSES["dynamics"], cells)
    assert found["lead/Lake/none"].value == pytest.approx(12.0, abs=2.0)
    assert found["change/Lake/none/MI"].is_below
    assert found["change/Lake/none/H(Z|X)"].is_above
    assert found["change/Lake/none/reasoning"].value == pytest.approx(-18.3, abs=0.1)
    assert falls_at(cells[0].run, ENTROPY) is None
    assert first_warning(cells[0].run) == 9


def test_correlation_is_inside_tasks_with_the_right_signs(cell_of, claims_of):
    rng = np.random.default_rng(0)
    cells = []
    for task, offset in (("Lake", 0.0), ("Box", 5.0)):
        for seed in range(8):
            mi = offset + seed + 0.1 * rng.normal()
            curves = {MI: [mi] * 3, ENTROPY: [-mi] * 3, SUCCESS: [0.0, 0.1 * seed - offset]}
            cells.append(cell_of(seed, curves, task=task))
    cells += [dataclasses.replace(cells[0], labels={**cells[0].labels, "block": "another"})]
    found = claims_of(ANALYSES["correlation"], cells)
    assert found["rho/first_turn/mi_estimate"].value > 0.9
    assert found["rho/first_turn/conditional_entropy"].value < -0.9
    assert found["rho/first_turn/mi_estimate"].num == 2  # arms, each of eight seeds
    (table,) = ANALYSES["correlation"](Cells(cells)).tables
    assert table.rows[0][-2:] == (2, 16)  # a run of two cells is one run


def test_a_proxy_measured_twice_is_read_after_training_alone(cell_of, claims_of):
    """The trajectory scope has a measurement at step 1, before any update, and one at the last step."""
    cells = []
    for arm in range(12):
        before, after = [None, -100.0 * arm], [None] * 14 + [float(arm)]
        success = [0.0] * 16 + [0.01 * arm]
        curves = {"collapse/trajectory/mi_zscore": before + after, SUCCESS: success}
        cells.append(cell_of(0, curves, task="Lake", filter=f"arm{arm}"))
    assert claims_of(ANALYSES["correlation"], cells)["rho/trajectory/mi_zscore"].value == 1.0


def test_gradients_reads_norms_against_variance_bucket_by_bucket(cell_of, claims_of):
    def probe(seed: int) -> dict[str, list[float | None]]:
        found: dict[str, list[float | None]] = {}
        for bucket in range(1, 7):
            stem = f"probe/bucket_{bucket}/"
            found[f"{stem}variance"] = [None, 0.1 * bucket]
            found[f"{stem}centred_norm"] = [None, float(bucket) + jitter(seed)]
            found[f"{stem}task_norm"] = [None, 2.0]
            found[f"{stem}entropy_norm"] = [None, 7.0 - bucket]
        return found

    cells = [cell_of(seed, probe(seed), task="Box", algorithm="ppo") for seed in SEEDS]
    found = claims_of(ANALYSES["gradients"], cells)
    assert found["trend/Box/ppo/centred"].value == pytest.approx(1.0)
    assert found["trend/Box/ppo/entropy"].value == pytest.approx(-1.0)
    assert "trend/Box/ppo/task" not in found  # it never changes: no order
    assert "trend/Box/ppo/kl" not in found
    assert found["low_over_high/Box/ppo/entropy"].value == pytest.approx(6.0)
    assert found["low_over_high/Box/ppo/task"].value == pytest.approx(1.0)


def test_compute_tells_savings_in_percent_of_the_unfiltered_run(cell_of, claims_of):
    settings = {"rollout": {"prompts": 8, "group_size": 8}}
    cells = [
        cell_of(
            seed,
            {SUCCESS: [0.1, best, best], "update/tokens": [None, tokens, tokens]},
            settings,
            shape="large",
            filter=arm,
        )
        for arm, best, tokens in (("none", 0.3, 1000.0), ("top_p", 0.4, 600.0))
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["compute"], cells)
    assert found["tokens/large"].value == pytest.approx(-40.0)
    assert found["time/large"].value == pytest.approx(0.0)
    assert found["gain/large"].value == pytest.approx(10.0)


def test_quartiles_take_the_first_less_the_last_and_the_trend(cell_of, claims_of):
    cells = [
        cell_of(
            seed,
            {
                SUCCESS: [0.0, 0.5 - 0.1 * int(quartile) + jitter(seed), 0.1 / int(quartile)],
                MI: [0.0, 0.0, 1.0 / int(quartile)],
            },
            task="Box",
            quartile=quartile,
        )
        for quartile in "1234"
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["quartiles"], cells)
    assert found["first_less_last/Box/success"].value == pytest.approx(30.0)
    assert found["first_less_last/Box/success/end"].value == pytest.approx(7.5)
    assert found["first_less_last/Box/success/area"].value == pytest.approx(16.875)
    assert found["first_less_last/Box/mi"].value == pytest.approx(0.75)
    assert found["trend/Box/success"].value < -0.9


@pytest.mark.parametrize("missing", "14")
def test_quartiles_claim_nothing_where_a_planned_one_has_no_run(cell_of, claims_of, missing):
    cells = [
        cell_of(seed, success(seed, 0.1 * int(quartile)), task="Box", quartile=quartile)
        for quartile in "1234"
        for seed in SEEDS
    ]
    plan = [one.labels for one in cells]
    left = [one for one in cells if one.labels["quartile"] != missing]
    assert claims_of(ANALYSES["quartiles"], cells, plan=plan)
    assert claims_of(ANALYSES["quartiles"], left, plan=plan) == {}


def test_noise_tells_gains_by_luck_and_slip_and_their_trend(cell_of, claims_of):
    cells = []
    for luck, slope in (("shared", -0.2), ("own", 0.0)):
        for slip in ("0", "0.5", "1"):
            for seed in SEEDS:
                plain = 0.3 + jitter(seed)
                added = 0.2 + slope * float(slip) + 0.001 * seed
                for arm, best in (("none", plain), ("top_p", plain + added)):
                    labels = {"luck": luck, "env.slip": slip, "filter": arm}
                    name = "-".join([*labels.values(), str(seed)])
                    run = run_of({SUCCESS: [0.0, best], MI: [0.0, 0.0, 1.0 - float(slip)]})
                    cells.append(CellRun(labels, seed, name, run))
    found = claims_of(ANALYSES["noise"], cells)
    assert found["gain/shared/0/top_p"].value == pytest.approx(20.1)
    assert found["gain/shared/1/top_p"].value == pytest.approx(0.1)
    assert found["gain/own/1/top_p"].value == pytest.approx(20.1)
    assert found["trend/shared/top_p"].value < -0.9
    assert abs(found["trend/own/top_p"].value) < 0.5
    assert found["trend/shared/mi"].value == pytest.approx(-1.0)


def test_level_compares_prompts_with_trajectories(cell_of, claims_of):
    best = {"none": 0.2, "top_p": 0.5, "trajectory": 0.3}
    cells = [
        cell_of(seed, success(seed, value) | {MI: [0.0, 0.0, 10 * value]}, task="Box", filter=arm)
        for arm, value in best.items()
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["level"], cells)
    assert found["prompt_less_trajectory/Box/success"].value == pytest.approx(20.0)
    assert found["prompt_less_none/Box/success"].value == pytest.approx(30.0)
    assert found["trajectory_less_none/Box/mi"].value == pytest.approx(1.0)


def settings_of(
    kind: str, seed: int, env: str = "Lake", lr: float = 1.0, mass: float = 0.9
) -> dict[str, object]:
    return {
        "seed": seed,
        "filter": {"kind": kind, "mass": mass} if kind == "top_p" else {"kind": kind},
        "env": {"kind": env},
        "algorithm": {"kind": "grpo"},
        "learner": {"lr": lr},
    }


def pair(cell_of, seed: int, ratio: float, added: float, **more) -> list[CellRun]:
    return [
        cell_of(
            seed,
            {
                SUCCESS: [0.1, 0.2 + (added if kind == "top_p" else 0.0)],
                "reward/variance": [None, 1.0],
                "reward/variance_std_over_mean": [None, ratio],
            },
            settings_of(kind, seed, **more),
            lr=str(more),
            filter=kind,
        )
        for kind in ("keep_all", "top_p")
    ]


def test_predictor_pairs_runs_that_differ_in_their_filter_alone(cell_of, claims_of):
    runs = [
        *pair(cell_of, 0, 1.2, 0.3),
        *pair(cell_of, 1, 1.1, 0.2),
        *pair(cell_of, 0, 0.3, -0.1, lr=2.0),
        *pair(cell_of, 1, 0.4, 0.0, lr=2.0),
    ]
    alone = cell_of(0, {SUCCESS: [0.1, 0.9]}, settings_of("top_p", 7), filter="top_p")
    harder = cell_of(0, {SUCCESS: [0.1, 0.9]}, settings_of("top_p", 0, mass=0.4), filter="harder")
    other_rule = cell_of(0, {SUCCESS: [0.1, 0.9]}, settings_of("quantile", 0), filter="quantile")
    guide = settings_of("top_p", 0) | {"filter": PRESETS["ragen_guide"]}
    definition = cell_of(0, {SUCCESS: [0.1, 0.9]}, guide, filter="guide")
    found = find_pairs([*runs, alone, harder, other_rule, definition])
    assert [(one.ratio, round(one.gain, 6)) for one in found] == [
        (1.2, 30.0),
        (1.1, 20.0),
        (0.3, -10.0),
        (0.4, 0.0),
    ]
    claims = claims_of(ANALYSES["predictor"], runs[:4], runs[4:])
    assert claims["rho/pairs"].value == pytest.approx(1.0)
    assert claims["gain/high"].value == pytest.approx(25.0)
    assert claims["gain/low"].value == pytest.approx(-5.0)
    assert claims["rho/pairs"].num == 2, "seeds of a cell count once"


def test_predictor_takes_the_ratio_of_the_first_batch_or_none(cell_of):
    metrics = {
        SUCCESS: [0.1, 0.2, 0.3],
        "reward/variance": [None, 0.0, 1.0],
        "reward/variance_std_over_mean": [None, None, 1.5],
    }
    plain, filtered = (
        cell_of(0, metrics, settings_of(kind, 0), filter=kind) for kind in ("keep_all", "top_p")
    )
    assert find_pairs([plain, filtered]) == []


def test_predictor_pairs_runs_of_one_model_wherever_it_lies(cell_of):
    runs = pair(cell_of, 0, 1.2, 0.3)
    for one, folder in zip(runs, ("here", "there"), strict=True):
        one.run.settings["model"] = {"path": f"{folder}/models/Lake-0123"}
    assert len(find_pairs(runs)) == 1


def test_interventions_turn_a_filter_up_by_keeping_less(cell_of, claims_of):
    cells = []
    for seed in SEEDS:
        for coefficient in ("0", "0.01", "0.1"):
            x = float(coefficient)
            labels = {
                "block": "entropy bonus",
                "task": "Lake",
                "algorithm.entropy_coefficient": coefficient,
            }
            run = run_of(
                {
                    ENTROPY: [0.0, 0.0, x + 0.1 * jitter(seed)],
                    MI: [0.5] * 3,
                    SUCCESS: [0.2, 0.2],
                    "rollout/format_validity": [1.0] * 3,
                }
            )
            cells.append(CellRun(labels, seed, f"e{x}-{seed}", run))
        for mass in ("1", "0.9", "0.4"):
            labels = {"block": "filter", "task": "Lake", "filter.mass": mass}
            run = run_of(
                {
                    MI: [1.0 - float(mass)] * 3,
                    SUCCESS: [0.0, 1.0 - float(mass)],
                    "rollout/format_validity": [0.5] * 3,
                }
            )
            cells.append(CellRun(labels, seed, f"f{mass}-{seed}", run))
    found = claims_of(ANALYSES["interventions"], cells)
    assert found["trend/entropy bonus/entropy"].value > 0.9
    assert "trend/entropy bonus/mi" not in found  # it never moves
    assert found["trend/filter/mi"].value == pytest.approx(1.0)
    assert found["trend/filter/success"].value == pytest.approx(1.0)
    assert found["share/valid"].value == pytest.approx(0.5)


def test_definitions_take_dynamic_sampling_apart(cell_of, claims_of):
    best = {
        "none": 0.2,
        "top_p": 0.3,
        "nonzero": 0.25,
        "dynamic_sampling": 0.4,
        "top_p_resampled": 0.45,
    }
    cells = [
        cell_of(seed, success(seed, value), task=task, filter=arm)
        for arm, value in best.items()
        for task in ("Lake", "Box")
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["definitions"], cells)
    assert found["gain/average/top_p"].value == pytest.approx(10.0)
    assert found["part/rule"].value == pytest.approx(5.0)
    assert found["part/resampling of nonzero"].value == pytest.approx(15.0)
    assert found["part/SNR filter less dynamic sampling"].value == pytest.approx(-10.0)


def test_no_average_is_claimed_where_a_planned_task_or_algorithm_has_no_run(cell_of, claims_of):
    cells = [
        cell_of(seed, success(seed, best), algorithm=algorithm, task=task, filter=arm)
        for algorithm in ("ppo", "grpo")
        for task in ("Lake", "Box")
        for arm, best in (("none", 0.2), ("top_p", 0.3))
        for seed in SEEDS
    ]
    plan = [one.labels for one in cells]
    ppo = [one for one in cells if one.has(algorithm="ppo")]
    of_ppo = [one.labels for one in ppo]
    for analyse in (ANALYSES["main_table"], ANALYSES["definitions"]):
        whole = claims_of(analyse, ppo, plan=of_ppo)
        without_box = [one for one in ppo if one.has(task="Lake")]
        assert any("average" in name for name in whole)
        found = claims_of(analyse, without_box, plan=of_ppo)
        assert found
        assert not any("average" in name for name in found)
    found = claims_of(ANALYSES["main_table"], ppo, plan=plan)
    assert found["gain/ppo/average"].value == pytest.approx(10.0)
    assert "gain/all/average" not in found


def scored(folder: Path, prompts: int, grounded: float, seed: int) -> Run:
    """A run with a stored matrix: traces are ``grounded`` nats per token likelier under their own prompt."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(prompts), 2)
    logp = rng.normal(-20.0, 1.0, size=(len(owner), prompts))
    logp[np.arange(len(owner)), owner] += 10 * grounded
    texts = [""] * len(owner)
    scores = ScopeScores(
        name="probe", logp=logp.tolist(), length=[10] * len(owner), owner=owner.tolist(),
        prompts=[""] * prompts, prompt_labels=[""] * prompts, reasonings=texts, labels=texts,
        actions=texts, turn=[1] * len(owner), line=[None] * len(owner), num_traces=len(owner),
        num_prompts=prompts,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_scores(folder, ScoreRecord(step=5, scopes=[scores]))
    return Run(folder, {}, ())


def test_prompts_draws_batches_out_of_stored_scores(tmp_path, claims_of):
    cells = [
        CellRun({"task": "Lake"}, seed, str(seed), scored(tmp_path / str(seed), 64, 1.0, seed))
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["prompts"], cells)
    sizes = [found[f"spread/Lake/mi_estimate/{size}"].value for size in (2, 8, 32)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert "spread/Lake/mi_estimate/64" not in found  # more than half would overlap
    assert found["enough/Lake/retrieval_above_chance"].value in prompts_module.SIZES


def test_enough_is_the_size_from_which_on_the_spread_is_small():
    def at(value: float) -> Estimate:
        return Estimate(value, None, None, 1, "")

    points = [(2.0, at(0.05)), (4.0, at(0.2)), (8.0, at(0.1)), (16.0, at(0.01))]
    assert prompts_module.enough_size(points) == 8
    assert prompts_module.enough_size(points[:2]) is None


def test_turns_tells_the_change_by_position(cell_of, claims_of):
    def curves(seed: int, last: float) -> dict[str, list[float]]:
        return {
            MI: [1.0, 1.0, 1.0, 0.9, 0.9, 0.9],
            "collapse/turn_2/mi_estimate": [1.0, 1.0, 1.0, last, last, last],
            "collapse/trajectory/mi_estimate": [5.0] * 6,
        }

    cells = [
        cell_of(
            seed, curves(seed, 0.2 + jitter(seed)), task="Lake", turns="multi", regulariser="none"
        )
        for seed in SEEDS
    ]
    cells += [
        cell_of(seed, {MI: [1.0, 1.0, 0.5]}, task="Lake", turns="single", regulariser="none")
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["turns"], cells)
    assert found["change/Lake/multi/none/1"].value == pytest.approx(-0.1)
    assert found["change/Lake/multi/none/2"].value == pytest.approx(-0.79)
    assert found["last_less_first/Lake/multi/none"].value == pytest.approx(-0.69)
    assert found["multi_less_single/Lake/none"].value == pytest.approx(0.4)


def test_turns_compare_the_last_with_the_first_at_steps_that_have_both(cell_of, claims_of):
    """Both fall alike, from 1.0 by 0.1 a step; the second turn is looked at every other step."""
    falling = [1.0 - 0.1 * step for step in range(13)]
    curves = {
        MI: falling,
        "collapse/turn_2/mi_estimate": [
            None if step % 2 else value for step, value in enumerate(falling)
        ],
    }
    labels = {"task": "Lake", "turns": "multi", "regulariser": "none"}
    found = claims_of(ANALYSES["turns"], [cell_of(seed, curves, **labels) for seed in SEEDS])
    assert found["last_less_first/Lake/multi/none"].value == pytest.approx(0.0)
    assert found["change/Lake/multi/none/1"].value == pytest.approx(-0.95)


def test_rewards_chooses_rates_on_tuning_seeds_and_judges_on_others(cell_of, claims_of):
    cells = []
    for seed in SEEDS:
        for reward, added in (("dense", 0.2), ("binary", 0.05)):
            for arm, best in (("none", 0.3), ("top_p", 0.3 + added)):
                cells.append(
                    cell_of(seed, success(seed, best), block="reward", reward=reward, filter=arm)
                )
    # On the tuning seeds none does best at 1e-3, where it is worse on the others: that must not be seen.
    trained = {
        ("none", "0.001"): 0.9,
        ("none", "0.1"): 0.1,
        ("top_p", "0.001"): 0.1,
        ("top_p", "0.1"): 0.9,
    }
    judged = {
        ("none", "0.001"): 0.2,
        ("none", "0.1"): 0.8,
        ("top_p", "0.001"): 0.7,
        ("top_p", "0.1"): 0.5,
    }
    for (arm, rate), value in trained.items():
        labels = {"block": "tuning", "filter": arm, "learner.lr": rate}
        cells.append(
            CellRun(labels, 1000, f"t{arm}{rate}", run_of({"rollout/success": [value] * 3}))
        )
    for (arm, rate), value in judged.items():
        labels = {"block": "rates", "filter": arm, "learner.lr": rate}
        cells += [
            CellRun(labels, seed, f"{arm}{rate}{seed}", run_of(success(seed, value)))
            for seed in SEEDS
        ]
    found = claims_of(ANALYSES["rewards"], cells)
    assert found["gain/dense"].value == pytest.approx(20.0)
    assert found["dense_less_binary"].value == pytest.approx(15.0)
    assert found["tuned"].value == pytest.approx(30.0)  # 0.5 at 0.1 less 0.2 at 0.001
    assert {"tuned/end", "tuned/area", "gain/dense/end"} <= found.keys()
    chosen = ANALYSES["rewards"](Cells(cells)).tables[1].rows
    assert [row[-1] for row in chosen] == ["", *["yes, at the edge of the list"] * 2, ""]


def test_chain_tells_which_links_were_lost_and_when(cell_of, claims_of):
    swap, whole = (metric for _, metric, _ in chain_module.LINKS[1:])
    cells = [
        cell_of(
            seed,
            {
                RETRIEVAL: [0.8, 0.8, 0.1, 0.1],
                swap: [2.0, 2.0, 2.0, 1.9],
                whole: [1.0, 1.0, 1.0, 0.4],
            },
            filter="none",
        )
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["chain"], cells)
    assert found["change/none/input to reasoning"].value == pytest.approx(-0.7)
    assert found["change/none/reasoning to action"].value == pytest.approx(-0.1)
    assert chain_module.half_lost(Cells(cells), RETRIEVAL) == "3 of 3: 2, 2, 2"
    assert chain_module.half_lost(Cells(cells), swap) == "0 of 3"
    assert chain_module.half_lost(Cells(cells), whole) == "3 of 3: 3, 3, 3"


@pytest.mark.parametrize(
    ("retrieval", "entropy", "validity", "expected"),
    [
        ((0.8, 0.2), (1.0, 1.2), 0.97, True),
        ((0.8, 0.5), (1.0, 1.2), 0.97, False),  # not half of it is lost
        ((0.8, 0.2), (1.0, 0.5), 0.97, False),  # variety went too: another failure
        ((0.8, 0.2), (1.0, 1.2), 0.90, False),  # the format went
    ],
)
def test_a_run_has_collapsed_by_all_three_marks(retrieval, entropy, validity, expected):
    run = run_of(
        {
            RETRIEVAL: [retrieval[0]] * 3 + [retrieval[1]] * 3,
            ENTROPY: [entropy[0]] * 3 + [entropy[1]] * 3,
            "rollout/format_validity": [validity] * 6,
        }
    )
    assert collapse_module.is_collapsed(run) is expected


@pytest.mark.parametrize(
    ("values", "step"),
    [([0.1, 0.5, 0.4, 0.3, 0.1], 3), ([0.1, 0.5, 0.4], None), ([0.5, 0.1], None), ([0.2], None)],
)
def test_half_the_gain_is_lost_after_the_peak(values, step):
    assert collapse_module.half_gain_lost(run_of({SUCCESS: values})) == step


def test_collapse_counts_runs_and_what_the_filter_saved(cell_of, claims_of):
    def curves(end: float) -> dict[str, list[float]]:
        return {
            RETRIEVAL: [0.8] * 3 + [end] * 3,
            ENTROPY: [1.0] * 6,
            MI: [1.0] * 3 + [end] * 3,
            "rollout/format_validity": [1.0] * 6,
            SUCCESS: [0.0, end],
        }

    cells = [cell_of(seed, curves(0.1), task="FarLake", filter="none") for seed in SEEDS]
    cells += [cell_of(seed, curves(0.7), task="FarLake", filter="top_p") for seed in SEEDS]
    found = claims_of(ANALYSES["collapse"], cells)
    assert found["collapsed/none"].value == 1.0
    assert found["collapsed/top_p"].value == 0.0
    assert found["varied/none"].value == 1.0
    assert found["saved/top_p/retrieval above chance"].value == pytest.approx(0.6)
    assert found["change/none/MI"].value == pytest.approx(-0.9)
    assert found["rho/MI"].value == pytest.approx(1.0)
    assert "rho/H(Z|X)" not in found  # the same in all runs: nothing to rank


def test_arms_of_coefficients_are_analysed_each_by_itself(cell_of):
    cells = [
        cell_of(seed, success(seed, best), task="Box", filter=arm, coefficients=label)
        for label, gain in (("paper", 0.2), ("zero", 0.1))
        for arm, best in (("none", 0.3), ("top_p", 0.3 + gain))
        for seed in SEEDS
    ]
    found = find_analysis("main_table")(Cells(cells))
    claims = {claim.name: claim.estimate.value for claim in found.claims}
    assert claims["gain/all/Box"] == pytest.approx(20.0)
    assert claims["zero: gain/all/Box"] == pytest.approx(10.0)
    assert [table.title[-7:] for table in found.tables] == ["(paper)"] * 2 + [" (zero)"] * 2
    assert {figure.name for figure in found.figures} == {"gains-paper", "gains-zero"}
    assert len(found.notes) == 1


def test_the_summary_pairs_over_everything_else(cell_of, claims_of):
    cells = [
        cell_of(seed, success(seed, best), size=size, filter=arm)
        for size, arm, best in (("s", "a", 0.3), ("s", "b", 0.5), ("l", "a", 0.7), ("l", "b", 0.9))
        for seed in SEEDS
    ]
    found = claims_of(ANALYSES["summary"], cells)
    assert found["filter b less a"].value == pytest.approx(20.0)
    assert found["filter b less a"].num == 6
    assert found["size l less s"].value == pytest.approx(40.0)


def test_the_summary_has_a_row_for_every_cell_of_blocks_with_different_lists(cell_of):
    runs = [
        cell_of(0, success(0, 0.3), block="sizes", size="s"),
        cell_of(0, success(0, 0.4), block="rates", lr="0.1"),
        cell_of(0, success(0, 0.5), block="rates", lr="0.2"),
    ]
    found = ANALYSES["summary"](Cells(runs))
    table = found.tables[0]
    assert table.columns[:3] == ("block", "size", "lr")
    assert [row[:3] for row in table.rows] == [
        ("sizes", "s", "-"),
        ("rates", "-", "0.1"),
        ("rates", "-", "0.2"),
    ]
    less = "lr 0.2 less 0.1"
    assert [claim.name for claim in found.claims] == [less, f"{less}/end", f"{less}/area"]
    assert [row[0] for row in found.tables[1].rows] == [less]
