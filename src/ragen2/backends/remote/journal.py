"""Completions on disk as they arrive, so that an interrupted run asks for none of them twice.

A line is named after all that decides a completion: the random stream, the prompt and the sampling
settings. So the file serves any run; what was asked for differently is simply not found in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ragen2.errors import RunError
from ragen2.policy import ChatRequest, Request, SamplingParams
from ragen2.reading import parse_json, read_bytes
from ragen2.seeding import stream_key
from ragen2.types import Completion, Finish

JOURNAL_FILE = "completions.jsonl"


class Journal:
    """The completions of one model in one file; the first line names the model."""

    def __init__(self, file: Path, model: str) -> None:
        self.file = file
        self._known: dict[str, Completion] = {}
        if file.exists():
            self._read(model)
        else:
            self._append({"model": model})

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: str) -> Completion | None:
        """The completion of this name, if it is there."""
        return self._known.get(name)

    def add(self, name: str, completion: Completion) -> None:
        """Write a completion; it is in the file when this returns."""
        self._append(
            {
                "name": name,
                "ids": completion.ids_T.tolist(),
                "logprobs": completion.logprobs_T.tolist(),
                "text": completion.text,
                "finish": completion.finish.value,
            }
        )
        self._known[name] = completion

    def _read(self, model: str) -> None:
        """Take over all whole lines; the last one may have been cut by a crash and is removed."""
        try:
            data = read_bytes(self.file)
        except OSError as error:
            raise RunError(f"{self.file} cannot be read: {error.strerror}") from error
        whole = data[: data.rfind(b"\n") + 1]
        try:
            lines = enumerate(whole.splitlines(), 1)
            found = [_checked(parse_json(line), n) for n, line in lines] or [{"model": model}]
            self._known = {one["name"]: _completion(one) for one in found[1:]}
            name = found[0]["model"]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise RunError(
                f"{self.file} is damaged ({error!r}); remove it, or choose another --out"
            ) from error
        if name != model:
            raise RunError(
                f"{self.file} holds completions of the model {name}, not of {model}; choose another "
                "--out"
            )
        if len(whole) < len(data):
            try:
                os.truncate(self.file, len(whole))
            except OSError as error:
                raise RunError(f"{self.file} cannot be written: {error.strerror}") from error
        if not whole:
            self._append({"model": model})

    def _append(self, line: dict[str, Any]) -> None:
        text = json.dumps({**line, "digest": _digest(line)}, ensure_ascii=False)
        try:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise RunError(f"{self.file} cannot be written: {error.strerror}") from error


def _digest(line: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()[:16]


def _checked(line: dict[str, Any], number: int) -> dict[str, Any]:
    """A line as it was given; those of an older version have no digest."""
    if line.pop("digest", "") not in {"", _digest(line)}:
        raise ValueError(f"line {number} has changed")
    return line


def request_name(request: Request, params: SamplingParams) -> str:
    """A name that two requests share only if they ask for the same completion."""
    prompt = request.prompt_ids_T.astype(np.int64).tobytes().hex()
    return _name("completion", request.key, prompt, params)


def chat_name(request: ChatRequest, params: SamplingParams) -> str:
    """The same for a conversation."""
    prompt = json.dumps([[message.role, message.content] for message in request.messages])
    return _name("reply", request.key, prompt, params)


def _name(what: str, key: tuple[int | str, ...], prompt: str, params: SamplingParams) -> str:
    settings = json.dumps(asdict(params), sort_keys=True)
    return f"{stream_key(what, *key, prompt, settings):032x}"


def _completion(line: dict[str, Any]) -> Completion:
    return Completion(
        ids_T=np.array(line["ids"], dtype=np.int64),
        logprobs_T=np.array(line["logprobs"], dtype=np.float64),
        text=line["text"],
        finish=Finish(line["finish"]),
    )
