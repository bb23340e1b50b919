"""Boards that an agent is shown as images: every cell can be read off the pixels, nothing is told twice."""

import numpy as np
import pytest

from ragen2.envs import check_env, make
from ragen2.envs.frozen_lake import TILES as LAKE_TILES
from ragen2.envs.sokoban.env import TILES as ROOM_TILES
from ragen2.envs.toolkit.pixels import paint
from ragen2.errors import ConfigError, EnvError

GAMES = ["FrozenLake", "Sokoban"]


def _cells(pixels, px):
    """Each cell's pixels as bytes, row by row."""
    rows, columns = pixels.shape[0] // px, pixels.shape[1] // px
    return [
        [pixels[r * px : (r + 1) * px, c * px : (c + 1) * px].tobytes() for c in range(columns)]
        for r in range(rows)
    ]


def _read(pixels, px, tiles):
    """The board read back from its image, cell by cell."""
    known = {paint([[tile]], px).tobytes(): symbol for symbol, tile in tiles.items()}
    return ["".join(known[cell] for cell in row) for row in _cells(pixels, px)]


@pytest.mark.parametrize("observation", ["image", "image+text"])
@pytest.mark.parametrize("kind", GAMES)
def test_the_contract_holds_with_images(kind, observation):
    assert check_env(make(kind, observation=observation), seeds=range(4))


@pytest.mark.parametrize("px", [10, 14, 28])
def test_a_lake_can_be_read_from_its_pixels(px):
    seen, told = make("FrozenLake", observation="image", cell_px=px), make("FrozenLake")
    told = told.model_copy(update={"observation": "grid"})
    for seed in range(30):
        one, other = seen.start(seed, 0), told.start(seed, 0)
        for action in one.expert():
            one.step(action)
            other.step(action)
        assert _read(one.shown_image, px, LAKE_TILES) == other.observation.splitlines()


@pytest.mark.parametrize("px", [10, 14, 28])
def test_a_room_can_be_read_from_its_pixels(px):
    seen, told = make("Sokoban", observation="image", cell_px=px), make("Sokoban")
    told = told.model_copy(update={"observation": "grid"})
    tiles = {told.symbols[code]: tile for code, tile in ROOM_TILES.items()}
    for seed in range(10):
        one, other = seen.start(seed, 0), told.start(seed, 0)
        for action in one.expert():
            one.step(action)
            other.step(action)
        assert _read(one.shown_image, px, tiles) == other.observation.splitlines()


@pytest.mark.parametrize("kind", GAMES)
def test_a_cell_is_one_merged_patch_of_28_pixels_unless_told(kind):
    env = make(kind, observation="image")
    episode = env.start(0, 0)
    assert env.cell_px == 28
    assert episode.shown_image.shape == (28 * env.size, 28 * env.size, 3)
    assert np.array_equal(episode.shown_image, episode.image(28))
    assert make(kind, observation="image", cell_px=14).start(0, 0).shown_image.shape[0] == (
        14 * env.size
    )


@pytest.mark.parametrize("kind", GAMES)
def test_an_image_alone_comes_without_words(kind):
    assert make(kind, observation="image").start(0, 0).observation == ""


@pytest.mark.parametrize(("kind", "form"), [("FrozenLake", "coord"), ("Sokoban", "grid_coord")])
def test_image_and_text_has_the_words_of_the_default(kind, form):
    both, words = make(kind, observation="image+text"), make(kind, observation=form)
    assert both.start(0, 0).observation == words.start(0, 0).observation
    assert both.start(0, 0).shown_image is not None


@pytest.mark.parametrize("kind", GAMES)
def test_text_alone_comes_without_an_image(kind):
    env = make(kind)
    assert not env.shows_images
    assert env.start(0, 0).shown_image is None


@pytest.mark.parametrize("kind", GAMES)
def test_the_instruction_explains_the_image(kind):
    assert "The image shows you as" in make(kind, observation="image").instruction
    assert "(0,0)" in make(kind, observation="image").instruction.replace(", ", ",")
    assert "The image shows" not in make(kind).instruction
    assert "Legend" not in make(kind, observation="image").instruction


def test_an_image_too_large_says_what_to_change():
    with pytest.raises(ConfigError) as error:
        make("FrozenLake", observation="image", size=32, cell_px=200)
    assert str(error.value).endswith(
        "an image of 6400 x 6400 pixels is too large, its longer side may have 4096; set cell_px to "
        "128 or less"
    )
    with pytest.raises(ConfigError, match="an image of 4480 x 1400 pixels is too large"):
        make("Sokoban", observation="image", width=32, height=10, cell_px=140)
    assert make("FrozenLake", size=32, cell_px=200).cell_px == 200  # painted for nobody


def test_a_level_too_large_for_an_image_is_named(tmp_path):
    border = "#" * 40
    wide = [f"{border}\n#{row:<38}#\n{border}\n" for row in ("@$.", " @$.", "@ $.")]
    path = tmp_path / "levels.txt"
    path.write_text("".join(f"; {number}\n{level}\n" for number, level in enumerate(wide)))
    env = make("Sokoban", observation="image", levels=str(path), cell_px=128)
    with pytest.raises(
        EnvError, match="Sokoban level 0: an image of 5120 x 384 pixels is too large"
    ):
        env.start(0, 0)


@pytest.mark.parametrize("tiles", [LAKE_TILES, ROOM_TILES], ids=GAMES)
def test_no_two_tiles_look_alike_at_any_size_allowed(tiles):
    for px in range(10, 65):
        assert len({paint([[tile]], px).tobytes() for tile in tiles.values()}) == len(tiles)


@pytest.mark.parametrize("kind", ["FrozenLake", "Sokoban"])
def test_gauges_lie_on_the_edges_of_cells_and_only_where_asked_for(kind):
    plain, marked = (
        make(kind, observation="image", cell_gauges=on).start(0, 0).shown_image
        for on in (False, True)
    )
    changed = (plain != marked).any(axis=2)
    assert changed.any()
    inside = np.indices(changed.shape) % 28
    assert (inside[:, changed].min(axis=0) < 3).all()
