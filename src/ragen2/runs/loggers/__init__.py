"""Loggers: sinks that hand records on to TensorBoard, Weights & Biases, trackio or MLflow.

Nothing here imports one of those packages; the module of a logger does, and only once it is asked for.
"""

from ragen2.runs.loggers.base import (
    LOGGERS,
    LoggedRun,
    Logger,
    LoggerName,
    open_loggers,
    require_loggers,
)

__all__ = ["LOGGERS", "LoggedRun", "Logger", "LoggerName", "open_loggers", "require_loggers"]
