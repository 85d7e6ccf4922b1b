"""Rows in request and response bodies: JSON, JSON Lines, CSV and Arrow streams."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.segments.metadata_columns import without_metadata
from streamhouse_spark.schema.json_values import encode_row_texts
from streamhouse_spark.write.csv_rows import write_csv
from streamhouse_spark.write.file_readers import CsvOptions, read_body
from streamhouse_spark.write.json_lines import json_lines
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


def media_type(header: str | None) -> str:
    """Return the first supported row format of an ``Accept`` header, JSON by default.

    Raises `InvalidOptionError` if the header names only unsupported formats.
    """
    names = [part.partition(";")[0].strip().casefold() for part in (header or "").split(",")]
    named = [name for name in names if name and name not in ("*/*", "application/*", "text/html")]
    supported = next((name for name in named if name in _MEDIA_TYPES), None)
    if named and supported is None:
        raise InvalidOptionError(
            f"the row format {named[0][:60]} is not supported; use one of {', '.join(_MEDIA_TYPES)}"
        )
    return supported or JSON


def body_type(headers: Sequence[str]) -> str:
    """Return the row format that the ``Content-Type`` of a body names.

    Exactly one such header is required, with a type that no HTML form can send: browsers send a CORS preflight request
    for these types, but not for form types. Raises `InvalidOptionError`.
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
            f"the Content-Type of the rows is {shown}; send one of {', '.join(_MEDIA_TYPES)}, with texts in UTF-8",
            condition="UNSUPPORTED_MEDIA_TYPE",
        )
    return kind


def parse_rows(body: bytes, kind: str, rules: CsvOptions) -> pa.Table:
    """Parse the rows of a body, with texts cast to the table's types.

    Raises `SchemaMismatchError` for bytes that are not rows of that format.
    """
    lines = json_lines(body) if kind == JSON else body
    rows = read_body(lines, _FORMATS.get(kind, "json"), rules, _LIMITS)
    return without_metadata(rows, rules.schema.names if rules.schema is not None else ())


def write_rows(rows: pa.Table, kind: str) -> bytes:
    """Encode rows as a response body. Raises `InvalidOptionError` for values that the format cannot express."""
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
