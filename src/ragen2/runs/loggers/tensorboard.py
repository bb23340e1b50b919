"""Records for TensorBoard, as event files in the run directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ragen2.runs.loggers.base import LoggedRun, Logger, flat_settings

FOLDER = "tensorboard"


class TensorBoardLogger(Logger):
    """Numbers as scalars, notes and settings as text."""

    failures: ClassVar[tuple[type[Exception], ...]] = (OSError,)

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        self._writer = EventFileWriter(str(run.folder / FOLDER))
        if run.is_continued:
            # TensorBoard forgets what older files of the folder have of this step and of later ones.
            start = SessionLog(status=SessionLog.START)
            self._add(Event(step=run.next_step, session_log=start))
        else:
            rows = "".join(f"| {name} | {value} |\n" for name, value in flat_settings(run.settings))
            table = f"| setting | value |\n|---|---|\n{rows}"
            self._add(Event(step=0, summary=Summary(value=[_text("settings", table)])))

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """One event with all of the step in it, on disk at once."""
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        words = [_text(name, text) for name, text in texts.items()]
        self._add(Event(step=step, summary=Summary(value=[*scalars, *words])))
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Event files say nothing about how a run ended."""
        del failed
        self._writer.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.add_event(event)


def _text(tag: str, text: str) -> Summary.Value:
    """A value that TensorBoard shows under Text, as Markdown."""
    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
    return Summary.Value(tag=tag, metadata=plugin, tensor=tensor)
