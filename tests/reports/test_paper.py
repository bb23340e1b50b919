"""Every chart of a report as a file of its own."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from report_runs import audit_record, make_run, probe_record, run_of, scope_scores

from ragen2.errors import RunError
from ragen2.reports.data.probes import probe_entry
from ragen2.reports.load import as_run, load
from ragen2.reports.paper import (
    correlation_figure,
    histogram_figure,
    matrix_figure,
    probe_figures,
    run_figures,
    write_figures,
)


def drawn(figure):
    canvas = Canvas()
    axes = canvas.subplots()
    figure.draw(axes)
    return axes


def test_a_run_has_its_charts_its_plane_its_matrix_and_its_histogram(tmp_path):
    run = load(make_run(tmp_path / "run"))
    names = [one.name for one in run_figures(run)]
    assert names[:2] == ["success", "grounded"]
    assert {"regime_plane", "retrieval_matrix", "variance_histogram"} <= set(names)
    written = write_figures([run], tmp_path / "out" / "figures", "svg")
    assert [path.name for path in written] == [f"{name}.svg" for name in names]
    for path in written:
        ElementTree.parse(path)  # noqa: S314 - our own file


def test_several_runs_are_also_drawn_together(tmp_path):
    runs = [load(make_run(tmp_path / name)) for name in ("a b", "../c".strip("./"))]
    names = {path.name for path in write_figures(runs, tmp_path / "figures", "svg")}
    assert {"a_b-success.svg", "c-success.svg", "compare-success.svg"} <= names
    assert {"compare-regime_plane.svg", "compare-correlations.svg"} <= names


def test_a_run_without_steps_has_no_figures(tmp_path):
    assert write_figures([run_of()], tmp_path / "figures", "png") == []


def test_an_audit_has_figures_too(tmp_path):
    names = {one.name for one in run_figures(as_run(audit_record(), tmp_path))}
    assert {"retrieval", "information", "regime_plane"} <= names


def test_the_matrix_is_per_token_less_each_rows_mean_and_marks_own_prompts():
    scores = scope_scores()
    axes = drawn(matrix_figure(scores, 3))
    shown = np.asarray(axes.images[0].get_array())
    order = np.argsort(scores.owner, kind="stable")
    expected = np.array(scores.logp)[order] / 10.0
    assert shown == pytest.approx(expected - expected.mean(1, keepdims=True))
    (marks,) = axes.lines
    assert list(marks.get_xdata()) == sorted(scores.owner)


def test_the_histogram_tells_kept_prompts_from_the_others():
    axes = drawn(histogram_figure([0.0, 0.0, 1.0], [False, False, True], 1))
    kept, left = (
        [patch.get_height() for patch in container.patches] for container in axes.containers
    )
    assert (kept[-1], sum(kept)) == (1, 1)
    assert (left[0], sum(left)) == (2, 2)


def test_every_prompt_of_a_probe_is_drawn_under_its_bound_and_the_whole_batch_is_no_bucket():
    norms, bounds = probe_figures(probe_entry(probe_record()))
    lines = drawn(norms).lines
    assert [line.get_label() for line in lines] == ["as trained", "centred", "KL", "entropy"]
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3]] * 4
    rings, _, dots = drawn(bounds).lines
    assert list(dots.get_ydata()) == [0.0, 2.0, 4.0, 6.0]
    assert list(rings.get_ydata()) == [0.0, 5.0, 10.0, 15.0]
    assert list(dots.get_xdata()) == pytest.approx([0.0, 0.2, 0.08**0.5, 0.12**0.5])


def test_a_correlation_names_its_number_and_each_run():
    found = {
        "name": "I(X;Z) and success",
        "rho": 0.5,
        "p": 0.25,
        "x_unit": "nats per token",
        "points": [{"run": "r0", "step": 1, "x": 0.1, "y": 0.2}],
    }
    figure = correlation_figure(found, ["one", "two"])
    assert figure.title == "I(X;Z) and success: Spearman +0.50 (p 0.25)"
    axes = drawn(figure)
    assert axes.get_xlabel() == "I(X;Z), nats per token"
    assert len({line.get_marker() for line in axes.lines}) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"--figures .*file.* cannot be written: "):
        write_figures([run_of()], tmp_path / "file" / "inside", "svg")
