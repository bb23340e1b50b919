"""Readers: the index of log formats, most particular first."""

from __future__ import annotations

from ragen2.audit.readers import columns, own, ragen, trl, verifiers, verl
from ragen2.audit.readers.base import Reader, Row
from ragen2.audit.readers.columns import columns_reader, parse_columns

READERS = {
    one.name: one
    for one in (
        own.READER,
        verifiers.READER,
        ragen.READER,
        trl.READER,
        verl.READER,
        columns.READER,
    )
}


def detect(row: Row) -> Reader | None:
    """The first format that this row is of."""
    return next((reader for reader in READERS.values() if reader.matches(row)), None)


__all__ = ["READERS", "Reader", "Row", "columns_reader", "detect", "parse_columns"]
