"""Rows in request and response bodies: JSON, JSON Lines, CSV and Arrow streams, and their validation.

The whole body is validated first. If that fails, it is halved recursively until every bad row is isolated. Valid bodies
are therefore validated once, and a few bad rows cost a few times as much.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.csv

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.expressions.check_constraints import require_constraints
from streamhouse_spark.expressions.generated_columns import fill_generated_columns
from streamhouse_spark.log.segments.metadata_columns import without_metadata
from streamhouse_spark.schema.column_defaults import evaluate_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.identity import reject_identity_values
from streamhouse_spark.schema.json_values import encode_row_texts, encode_values
from streamhouse_spark.schema.paimon_limits import check_paimon_values
from streamhouse_spark.schema.row_conversion import convert_rows
from streamhouse_spark.table.table import Table
from streamhouse_spark.write.file_readers import (
    CsvOptions,
    is_bytes,
    is_time,
    read_body,
    split_json_objects,
    to_json_lines,
)
from streamhouse_spark.write.untrusted_arrow import IpcLimits

JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
_MEDIA_TYPES: Final = (JSON, JSON_LINES, CSV, ARROW)
_LIMITS: Final = IpcLimits(rows=1 << 22, bytes=256 << 20)
_CHARSET: Final = re.compile(r"(?i)\bcharset\s*=\s*\"?([^\";\s]*)")
_CHARSETS: Final = ("utf-8", "utf8", "us-ascii")
_FORMATS: Final = {JSON_LINES: "json", CSV: "csv", ARROW: "arrow"}
BAD_ROWS_MAX: Final = 1_000
"""A body with more bad rows is rejected as a whole, because it probably has another format, or is for another table."""
REASON_CHARS_MAX: Final = 500
_EVENT_CHARS_MAX: Final = 64 << 10


def negotiate_format(header: str | None) -> str:
    """Return the first supported row format of an ``Accept`` header, JSON by default.

    Raises `InvalidOptionError` if the header names only unsupported formats.
    """
    names = [part.partition(";")[0].strip().casefold() for part in (header or "").split(",")]
    named = [name for name in names if name and name not in ("*/*", "application/*", "text/html")]
    supported = next((name for name in named if name in _MEDIA_TYPES), None)
    if named and supported is None:
        raise InvalidOptionError(
            f"row format {named[0][:60]} is not supported, expected one of {', '.join(_MEDIA_TYPES)}"
        )
    return supported or JSON


def parse_content_type(headers: Sequence[str]) -> str:
    """Return the row format in the values of the header ``Content-Type``.

    Raises `InvalidOptionError` unless there is exactly one header, with a supported type. HTML forms cannot send these
    types: browsers send a CORS preflight request first.
    """
    kind, _, parameters = (headers[0] if len(headers) == 1 else "").partition(";")
    kind, charset = kind.strip().casefold(), _CHARSET.search(parameters)
    if (
        kind not in _MEDIA_TYPES
        or "," in parameters
        or (charset is not None and charset[1].casefold() not in _CHARSETS)
    ):
        shown = " and ".join(repr(header[:60]) for header in headers[:3]) or "missing"
        raise InvalidOptionError(
            f"the Content-Type of the rows is {shown}, expected one of {', '.join(_MEDIA_TYPES)} in UTF-8",
            condition="UNSUPPORTED_MEDIA_TYPE",
        )
    return kind


def parse_rows(body: bytes, kind: str, rules: CsvOptions) -> pa.Table:
    """Parse the rows of a body, with strings cast to the table's types. Raises `SchemaMismatchError`."""
    lines = to_json_lines(body) if kind == JSON else body
    rows = read_body(lines, _FORMATS.get(kind, "json"), rules, _LIMITS)
    return without_metadata(rows, rules.schema.names if rules.schema is not None else ())


