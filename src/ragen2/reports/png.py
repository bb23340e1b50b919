"""Pictures as PNG bytes: enough of the format for RGB arrays, without an imaging library."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png_bytes(image: npt.NDArray[np.uint8]) -> bytes:
    """An RGB image (height x width x 3) as a PNG file's contents."""
    height, width, channels = image.shape
    if channels != 3 or image.dtype != np.uint8:
        raise ValueError(f"an image must be height x width x 3 bytes, got {image.shape}")
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    unfiltered = np.concatenate(
        [np.zeros((height, 1), dtype=np.uint8), image.reshape(height, width * 3)], axis=1
    )
    pixels = zlib.compress(unfiltered.tobytes(), 9)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)
