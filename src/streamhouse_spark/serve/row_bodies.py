"""Rows in the bodies of requests and answers: JSON, JSON Lines, CSV and Arrow streams."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv

from streamhouse_spark.core.json_text import json_text
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.variant_values import readable_rows
from streamhouse_spark.write.arrow_input import ArrowLimits
from streamhouse_spark.write.row_files import TextRules, rows_of_body

JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
_KNOWN: Final = (JSON, JSON_LINES, CSV, ARROW)
_LIMITS: Final = ArrowLimits(rows=1 << 22, bytes=256 << 20)
_CHARSET: Final = re.compile(r"(?i)\bcharset\s*=\s*\"?([^\";\s]*)")
_CHARSETS: Final = ("utf-8", "utf8", "us-ascii")
_FORMATS: Final = {JSON_LINES: "json", CSV: "csv", ARROW: "arrow"}


def media_type(header: str | None) -> str:
    """Return the form of rows that an ``Accept`` header names first, JSON by default.

    Raises `InvalidOptionError` where it names none that is known.
    """
    names = [part.partition(";")[0].strip().casefold() for part in (header or "").split(",")]
    named = [name for name in names if name and name not in ("*/*", "application/*", "text/html")]
    known = next((name for name in named if name in _KNOWN), None)
    if named and known is None:
        raise InvalidOptionError(f"rows as {named[0][:60]} are not known here; use one of {', '.join(_KNOWN)}")
    return known or JSON


def body_type(headers: Sequence[str]) -> str:
    """Return the form of rows that the ``Content-Type`` of a body names.

    It must be named, alone, and be one that no HTML form can have: a browser asks this server before it sends a page's
    rows in such a type, and sends them at once in any other. Raises `InvalidOptionError`.
    """
    kind, _, parameters = (headers[0] if len(headers) == 1 else "").partition(";")
    kind, charset = kind.strip().casefold(), _CHARSET.search(parameters)
    if kind not in _KNOWN or "," in parameters or (charset is not None and charset[1].casefold() not in _CHARSETS):
        given = " and ".join(repr(one[:60]) for one in headers[:3]) or "missing"
        raise InvalidOptionError(
            f"the Content-Type of the rows is {given}; send one of {', '.join(_KNOWN)}, with texts in UTF-8",
            condition="UNSUPPORTED_MEDIA_TYPE",
        )
    return kind


def parsed_rows(body: bytes, kind: str, schema: pa.Schema) -> pa.Table:
    """Read the rows of a body. Texts become values of the table's types.

    Raises `SchemaMismatchError` for bytes that hold no rows of that form.
    """
    lines = _as_lines(body) if kind == JSON else body
    return rows_of_body(lines, _FORMATS.get(kind, "json"), TextRules(schema), _LIMITS)


def _as_lines(body: bytes) -> bytes:
    return "\n".join(json.dumps(row, separators=(",", ":")) for row in json_rows(body)).encode()


def json_rows(body: bytes) -> list[dict[str, Any]]:
    """Return an array of objects, or one object, as rows. Raises `SchemaMismatchError` for other JSON, and for none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"the body is no JSON: {error}; send an array of objects") from error
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise SchemaMismatchError('the body is JSON, and no rows; send an array of objects, such as [{"id": 1}]')
    return rows


def python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as Python has them. Raises `InvalidOptionError` for times that it cannot have, such as the year
    20000.
    """
    try:
        found = readable_rows(rows)
    except (OverflowError, ValueError) as error:
        raise InvalidOptionError(
            f"the rows have times beyond the years 1 to 9999, which have no form in JSON ({error}); ask for Arrow "
            f"(Accept: {ARROW})"
        ) from error
    return found


def written_rows(rows: pa.Table, kind: str) -> bytes:
    """Write rows as an answer. Raises `InvalidOptionError` for values that have no form of that kind."""
    sink = io.BytesIO()
    match kind:
        case "application/vnd.apache.arrow.stream":
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
        case "text/csv":
            try:
                pa.csv.write_csv(rows.combine_chunks(), sink)  # an empty chunk gets a header of its own
            except pa.ArrowException as error:
                raise InvalidOptionError(
                    f"the rows cannot be CSV: {error}; choose other columns (columns=), or another form ({JSON})"
                ) from error
        case "application/x-ndjson":
            return "".join(f"{json_text(row)}\n" for row in python_rows(rows)).encode()
        case _:
            return f"[{','.join(json_text(row) for row in python_rows(rows))}]".encode()
    return sink.getvalue()
