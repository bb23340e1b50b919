"""Indexes of texts: which of many fit a query best, by words (BM25) or by meaning (an encoder).

``TextIndex`` takes its scores from the library ``bm25s``; words are folded here (case, accents, stop
words), so that the same query finds the same texts, in the same order, whatever else is installed.
``DenseIndex`` compares embeddings. An encoder is named ``package:model``; the packages known are the keys
of ``ENCODERS``, to which a plug-in may add its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import re
import shutil
import tempfile
import threading
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen2.errors import ConfigError, DependencyError, EnvError
from ragen2.reading import read_json
from ragen2.runs.files import cache_root

Encode = Callable[[list[str]], Any]
"""Texts to one row of numbers each."""

K1 = 1.5
B = 0.75
"""BM25's term saturation and length normalisation, at the values ``bm25s`` ships with."""
MAX_QUERY_WORDS = 256
"""Words of a query that count; a longer one is a mistake or an attack: its cost must stay small."""
FORMAT = 1
"""Raise it when words are folded or files laid out in a new way: old caches are then left alone."""

_WORD = re.compile(r"\w+")
_STOP_TEXT = """
a an and are as at be been but by did do does for from had has have he her his how i if in into is
it its not of on or she that the their them then there these they this to was were what when where
which who whom whose will with"""
STOP_WORDS = frozenset(_STOP_TEXT.split())
_log = logging.getLogger(__name__)


class TextIndex:
    """A searchable sequence of texts; ``search`` answers with positions in that sequence."""

    def __init__(self, texts: Sequence[str]) -> None:
        vocabulary: dict[str, int] = {}
        ids = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in words(text)] for text in texts
        ]
        self._num_texts = len(ids)
        self._bm25 = _bm25s().BM25(k1=K1, b=B, method="lucene") if vocabulary else None
        if self._bm25 is not None:
            self._bm25.index((ids, vocabulary), create_empty_token=False, show_progress=False)

    def __len__(self) -> int:
        return self._num_texts

    def search(self, query: str, top: int) -> list[tuple[int, float]]:
        """The ``top`` best texts as (position, score), best first, equal scores by position.

        Only texts that share a word with the query are found, so the list may be short or empty.
        """
        if self._bm25 is None or top < 1:
            return []
        ids = self._bm25.get_tokens_ids(words(query)[:MAX_QUERY_WORDS])
        if not ids:
            return []
        return best(self._bm25.get_scores_from_ids(ids), top)

    def search_many(self, queries: Iterable[str], top: int) -> list[list[tuple[int, float]]]:
        """``search`` for each query."""
        return [self.search(query, top) for query in queries]

    def save(self, folder: Path) -> None:
        """Write the index as ``folder``, in place of what is there; readers see all or nothing."""
        _discard(folder)
        self._publish(folder)

    def _publish(self, folder: Path) -> None:
        """Write the index aside and move it to ``folder``, unless another process was faster."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            if self._bm25 is not None:
                self._bm25.save(scratch, show_progress=False)
            head = {"num_texts": self._num_texts, "has_words": self._bm25 is not None}
            (scratch / "index.json").write_text(json.dumps(head), encoding="utf-8")
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @classmethod
    def load(cls, folder: Path) -> TextIndex:
        """Read what ``save`` wrote; ``EnvError`` when that cannot be done."""
        try:
            head = read_json(folder / "index.json")
            index = cls(())
            index._num_texts = int(head["num_texts"])
            if head["has_words"]:
                index._bm25 = _bm25s().BM25.load(folder, show_progress=False)
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise EnvError(f"no text index in {folder} ({error}); delete that folder") from error
        return index

    @classmethod
    def cached(cls, texts: Sequence[str], root: Path | None = None) -> TextIndex:
        """The index of ``texts``, read from the cache when these very texts were indexed before."""
        folder = (root or cache_root()) / "text_index" / _digest(texts)
        is_damaged = False
        if folder.exists():
            try:
                return cls.load(folder)
            except EnvError as error:
                _log.warning("%s: building it again", error)
                is_damaged = True
        index = cls(texts)
        try:
            if is_damaged:
                _discard(folder)
            index._publish(folder)
        except OSError as error:
            _log.warning("the text index is not kept for next time: %s", error)
        return index


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


def words(text: str) -> list[str]:
    """The words of a text that count for search: lower case, no accents, no stop words."""
    folded = text.lower()
    if not folded.isascii():
        parts = unicodedata.normalize("NFKD", folded)
        folded = "".join(sign for sign in parts if not unicodedata.combining(sign))
    return [word for word in _WORD.findall(folded) if word not in STOP_WORDS]


def best(scores_N: npt.NDArray[Any], top: int) -> list[tuple[int, float]]:
    """Positions and values of the ``top`` greatest positive scores; equal ones by position."""
    found = np.flatnonzero(scores_N > 0)
    values = scores_N[found]
    if len(found) > top:
        # Everything that ties with the last place stays in until the stable sort has spoken.
        least = np.partition(values, len(values) - top)[len(values) - top]
        found, values = found[values >= least], values[values >= least]
    order = np.argsort(-values, kind="stable")[:top]
    return [(int(found[place]), float(values[place])) for place in order]


def load_encoder(name: str) -> Encode:
    """The encoder called ``package:model``, where the model is a folder or a hub id."""
    package, colon, model = name.partition(":")
    if not colon or package not in ENCODERS:
        known = ", ".join(f"{known}:MODEL" for known in sorted(ENCODERS))
        raise ConfigError(f"encoder {name!r} is not of the form package:model; known: {known}")
    return ENCODERS[package](model)


def _digest(texts: Sequence[str]) -> str:
    digest = hashlib.blake2b(f"{FORMAT} {_bm25s().__version__}".encode(), digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def _discard(folder: Path) -> None:
    """Remove a folder, if it is there; the name is free at once."""
    if folder.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        with contextlib.suppress(FileNotFoundError):  # another process may be discarding it too
            folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _bm25s() -> Any:
    try:
        module = importlib.import_module("bm25s")
    except ImportError as error:
        raise DependencyError("text search needs the package bm25s; pip install bm25s") from error
    # The library logs each call at DEBUG and switches its own logger to that level.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return module


def _sentence_transformer(model: str) -> Encode:
    _refuse_code(Path(model))
    encoder = _import("sentence_transformers").SentenceTransformer(model, trust_remote_code=False)
    return lambda texts: encoder.encode(texts, show_progress_bar=False)


def _refuse_code(folder: Path) -> None:
    """Raise where a folder brings Python: the library runs it, whatever it is told about remote code."""
    code = next(folder.rglob("*.py"), None) if folder.is_dir() else None
    if code is not None:
        raise EnvError(f"encoder {folder} brings code, {code}, which would be run; remove it")
    modules = folder / "modules.json"
    if not modules.is_file():
        return
    try:
        kinds = [str(one["type"]) for one in read_json(modules)]
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise EnvError(f"encoder {folder}: modules.json cannot be read: {error}") from error
    for kind in kinds:
        if not kind.startswith("sentence_transformers."):
            raise EnvError(f"encoder {folder} is built of {kind}, which is not part of the library")


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
