"""Images as PNG bytes and back: enough of the format for flat RGB pictures, without an imaging library.

Boards have few colours, so they are written with a palette and as few bits a pixel as it takes; other
pictures as RGB. Only what is written here is read back.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from ragen2.types import PixelArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB, PALETTE = 2, 3
"""Colour types of the format."""
MOST_PIXELS = 2**28
"""A header that claims more is not believed."""


def png_bytes(image: PixelArray) -> bytes:
    """An RGB image (height x width x 3) as a PNG file's contents; equal pixels give equal bytes."""
    height, width, channels = image.shape
    if channels != 3 or image.dtype != np.uint8:
        raise ValueError(f"an image must be height x width x 3 bytes, got {image.shape}")
    red, green, blue = (image[..., channel].astype(np.uint32) for channel in range(3))
    pixels = red << 16 | green << 8 | blue
    colours = np.unique(pixels)
    if len(colours) > 256:
        return _file(width, height, 8, RGB, image.reshape(height, width * 3))
    bits = next(bits for bits in (1, 2, 4, 8) if len(colours) <= 2**bits)
    rows = _packed(np.searchsorted(colours, pixels).astype(np.uint8), bits)
    palette = colours.astype(">u4")[:, None].view(np.uint8)[:, 1:]
    return _file(width, height, bits, PALETTE, rows, _chunk(b"PLTE", palette.tobytes()))


def read_png(data: bytes) -> PixelArray:
    """The pixels of what ``png_bytes`` wrote; anything else is a ValueError that says what is wrong."""
    chunks = _chunks(data)
    names = [name for name, _ in chunks]
    if not names or names[0] != b"IHDR" or names[-1] != b"IEND" or b"IDAT" not in names:
        raise ValueError("it is cut short or not a PNG file")
    parts = dict(chunks)
    if len(parts[b"IHDR"]) != 13:
        raise ValueError("its header is damaged")
    width, height, bits, colour, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    is_ours = colour in (RGB, PALETTE) and rest == [0, 0, 0] and names.count(b"IDAT") == 1
    if not is_ours or not 0 < width * height <= MOST_PIXELS:
        raise ValueError("it is a PNG file of another sort than a run writes")
    columns = width * 3 if colour == RGB else -(-width * bits // 8)
    try:
        raw = zlib.decompressobj().decompress(parts[b"IDAT"], height * (columns + 1) + 1)
    except zlib.error as error:
        raise ValueError(f"its pixels are damaged: {error}") from error
    if len(raw) != height * (columns + 1) or any(raw[:: columns + 1]):
        raise ValueError("it is a PNG file of another sort than a run writes")
    rows = np.frombuffer(raw, np.uint8).reshape(height, columns + 1)[:, 1:]
    if colour == RGB:
        return rows.reshape(height, width, 3)
    palette = np.frombuffer(parts.get(b"PLTE", b""), np.uint8).reshape(-1, 3)
    index = _unpacked(rows, bits)[:, :width]
    if index.max() >= len(palette):
        raise ValueError("its palette is damaged")
    return palette[index]


def _packed(index: PixelArray, bits: int) -> PixelArray:
    """Several small numbers a byte, the first in its highest bits; rows end at whole bytes."""
    if bits == 8:
        return index
    each = np.unpackbits(index[..., None], axis=2)[..., -bits:]
    return np.packbits(each.reshape(len(index), -1), axis=1)


def _unpacked(rows: PixelArray, bits: int) -> PixelArray:
    if bits == 8:
        return rows
    each = np.unpackbits(rows, axis=1).reshape(len(rows), -1, bits)
    return np.packbits(np.pad(each, ((0, 0), (0, 0), (8 - bits, 0))), axis=2)[..., 0]


def _file(width: int, height: int, bits: int, colour: int, rows: PixelArray, *more: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    unfiltered = np.concatenate([np.zeros((height, 1), dtype=np.uint8), rows], axis=1)
    pixels = _chunk(b"IDAT", zlib.compress(unfiltered.tobytes(), 9))
    return b"".join([SIGNATURE, _chunk(b"IHDR", header), *more, pixels, _chunk(b"IEND", b"")])


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Names and contents of all whole chunks."""
    if not data.startswith(SIGNATURE):
        raise ValueError("it is not a PNG file")
    found, at = [], len(SIGNATURE)
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        checksum = data[at + 8 + length : at + 12 + length]
        if checksum != struct.pack(">I", zlib.crc32(name + content)):
            raise ValueError("it is damaged: a checksum is wrong")
        found.append((name, content))
        at += 12 + length
    return found
