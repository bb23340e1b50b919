"""PNG files hold the pixels they were made of."""

import io
import struct
import zlib

import numpy as np
import pytest

from ragen2.envs import make
from ragen2.runs.png import SIGNATURE, png_bytes, read_png


def test_the_pixels_can_be_read_back():
    image = np.random.default_rng(0).integers(0, 256, (50, 7, 3), dtype=np.uint8)
    data = png_bytes(image)
    assert data.startswith(SIGNATURE)
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert (width, height, depth, colour) == (7, 50, 8, 2)
    start = data.index(b"IDAT")
    length = struct.unpack(">I", data[start - 4 : start])[0]
    packed = data[start + 4 : start + 4 + length]
    assert struct.unpack(">I", data[start + 4 + length : start + 8 + length])[0] == zlib.crc32(
        b"IDAT" + packed
    )
    rows = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(50, 22)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, 1:].reshape(50, 7, 3) == image).all()


def test_a_picture_without_colour_is_refused():
    with pytest.raises(ValueError, match="height x width x 3 bytes"):
        png_bytes(np.zeros((2, 2, 1), dtype=np.uint8))


def _colours(count, size=(13, 11)):
    palette = np.random.default_rng(count).integers(0, 256, (count, 3), dtype=np.uint8)
    index = np.arange(size[0] * size[1]).reshape(size) % count
    return palette[index]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 143])
def test_images_of_any_number_of_colours_come_back(count):
    image = _colours(count)
    assert np.array_equal(read_png(png_bytes(image)), image)


def test_images_of_more_colours_than_a_palette_holds_come_back():
    image = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    assert np.array_equal(read_png(png_bytes(image)), image)


@pytest.mark.parametrize("count", [2, 16, 143, 1200])
def test_another_library_reads_the_same_pixels(count):
    pillow = pytest.importorskip("PIL.Image")
    image = _colours(count, (40, 31))
    opened = pillow.open(io.BytesIO(png_bytes(image))).convert("RGB")
    assert np.array_equal(np.asarray(opened), image)


@pytest.mark.parametrize(("kind", "most"), [("FrozenLake", 600), ("Sokoban", 1000)])
def test_a_board_takes_a_few_hundred_bytes(kind, most):
    sizes = [len(png_bytes(make(kind).start(seed, 0).image(28))) for seed in range(10)]
    assert max(sizes) < most


def _cut(data):
    return data[:-12]


def _flipped(data):
    place = data.index(b"IDAT") + 6
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


def _interlaced(data):
    header = data[16:28] + b"\x01"
    checksum = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return data[:16] + header + checksum + data[33:]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: b"GIF89a" + data, "not a PNG file"),
        (_cut, "cut short"),
        (_flipped, "a checksum is wrong"),
        (_interlaced, "of another sort than a run writes"),
    ],
)
def test_what_was_not_written_here_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        read_png(change(png_bytes(_colours(5))))
