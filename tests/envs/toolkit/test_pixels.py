"""Boards are painted crisply: flat colours, exact sizes, the same picture at every scale."""

import numpy as np
import pytest

from ragen2.envs.toolkit.pixels import Mark, crate, figure, ground, paint, with_gauges
from ragen2.errors import EnvError

RED, BLUE = (200, 0, 0), (0, 0, 200)


def _colours(pixels):
    return {tuple(colour) for colour in pixels.reshape(-1, 3).tolist()}


def test_a_board_has_rows_times_columns_cells():
    pixels = paint([[ground(RED, BLUE)] * 3] * 2, 10)
    assert pixels.shape == (20, 30, 3)
    assert pixels.dtype == np.uint8


def test_only_the_colours_of_the_marks_appear():
    tile = (*ground(RED, BLUE), *crate((1, 2, 3), (4, 5, 6)))
    for cell_pixels in (1, 7, 28, 101):
        assert _colours(paint([[tile]], cell_pixels)) <= {RED, BLUE, (1, 2, 3), (4, 5, 6)}


def test_later_marks_cover_earlier_ones():
    assert _colours(paint([[(Mark("rect", RED), Mark("rect", BLUE))]], 8)) == {BLUE}


@pytest.mark.parametrize(
    ("shape", "area"), [("rect", 1.0), ("disc", np.pi / 4), ("diamond", 0.5), ("cross", 7 / 16)]
)
def test_shapes_have_their_area(shape, area):
    pixels = paint([[(Mark(shape, RED),)]], 400)
    covered = (pixels[..., 0] == RED[0]).mean()
    assert covered == pytest.approx(area, abs=0.01)


def test_a_picture_is_symmetric_where_its_marks_are():
    pixels = paint([[(*ground(RED, BLUE), *figure((9, 9, 9)))]], 28)
    assert np.array_equal(pixels, pixels[:, ::-1])


def test_painting_on_a_picture_does_not_change_the_next_one():
    board = [[ground(RED, BLUE)]]
    first = paint(board, 6)
    first[:] = 0
    assert RED in _colours(paint(board, 6))


@pytest.mark.parametrize("cell_pixels", [0, -3, 5000])
def test_a_senseless_cell_size_is_refused(cell_pixels):
    with pytest.raises(EnvError, match=f"cell_pixels must be from 1 to 1024, got {cell_pixels}"):
        paint([[ground(RED, BLUE)]], cell_pixels)


def test_gauges_tell_all_cells_of_a_board_apart():
    plain = ((Mark("rect", (9, 9, 9)),),) * 4
    pixels = paint(with_gauges([plain, plain, plain]), 28)
    cells = pixels.reshape(3, 28, 4, 28, 3).swapaxes(1, 2).reshape(12, -1)
    assert len({cell.tobytes() for cell in cells}) == 12
    assert (cells[0] == 9).all()  # top left has none


def test_gauges_grow_with_row_and_column():
    pixels = paint(with_gauges([[(Mark("rect", (9, 9, 9)),)] * 4] * 4), 30)
    dark = pixels[..., 0] == 40
    assert [int(dark[30 * row + 5 : 30 * row + 30, 0].sum()) for row in range(4)] == [0, 5, 15, 25]
    assert [int(dark[0, 30 * at + 5 : 30 * at + 30].sum()) for at in range(4)] == [0, 5, 15, 25]
