"""Output of commands: results on stdout, as text or JSON; progress, remarks and logs on stderr."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.json_values import encode_row_texts, encode_rows, json_text, to_json_value

_PIPE_COLUMNS: Final = 100_000
"""Width of text that is not printed on a terminal, so that nothing is truncated."""
_LEFT_ALIGNED: Final = (pa.types.is_string, pa.types.is_nested, pa.types.is_boolean, pa.types.is_binary)
LOG_VARIABLE: Final = "STREAMHOUSE_LOG"
_OWN: Final = "streamhouse_"
"""Prefix of the extra attributes of our log records."""


class Output:
    """The two output streams of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @property
    def console(self) -> Console:
        """A console for results as text."""
        width = None if sys.stdout.isatty() else _PIPE_COLUMNS
        return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=not sys.stdout.isatty())

    def rows(self, rows: pa.Table, *, title: str | None = None) -> None:
        """Print rows as JSON Lines, or as a table."""
        if self.as_json:
            self.json_lines(rows)
        else:
            self.console.print(rich_table(rows, title=title))

    def json_lines(self, rows: pa.Table | pa.RecordBatch) -> None:
        for text in encode_row_texts(rows):
            click.echo(text)

    def document(self, value: Mapping[str, Any], render: Callable[[Console], None]) -> None:
        """Print one JSON document, or the text that ``render`` prints."""
        if self.as_json:
            click.echo(json_text(value))
        else:
            render(self.console)

    def sentence(self, value: Mapping[str, Any], text: str) -> None:
        """Print one JSON document, or one line of text."""
        self.document(value, lambda console: console.print(text, markup=False))

    def records(self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
        """Print rows of a schema, in which missing values are null."""
        self.rows(pa.Table.from_pylist(list(rows), schema=schema))

    def remark(self, text: str) -> None:
        """Print a message on stderr, if that is a terminal."""
        if sys.stderr.isatty():
            click.secho(text, err=True, dim=True)

    @contextmanager
    def spinner(self, text: str) -> Iterator[None]:
        """Show a spinner on stderr for work without countable parts, if that is a terminal."""
        with self.activity() as show:
            show(text)
            yield

    @contextmanager
    def activity(self) -> Iterator[Callable[[str | None], None]]:
        """Yield a function that shows the current work and its duration on stderr, if that is a terminal.

        Called with None, the function hides the work.
        """
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        console = Console(file=sys.stderr)
        with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as progress:

            def show(text: str | None) -> None:
                for task in progress.task_ids:
                    progress.remove_task(task)
                if text is not None:
                    progress.add_task(text, total=None)

            yield show

    def progress(self, unit: str) -> Progress:
        """Return a progress bar on stderr, which is disabled without a terminal."""
        console = Console(file=sys.stderr)
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            console=console,
            disable=not sys.stderr.isatty(),
            transient=True,
        )


def rich_table(rows: pa.Table, *, title: str | None = None) -> RichTable:
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in rows.schema:
        left = any(is_type(column.type) for is_type in _LEFT_ALIGNED)
        table.add_column(Text(column.name), justify="left" if left else "right", overflow="fold")
    for row in encode_rows(rows):
        table.add_row(
            *(Text(format_value(row[name]), style="dim" if row[name] is None else "") for name in rows.column_names)
        )
    return table


def format_value(value: Any) -> str:
    """Format a value as text: null as a word, nested values as JSON, times as ISO 8601."""
    plain = to_json_value(value)
    match plain:
        case None:
            return "null"
        case bool():
            return str(plain).lower()
        case str():
            return plain
        case float() | int():
            return str(plain)
    return json.dumps(plain, ensure_ascii=False)


def log_to_stderr() -> None:
    """Print log records on stderr: warnings as text, or with ``STREAMHOUSE_LOG=json`` INFO and above as JSON.

    Raises `InvalidOptionError` for an unknown value of the variable.
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
    """Prints messages on stderr, without tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        click.secho(record.getMessage(), err=True, fg="red")


class _JsonLines(_Lines):
    """Prints one JSON object per record: time, level, logger, message, and the record's extra attributes."""

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
