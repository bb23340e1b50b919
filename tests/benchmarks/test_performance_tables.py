"""The performance page shows what was measured, and nothing else."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

import performance_tables as script


def point(axis: str, value: object, rollout: float, update: float) -> dict[str, object]:
    return {
        "axis": axis,
        "value": value,
        "parameters": 4e6 if value == "large" else 1e6,
        "seconds_rollout": rollout,
        "seconds_update": update,
    }


def test_the_page_is_up_to_date_with_the_results():
    page = script.PAGE.read_text(encoding="utf-8")
    assert page == script.filled(page), "run python benchmarks/performance_tables.py"


def test_the_pictures_are_up_to_date():
    for label in script.labels("scaling"):
        found = json.loads((script.RESULTS / f"scaling_{label}.json").read_text())
        for number, row in enumerate(script.plots(found), start=1):
            saved = (script.IMAGES / script.picture_name(label, number)).read_text()
            assert saved == script.standalone(row), "run python benchmarks/performance_tables.py"


def test_the_plots_of_every_machine_are_linked(tmp_path):
    (tmp_path / "scaling_h200.json").write_text("{}")
    first, second = script.pictures(tmp_path).split("\n\n")
    assert first == (
        "![Seconds of rollout and update on one H200 over prompts, group_size, turns]"
        "(images/performance/scaling-h200-1.svg)"
    )
    assert second.endswith("over tokens, model](images/performance/scaling-h200-2.svg)")


def test_a_benchmark_without_results_says_so(tmp_path):
    page = script.filled(script.PAGE.read_text(encoding="utf-8"), tmp_path)
    assert page.count(f"-->\n{script.NOT_MEASURED}\n<!--") == len(script.TABLES) + 1


def test_a_page_without_a_place_for_a_table_is_an_error():
    with pytest.raises(ValueError, match="no place for rollout"):
        script.filled("# Performance")


def test_what_a_file_name_begins_with_names_the_machine(tmp_path):
    (tmp_path / "trl_h200_512.json").write_text("{}")
    (tmp_path / "trl_cpu.json").write_text("{}")
    (tmp_path / "trl_moon.json").write_text("{}")
    (tmp_path / "step_cpu.json").write_text("{}")
    labels = [label for label, _ in script.results("trl", tmp_path)]
    assert labels == ["2 CPU cores", "one H200", "moon"]


def test_the_rollout_table_divides_ours_by_theirs():
    ways = {"ours": {"tokens_per_second": 3000.0}, "generate": {"tokens_per_second": 1200.0}}
    one = {"model": "a/b", "dtype": "float32", "sequences": 8, "ways": ways}
    assert script.rollout_table([("here", one)]).splitlines()[1:] == [
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| here | b | ours (float32) | 8 | 3,000 | 1.0 |",
        "| here | b | generate (float32) | 8 | 1,200 | 2.5 |",
    ]


def test_the_trl_table_marks_the_fastest_way_and_names_one_that_fails():
    sides = {"theirs": {"seconds_a_token": 4e-5}, "ours": {"seconds_a_token": 1e-5}, "ratio": 4.0}
    ways = {"generate": sides, "continuous": {"failed": "RuntimeError: no"}}
    one = {"model": "tiny", "ways": ways, "fastest": "generate"}
    assert script.trl_table([("here", one)]).splitlines()[2:] == [
        "| here | tiny | **generate** | 40.0 | 10.0 | 4.0 |",
        "| here | tiny | continuous | - | - | does not run |",
    ]


def test_the_step_table_has_a_column_for_every_phase():
    one = {
        "model": "tiny",
        "seconds": 2.0,
        "phases": {"rollout": 1.5, "update": 0.5},
        "shares": {"rollout": 0.75, "update": 0.25},
        "sampled_tokens": 300.0,
        "trained_tokens": 200.0,
    }
    assert script.step_table([("here", one)]).splitlines() == [
        "| machine | model | seconds | rollout | update | sampled/s | trained/s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        "| here | tiny | 2.000 | 75.0% | 25.0% | 200 | 400 |",
    ]


def test_the_scaling_table_compares_the_last_value_with_the_first():
    points = [point("prompts", 2, 1.0, 2.0), point("prompts", 8, 3.0, 10.0)]
    points += [point("model", "small", 1.0, 1.0), point("model", "large", 2.0, 5.0)]
    assert script.scaling_table([("here", {"points": points})]).splitlines()[2:] == [
        "| here | prompts per step | 2 to 8 | 4 | 3.0 | 5.0 |",
        "| here | million parameters | 1 to 4 | 4 | 2.0 | 5.0 |",
    ]


def test_the_decode_table_shows_the_share_of_the_limit():
    one = {
        "model": "tiny",
        "points": [
            {
                "sequences": 128,
                "tokens_per_second": 90_000.0,
                "limit_tokens_per_second": 300_000.0,
                "share": 0.3,
            }
        ],
    }
    assert script.decode_table([("here", one)]).splitlines()[2:] == [
        "| here | tiny | 128 | 90,000 | 300,000 | 30% |"
    ]


def test_the_agreement_table_leaves_out_what_was_not_compared():
    gap = {"mean": 0.012, "largest": 0.3}
    greedy = {"equal_sequences": 127, "sequences": 128}
    base = {"model": "tiny", "dtype": "bfloat16", "logprob_gap": gap}
    found = [("here", {**base, "greedy": greedy}), ("there", {**base, "greedy": None})]
    assert script.agreement_table(found).splitlines()[2:] == [
        "| here | tiny | bfloat16 | 1.2e-02 | 3.0e-01 | 127 of 128 |",
        "| there | tiny | bfloat16 | 1.2e-02 | 3.0e-01 | - |",
    ]


def test_the_memory_table_says_whether_an_update_can_be_repeated():
    one = {"tokens": 32_768, "vocabulary": 49_152, "padding": 0.031, "seconds": 0.268}
    found = [
        ("a", {**one, "peak_gib": 4.84, "is_reproducible": True}),
        ("b", {**one, "peak_gib": None, "is_reproducible": False}),
    ]
    assert script.memory_table(found).splitlines()[2:] == [
        "| a | yes | 32,768 | 49,152 | 3.1% | 0.27 | 4.8 |",
        "| b | no | 32,768 | 49,152 | 3.1% | 0.27 | - |",
    ]


def test_plots_are_valid_pictures_of_all_settings():
    points = [point(axis, n, n, 2 * n) for axis in script.AXES for n in (1, 2, 4)]
    rows = script.plots({"points": points})
    assert [len(row) for row in rows] == [len(row) for row in script.ROWS]
    for row in rows:
        assert all(figure.draw for figure in row)
        ElementTree.fromstring(script.standalone(row))  # noqa: S314 - our own text


def test_the_lora_table_says_what_a_case_took_or_why_it_did_not_run():
    sizes = {
        "trained": "40,370,176",
        "seconds": 14.04,
        "peak_gib": 33.21,
        "peak_reserved_gib": 38.4,
    }
    cases = [
        {"case": "7B:lora", "card_gib": 40, **sizes},
        {"case": "3B:full", "card_gib": None, "error": "no end after 100 s"},
        {"case": "tiny:lora", **{**sizes, "peak_gib": None}},
    ]
    assert script.lora_table([("here", {"cases": cases})]).splitlines()[2:] == [
        "| here | 7B | lora | 40 | 40,370,176 | 14.0 | 33.2 | 38.4 |",
        "| here | 3B | full | - | no end after 100 s | - | - | - |",
        "| here | tiny | lora | - | 40,370,176 | 14.0 | - | - |",
    ]
