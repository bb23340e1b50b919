"""Images in the page: found by name in the run directory, within a budget, and missed in words."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from report_runs import FIRST, collapse_metrics, score_matrix

from ragen2.config import RunConfig, dump_config
from ragen2.envs import FrozenLake
from ragen2.errors import RunError
from ragen2.reports.data import episodes
from ragen2.reports.data.charts import charts_of
from ragen2.reports.data.episodes import Pictures, missing_images, replays_of, seen_of
from ragen2.reports.data.matrices import matrices_of
from ragen2.reports.load import load
from ragen2.runs.record import StepRecord
from ragen2.runs.scores import RowSource, ScopeScores
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import png_bytes, read_png
from ragen2.types import Group, Image, Message, Prompt, StopReason, Trajectory


def image(number: int) -> Image:
    return Image(np.full((4, 4, 3), 10 * number, np.uint8))


def uri(shown: Image) -> str:
    return "data:image/png;base64," + base64.b64encode(png_bytes(shown.pixels)).decode()


@pytest.fixture
def run(tmp_path, turn_of):
    """Two prompts of two turns each; prompt p is shown image p first, then 10 + p, then 20 + p."""
    path = tmp_path / "run"
    config = RunConfig(env=FrozenLake(observation="image"))
    made = RunDirectory.create(path, dump_config(config))
    groups = []
    for p in range(2):
        prompt = Prompt("FrozenLake", p, (Message("user", "Actions left 10", (image(p),)),))
        turns = (
            turn_of(images=(image(p),), observation="", shown_image=image(10 + p)),
            turn_of(images=(image(p), image(10 + p)), observation="", shown_image=image(20 + p)),
        )
        one = Trajectory(prompt, 0, turns, StopReason.DONE, solved=False)
        groups.append(Group(prompt, (one,)))
    made.save_rollouts(1, groups)
    matrix = score_matrix()
    sources = [
        RowSource(
            text="why",
            label="x",
            prompt="Actions left 10",
            prompt_label=f"seed {owner}",
            image=image(owner).digest,
        )
        for owner in matrix.owner_N.tolist()
    ]
    shown = [image(owner) for owner in matrix.owner_N.tolist()]
    made.save_scores(1, [ScopeScores.of("first_turn", matrix, sources, shown)])
    metrics = collapse_metrics() | {"reward/mean": 0.0}
    made.append(StepRecord(step=1, metrics=metrics, regime="grounded"))
    return path


def test_a_turn_shows_its_newest_image_and_the_end_the_last_one(run):
    (entry,), blocks, _ = replays_of(load(run), "r0")
    for p, episode in enumerate(blocks[entry["block"]]()["episodes"]):
        first, second = episode["turns"]
        assert first["seen"]["images"] == [uri(image(p))]
        assert second["seen"]["images"] == [uri(image(10 + p))]
        assert episode["end"]["images"] == [uri(image(20 + p))]
        assert "image_missing" not in first["seen"]


def test_a_prompt_of_a_matrix_comes_with_its_image(run):
    (entry,), blocks, _ = matrices_of(load(run), "r0")
    block = blocks[entry["block"]]()
    assert [prompt["images"] for prompt in block["prompts"]] == [[uri(image(p))] for p in range(4)]
    data = base64.b64decode(block["prompts"][2]["images"][0].partition(",")[2])
    assert np.array_equal(read_png(data), image(2).pixels)


def test_a_missing_image_is_said_where_it_would_be(run):
    (run / "images" / "step_000001.zip").unlink()
    (entry,), blocks, _ = replays_of(load(run), "r0")
    seen = blocks[entry["block"]]()["episodes"][0]["turns"][0]["seen"]
    assert (seen["images"], seen["image_missing"]) == ([], True)
    (matrix,), blocks, _ = matrices_of(load(run), "r0")
    assert blocks[matrix["block"]]()["prompts"][0]["image_missing"]


def test_missing_images_are_counted_in_one_line(run):
    assert missing_images(load(run)) == ""
    (run / "images" / "step_000001.zip").unlink()
    names = sorted(image(n).digest for n in (0, 1, 10, 11, 20, 21))
    assert missing_images(load(run)) == (
        f"6 of 6 images of {run} are missing from {run}/images, {names[0]}.png for one; put back the "
        "archives of their steps"
    )
    RunDirectory(run).images.save(1, [image(0), image(10)])
    assert missing_images(load(run)).startswith("4 of 6 images of ")


def test_a_damaged_archive_is_an_error(run):
    (run / "images" / "step_000001.zip").write_bytes(b"no archive")
    with pytest.raises(RunError, match="is damaged"):
        missing_images(load(run))


def test_a_block_holds_no_more_of_images_than_it_may(run, monkeypatch):
    whole = len(uri(image(0)))
    monkeypatch.setattr(episodes, "MOST_IMAGE_CHARACTERS", 2 * whole)
    found = Pictures(run)
    assert found.uri(image(0).digest) == uri(image(0))
    assert found.uri(image(1).digest) == uri(image(1))
    assert found.uri(image(10).digest) == ""


@pytest.mark.parametrize("named", [[], ["", None], ["../../secret"], ["a" * 31], [3], "text"])
def test_what_is_no_name_of_an_image_is_nothing(named):
    assert seen_of(named, pytest.fail) == {}


def test_pictures_in_the_file_itself_are_shown_as_they_are():
    found = seen_of(["data:image/png;base64,AA", "https://example.org/x.png"], lambda name: "")
    assert found == {"images": ["data:image/png;base64,AA"]}


def test_curves_of_what_the_image_tells(run):
    made = RunDirectory(run)
    names = ("first_turn/grounding", "turn_10/grounding", "turn_2/grounding", "first_turn/image_mi")
    metrics = {f"vision/{name}": 0.5 for name in names} | {f"{FIRST}num_traces": 4.0}
    made.append(StepRecord(step=2, metrics=metrics))
    charts = {chart.id: chart for chart in charts_of(load(run))}
    labels = [line.name for line in charts["grounding"].series]
    assert labels == ["turn 1", "turn 2", "turn 10"]
    assert "vision/first_turn/image_mi" in [
        line.metric for line in charts["image_information"].series
    ]
