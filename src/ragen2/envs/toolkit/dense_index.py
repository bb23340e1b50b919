"""DenseIndex: which of many texts are nearest in meaning to a query, by an encoder of your choice.

An encoder is named ``package:model``; the packages known are the keys of ``ENCODERS``, to which a
plug-in may add its own.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen2.errors import ConfigError, DependencyError, EnvError

Encode = Callable[[list[str]], Any]
"""Texts to one row of numbers each."""


class DenseIndex:
    """The same questions as ``TextIndex`` answers, by cosine similarity of embeddings."""

    def __init__(self, texts: Sequence[str], encode: Encode) -> None:
        self._encode = encode
        self._lock = threading.Lock()
        self._rows_ND = self._unit_rows(list(texts))

    def __len__(self) -> int:
        return len(self._rows_ND)

    def search(self, query: str, top: int) -> list[tuple[int, float]]:
        """The ``top`` nearest texts as (position, cosine), best first, equal ones by position."""
        return self.search_many([query], top)[0]

    def search_many(self, queries: Sequence[str], top: int) -> list[list[tuple[int, float]]]:
        """``search`` for each query, encoded in one go."""
        if not queries or not len(self):
            return [[] for _ in queries]
        cosines_QN = self._unit_rows(list(queries)) @ self._rows_ND.T
        order_QN = np.argsort(-cosines_QN, axis=1, kind="stable")[:, : max(top, 0)]
        return [
            [(int(place), float(cosines_N[place])) for place in order_N]
            for cosines_N, order_N in zip(cosines_QN, order_QN, strict=True)
        ]

    def _unit_rows(self, texts: list[str]) -> npt.NDArray[np.float32]:
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        with self._lock:  # tokenizers of encoders are not made for several threads at once
            rows_ND: npt.NDArray[np.float32] = np.array(self._encode(texts), dtype=np.float32)
        if rows_ND.ndim != 2 or len(rows_ND) != len(texts):
            raise EnvError(
                f"the encoder gave an array of shape {rows_ND.shape} for {len(texts)} texts; "
                "it must give one row each"
            )
        norms_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
        rows_ND /= np.maximum(norms_N1, 1e-12)
        return rows_ND


def load_encoder(name: str) -> Encode:
    """The encoder called ``package:model``, where the model is a folder or a hub id."""
    package, colon, model = name.partition(":")
    if not colon or package not in ENCODERS:
        known = ", ".join(f"{known}:MODEL" for known in sorted(ENCODERS))
        raise ConfigError(f"encoder {name!r} is not of the form package:model; known: {known}")
    return ENCODERS[package](model)


def _sentence_transformer(model: str) -> Encode:
    encoder = _import("sentence_transformers").SentenceTransformer(model)
    return lambda texts: encoder.encode(texts, show_progress_bar=False)


def _static_model(model: str) -> Encode:
    encoder = _import("model2vec").StaticModel.from_pretrained(model)
    encode: Encode = encoder.encode
    return encode


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DependencyError(
            f"this encoder needs the package {package}; pip install {package.replace('_', '-')}, "
            "or set retriever to bm25"
        ) from error


ENCODERS: dict[str, Callable[[str], Encode]] = {
    "sentence_transformers": _sentence_transformer,
    "model2vec": _static_model,
}
"""How to load a model of each package."""
