"""PNG files hold the pixels they were made of."""

import struct
import zlib

import numpy as np
import pytest

from ragen2.reports.png import SIGNATURE, png_bytes


def test_the_pixels_can_be_read_back():
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    data = png_bytes(image)
    assert data.startswith(SIGNATURE)
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert (width, height, depth, colour) == (7, 5, 8, 2)
    start = data.index(b"IDAT")
    length = struct.unpack(">I", data[start - 4 : start])[0]
    packed = data[start + 4 : start + 4 + length]
    assert struct.unpack(">I", data[start + 4 + length : start + 8 + length])[0] == zlib.crc32(
        b"IDAT" + packed
    )
    rows = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(5, 22)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, 1:].reshape(5, 7, 3) == image).all()


def test_a_picture_without_colour_is_refused():
    with pytest.raises(ValueError, match="height x width x 3 bytes"):
        png_bytes(np.zeros((2, 2, 1), dtype=np.uint8))
