"""Log of long-running commands: text lines, or one JSON object per line with ``STREAMHOUSE_LOG=json``."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
from typing import Final

import click

from streamhouse_spark.errors import InvalidOptionError

LOG_VARIABLE: Final = "STREAMHOUSE_LOG"
_OWN: Final = "streamhouse_"
"""Prefix of the extra attributes of our log records."""


def log_to_stderr() -> None:
    """Send log records to stderr: warnings as text, or with ``STREAMHOUSE_LOG=json`` INFO and above as JSON.

    Raises `InvalidOptionError` for any other value of the variable.
    """
    form = os.environ.get(LOG_VARIABLE, "text")
    if form not in ("text", "json"):
        raise InvalidOptionError(f"{LOG_VARIABLE} is {form[:40]!r}, expected text or json")
    root = logging.getLogger("streamhouse_spark")
    for handler in [h for h in root.handlers if isinstance(h, _Lines)]:
        root.removeHandler(handler)
    root.addHandler(_JsonLines() if form == "json" else _TextLines())
    root.setLevel(logging.INFO if form == "json" else logging.WARNING)


class _Lines(logging.Handler):
    pass


class _TextLines(_Lines):
    """Messages on stderr, without tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        click.secho(record.getMessage(), err=True, fg="red")


class _JsonLines(_Lines):
    """One JSON object per record: time, level, logger, message, and the record's extra attributes."""

    def emit(self, record: logging.LogRecord) -> None:
        at = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        value = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        value |= {k.removeprefix(_OWN): v for k, v in vars(record).items() if k.startswith(_OWN)}
        click.echo(json.dumps(value, ensure_ascii=False, default=str), err=True)