def write_rows(rows: pa.Table, kind: str) -> bytes:
    """Encode rows as a response body. Raises `InvalidOptionError` for values that the format does not support."""
    match kind:
        case "application/vnd.apache.arrow.stream":
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
            return sink.getvalue()
        case "text/csv":
            return write_csv(rows)
        case "application/x-ndjson":
            return "".join(f"{text}\n" for text in encode_row_texts(rows)).encode()
        case _:
            return f"[{','.join(encode_row_texts(rows))}]".encode()


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that the table rejects: its number in the body, counted from 0, the reason, and the text of the row."""

    row: int
    reason: str
    text: str

    def to_json(self) -> dict[str, object]:
        return {"row": self.row, "message": self.reason}


@dataclass(frozen=True, slots=True)
class ValidatedRows:
    """The rows of a body, divided into valid and rejected rows."""

    good: pa.Table | None
    """None if no row is valid."""
    bad: Sequence[RejectedRow]


@dataclass(frozen=True, slots=True)
class RowBody:
    """The rows of a body, whose ranges can be parsed separately."""

    num_rows: int
    read: Callable[[int, int], pa.Table]
    """Parses the rows ``[begin, end)``. Raises `SchemaMismatchError`."""
    text: Callable[[int], str]
    """Returns the text of a row."""


def parse_body(body: bytes, kind: str, rules: CsvOptions) -> RowBody:
    """Divide a body into rows. Raises `SchemaMismatchError` if that fails."""
    if kind == ARROW:
        rows = parse_rows(body, kind, rules)
        return RowBody(
            rows.num_rows,
            lambda begin, end: rows.slice(begin, end - begin),
            lambda row: next(encode_row_texts(rows.slice(row, 1))),
        )
    if kind == JSON:
        return _divide_lines(split_json_objects(body), rules)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise SchemaMismatchError(f"the body is not UTF-8: {error}; send text in UTF-8") from error
    if kind == CSV:
        return _divide_csv(text, rules)
    return _divide_lines([line for line in text.split("\n") if line.strip()], rules)


def _divide_lines(lines: Sequence[str], rules: CsvOptions) -> RowBody:
    def read(begin: int, end: int) -> pa.Table:
        return parse_rows("\n".join(lines[begin:end]).encode(), JSON_LINES, rules)

    return RowBody(len(lines), read, lines.__getitem__)


def _divide_csv(text: str, rules: CsvOptions) -> RowBody:
    """Divide CSV with column names in the first record."""
    lines = io.StringIO(text, newline="")
    try:
        ends = [lines.tell() for _ in csv.reader(iter(lines.readline, ""), strict=True)]
    except csv.Error as error:
        raise SchemaMismatchError(f"the body is not valid CSV: {error}; send a header and one line per row") from error
    header, *records = [text[begin:end] for begin, end in pairwise([0, *ends])] or [""]
    records = [record for record in records if record.strip()]
    if header and not header.endswith("\n"):
        header += "\n"

    def read(begin: int, end: int) -> pa.Table:
        return parse_rows((header + "".join(records[begin:end])).encode(), CSV, rules)

    return RowBody(len(records), read, lambda row: header + records[row].rstrip("\r\n"))


def validate_rows(table: Table, body: RowBody) -> ValidatedRows:
    """Validate rows against the latest columns and constraints of a table.

    Raises `SchemaMismatchError` with the first reason if more than `BAD_ROWS_MAX` rows are bad.
    """
    finder = _BadRowSearch(body, lambda rows: _require_valid(table, rows))
    finder.search(0, body.num_rows)
    numbers = [row.row for row in finder.bad]
    ends = [*numbers, body.num_rows]
    begins = [0, *(number + 1 for number in numbers)]
    good = [body.read(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
    state = table.state
    schema = evaluate_defaults(state.schema, StatementContext.of(table.world))
    fitted = [convert_rows(rows, schema, table=table.name, older=state.schemas)[0] for rows in good]
    return ValidatedRows(pa.concat_tables(fitted) if fitted else None, finder.bad)


def _require_valid(table: Table, rows: pa.Table) -> None:
    state = table.state
    schema = evaluate_defaults(state.schema, StatementContext.of(table.world))
    fitted, _ = convert_rows(rows, schema, table=table.name, older=state.schemas)
    reject_identity_values(state.parsed.identity, fitted, table.name)
    whole = fill_generated_columns(state.parsed.generated, fitted, table.name)
    require_constraints(state.parsed.checks, whole, table.name)
    check_paimon_values(table.name, {name: whole.column(name) for name in state.parsed.limited_columns})


@dataclass
class _BadRowSearch:
    body: RowBody
    require: Callable[[pa.Table], None]
    bad: list[RejectedRow] = field(default_factory=list)

    def search(self, begin: int, end: int) -> None:
        if begin == end:
            return
        try:
            self.require(self.body.read(begin, end))
        except SchemaMismatchError as error:
            if end - begin > 1:
                middle = (begin + end) // 2
                self.search(begin, middle)
                self.search(middle, end)
                return
            if len(self.bad) == BAD_ROWS_MAX:
                raise SchemaMismatchError(
                    f"more than {BAD_ROWS_MAX:,} of {self.body.num_rows:,} rows are invalid, and nothing was written; "
                    f"the first is row {self.bad[0].row}: {self.bad[0].reason}"
                ) from error
            reason, text = str(error)[:REASON_CHARS_MAX], self.body.text(begin)[:_EVENT_CHARS_MAX]
            self.bad.append(RejectedRow(begin, reason, text))


def parse_bad_rows(text: str | None, dead_letters: str | None) -> str:
    """Parse the policy for bad rows: ``refuse``, ``skip`` or ``dead-letter``. Raises `InvalidOptionError`."""
    policies = ("refuse", "skip", "dead-letter")
    policy = text or ("dead-letter" if dead_letters else "refuse")
    if policy not in policies:
        raise InvalidOptionError(f"bad_rows={policy[:60]!r}: expected {', '.join(policies)}")
    if (policy == "dead-letter") != bool(dead_letters):
        raise InvalidOptionError(
            "bad_rows=dead-letter and dead_letters=<database>.<table> require each other; set both, or neither"
        )
    return policy


def write_csv(rows: pa.Table) -> bytes:
    """Return rows as CSV with a header. Raises `InvalidOptionError` for types without a CSV form."""
    sink = io.BytesIO()
    for place, column in enumerate(rows.schema):
        if is_bytes(column.type) or is_time(column.type):
            values = encode_values(rows.column(place).combine_chunks())
            rows = rows.set_column(place, column.name, pa.array(values, pa.string()))
    try:
        pa.csv.write_csv(rows.combine_chunks(), sink)  # Arrow writes a header for an empty chunk
    except pa.ArrowException as error:
        raise InvalidOptionError(
            f"the rows cannot be written as CSV: {error}; select other columns (columns=), or another format "
            "(application/json)"
        ) from error
    return sink.getvalue()
