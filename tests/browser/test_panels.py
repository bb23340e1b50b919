"""Every panel on made-up data: drawn, opened, stepped through."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Open, Opened
from made_up import made_up_compare, made_up_run, page_data

from ragen2.reports.page import render


@pytest.fixture
def opened(open_page: Open, made_up_page: Path) -> Opened:
    return open_page(made_up_page)


def test_every_chart_is_drawn_not_only_there(opened: Opened) -> None:
    drawn = opened.drawn()
    names = ("success", "retrieval", "entropy", "plane", "histogram", "std-over-mean", "kept")
    names += ("why-prompts-are-flat", "probe-norms", "probe-bound", "timings")
    assert {f"chart-r0-{name}" for name in names} <= drawn.keys()
    assert "chart-r0-never-measured" not in drawn
    assert min(drawn.values()) > 0, drawn


def test_the_verdict_comes_first_in_words_with_evidence_that_leads_to_its_curve(
    opened: Opened,
) -> None:
    page = opened.page
    first = page.locator("#content > section").first
    assert first.get_attribute("id") == "verdict"
    assert first.locator("h2").inner_text() == "Template collapse since step 30"
    told = first.locator(".told").all_inner_texts()
    assert told == ["How sure: 95% interval 0% to 8%.", "Next: Filter: --set filter.kind=top_p."]
    assert first.locator(".next code").inner_text() == "--set filter.kind=top_p"
    link = first.get_by_role("link", name="see the curve")
    assert page.locator(link.get_attribute("href")).count() == 1


def test_the_curve_shows_what_the_data_says(opened: Opened) -> None:
    opened.drawn()
    label = opened.page.locator("#chart-r0-retrieval .plot").get_attribute("aria-label")
    value = opened.evaluate(
        "JSON.parse(document.getElementById('report-data').textContent)"
        ".runs[0].metrics['collapse/first_turn/retrieval_accuracy'].values[60]"
    )
    assert label.endswith(f"to {value:.3f} at step 60.")


def test_a_band_lies_between_its_ends(opened: Opened) -> None:
    opened.drawn()
    low, height = opened.evaluate(
        "(() => { const all = ragen2Report.charts.find(c => c.spec.id === 'chart-r0-retrieval')"
        ".drawn.getOption().series; return all.slice(-2).map(one => one.data[60][1]); })()"
    )
    metric = opened.evaluate(
        "JSON.parse(document.getElementById('report-data').textContent)"
        ".runs[0].metrics['collapse/first_turn/retrieval_accuracy']"
    )
    assert low == pytest.approx(metric["low"][60])
    assert low + height == pytest.approx(metric["high"][60])


def test_a_cell_of_the_matrix_opens_the_trace_and_both_prompts(opened: Opened) -> None:
    opened.blocks_loaded()
    opened.page.locator('.cell[data-cell="5,6"]').click()
    drawer = opened.page.locator("dialog.drawer")
    assert "The box is near, so trace 5 goes up." in drawer.inner_text()
    prompts = drawer.locator(".pair pre").all_inner_texts()
    assert "Room 1" in prompts[0]  # trace 5 belongs to prompt 1
    assert "Room 6" in prompts[1]
    assert drawer.locator(".pair mark").first.inner_text() == "1"  # where the two differ
    assert "nats per token" in drawer.locator(".pair p").first.inner_text()
    opened.page.keyboard.press("Escape")
    opened.page.locator("dialog.drawer").wait_for(state="detached")
    focused = opened.evaluate("document.activeElement.dataset.cell")
    assert focused == "5,6"


def test_the_own_cell_opens_the_prompt_that_fits_as_well(opened: Opened) -> None:
    opened.blocks_loaded()
    logp = opened.evaluate(
        "[...document.querySelectorAll('.cell')].filter(c => c.dataset.cell.startsWith('9,'))"
        ".map(c => c.getAttribute('aria-label').match(/: (\\S+) nats/)[1])"
    )
    others = [(float(v.replace("−", "-")), p) for p, v in enumerate(logp) if p != 2]
    opened.page.locator('.cell[data-cell="9,2"]').click()
    prompts = opened.page.locator("dialog.drawer .pair pre").all_inner_texts()
    assert "Room 2" in prompts[0]
    assert f"Room {max(others)[1]}" in prompts[1]


def test_numbers_of_a_cell_are_the_blocks(opened: Opened) -> None:
    opened.blocks_loaded()
    block = made_up_run()[1]["r0-scores-60"]
    n, own, other = 5, 1, 6
    per_token = [block["logp_NP"][n][p] / block["length_N"][n] for p in (own, other)]
    opened.page.locator(f'.cell[data-cell="{n},{other}"]').click()
    drawer = opened.page.locator("dialog.drawer")
    told = [one.replace("−", "-") for one in drawer.locator(".pair p").all_inner_texts()[:2]]
    assert f"{per_token[0]:.3g} nats per token" in told[0]
    assert f"{per_token[1]:.3g} nats per token" in told[1]
    better, worse = ("its own prompt", "prompt 7")[:: 1 if per_token[0] > per_token[1] else -1]
    assert f"It fits {better} better than {worse}" in drawer.locator(".body > p").inner_text()


def test_a_row_is_a_hit_exactly_when_the_own_prompt_scores_best(opened: Opened) -> None:
    opened.blocks_loaded()
    block = made_up_run()[1]["r0-scores-60"]
    scores = [[-1e9 if v is None else v for v in row] for row in block["logp_NP"]]
    hits = sum(
        row.index(max(row)) == own for row, own in zip(scores, block["owner_N"], strict=True)
    )
    assert 0 < hits < 32
    assert opened.page.locator(".outcome:not(.miss)").count() == hits


def test_the_histogram_counts_every_prompt_once_and_zero_apart(opened: Opened) -> None:
    opened.drawn()
    step = made_up_run()[0]["reward"]["steps"][-1]
    option = "ragen2Report.charts.find(c => c.spec.id === 'chart-r0-histogram').drawn.getOption()"
    kept, dropped = opened.evaluate(f"{option}.series.map(one => one.data)")
    assert sum(kept) == sum(step["kept"])
    assert sum(dropped) == len(step["kept"]) - sum(step["kept"])
    assert dropped[0] == sum(score == 0.0 for score in step["scores"]) > 0
    opened.page.locator("#reward").get_by_role("button", name="All steps").click()
    kept, dropped = opened.evaluate(f"{option}.series.map(one => one.data)")
    assert sum(kept) + sum(dropped) == 60 * 16


def test_arrow_keys_walk_the_matrix_and_enter_opens(opened: Opened) -> None:
    opened.blocks_loaded()
    page = opened.page
    page.locator('.cell[data-cell="0,0"]').focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    assert opened.evaluate("document.activeElement.dataset.cell") == "0,2"
    page.keyboard.press("Enter")
    assert page.locator("dialog.drawer").count() == 1


def test_the_replay_steps_through_a_sokoban_episode_by_button_and_by_key(opened: Opened) -> None:
    opened.blocks_loaded()
    player = opened.page.locator(".player")
    board = player.locator("svg.board")
    assert player.locator(".stepper strong").inner_text() == "Turn 1 of 4"
    assert "you: row 4 column 3" in board.get_attribute("aria-label")
    player.get_by_role("button", name="Next turn").click()
    assert "you: row 4 column 2" in board.get_attribute("aria-label")
    player.focus()
    opened.page.keyboard.press("ArrowRight")
    assert player.locator(".stepper strong").inner_text() == "Turn 3 of 4"
    opened.page.keyboard.press("End")
    assert "box on target: row 2 column 5" in board.get_attribute("aria-label")
    opened.page.keyboard.press("ArrowRight")
    assert player.locator(".stepper strong").inner_text() == "The end"


def test_a_text_episode_is_shown_as_the_agent_saw_it(opened: Opened) -> None:
    opened.blocks_loaded()
    opened.page.get_by_role("button", name="seed 101, play 0").click()
    assert "A page about <b>boxes</b>" in opened.page.locator(".scene pre").first.inner_text()
    assert "invalid: no answer tag" in opened.page.locator(".acts").inner_text()


def test_any_metric_can_be_drawn(opened: Opened) -> None:
    page = opened.page
    page.get_by_label("Metric to add").select_option("update/loss")
    page.get_by_label("Metric to add").select_option("filter/kept_ratio")
    assert opened.drawn()["chart-r0-explorer"] > 0
    page.get_by_role("button", name="Remove update/loss").click()
    label = page.locator("#chart-r0-explorer .plot").get_attribute("aria-label")
    assert "filter/kept_ratio" in label
    assert "update/loss" not in label


def test_steps_can_be_zoomed_and_all_curves_follow(opened: Opened) -> None:
    opened.drawn()
    opened.page.get_by_label("from step").fill("20")
    opened.page.get_by_label("to step").fill("40")
    opened.page.get_by_label("to step").press("Enter")
    ends = opened.evaluate(
        "ragen2Report.charts.filter(c => c.spec.kind === 'curve' && c.drawn)"
        ".map(c => { const { min, max } = c.drawn.getOption().xAxis[0]; return [min, max]; })"
    )
    assert len(ends) > 3
    assert all(one == [20, 40] for one in ends)


def test_dragging_over_a_chart_zooms(opened: Opened) -> None:
    plot = opened.page.locator("#chart-r0-retrieval .plot")
    plot.scroll_into_view_if_needed()
    opened.drawn()
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    opened.page.mouse.move(box["x"] + 0.4 * box["width"], middle)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.7 * box["width"], middle, steps=5)
    opened.page.mouse.up()
    first, last = opened.evaluate("ragen2Report.state.range")
    assert 10 < first < 30 < last < 50


def test_numbers_of_a_chart_are_there_as_a_table(opened: Opened) -> None:
    opened.page.locator("#chart-r0-retrieval summary").click()
    rows = opened.page.locator("#chart-r0-retrieval tbody tr")
    rows.first.wait_for()
    assert rows.count() == 61
    assert rows.first.locator("td").nth(2).inner_text() == "0.125"


def test_a_new_object_is_drawn_and_choices_stay(opened: Opened) -> None:
    opened.blocks_loaded()
    page = opened.page
    page.get_by_label("measured at").first.select_option("0 first_turn")
    page.get_by_label("Metric to add").select_option("update/loss")
    opened.evaluate(
        """() => {
            const data = JSON.parse(document.getElementById('report-data').textContent);
            const run = data.runs[0];
            run.steps.push(61);
            Object.values(run.metrics).forEach(m => m.values.push(0.5));
            run.verdict.word = 'Healthy again';
            ragen2Report.update(data);
        }"""
    )
    assert page.locator("#verdict h2").inner_text() == "Healthy again"
    label = page.locator("#chart-r0-retrieval .plot").get_attribute("aria-label")
    assert label.endswith("to 0.5 at step 61.")
    assert page.get_by_label("measured at").first.input_value() == "0 first_turn"
    assert "chart-r0-explorer" in opened.drawn()


def test_what_rounding_leaves_of_nothing_is_shown_as_0(opened: Opened) -> None:
    opened.evaluate(
        """() => {
            const data = JSON.parse(document.getElementById('report-data').textContent);
            const run = data.runs[0];
            run.steps.push(61);
            Object.values(run.metrics).forEach(m => m.values.push(-8.3e-17));
            ragen2Report.update(data);
        }"""
    )
    assert "→ 0" in opened.page.locator("#verdict").inner_text()


def test_charts_and_blocks_are_made_when_they_are_needed(opened: Opened) -> None:
    opened.page.wait_for_selector("#chart-r0-plane svg")
    drawn = opened.evaluate("ragen2Report.charts.filter(one => one.drawn).map(one => one.spec.id)")
    assert "chart-r0-plane" in drawn
    assert "chart-r0-timings" not in drawn
    opened.page.locator("#timings").scroll_into_view_if_needed()
    opened.page.wait_for_selector("#chart-r0-timings svg")


def test_several_runs_are_compared_and_each_has_its_own_view(
    open_page: Open, tmp_path: Path
) -> None:
    made = [made_up_run("r0", "first"), made_up_run("r1", "second")]
    runs = [run for run, _ in made]
    path = tmp_path / "compare.html"
    data = page_data(runs, compare=made_up_compare(runs))
    path.write_text(render(data, made[0][1] | made[1][1]), encoding="utf-8")
    opened = open_page(path)
    drawn = opened.drawn()
    assert {f"chart-compare-{name}" for name in (0, 1, "plane", "correlation-0")} <= drawn.keys()
    assert min(drawn.values()) > 0, drawn
    opened.page.get_by_role("tab", name="second").click()
    assert "chart-r1-retrieval" in opened.drawn()
    opened.page.keyboard.press("ArrowLeft")
    assert opened.page.get_by_role("tab", name="first").get_attribute("aria-selected") == "true"
