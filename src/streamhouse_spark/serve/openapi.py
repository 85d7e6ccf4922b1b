"""OpenAPI document of our own API."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from streamhouse_spark.serve.body_codecs import ARROW, CSV, JSON, JSON_LINES
from streamhouse_spark.serve.request_identity import IDEMPOTENCY_KEY, PRODUCER_ID, PRODUCER_SEQUENCE

_TABLE: Final = {
    "name": "table",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "example": "sales.orders",
}
_ROWS: Final = {
    JSON: {"schema": {"type": "array", "items": {"type": "object"}}},
    JSON_LINES: {"schema": {"type": "string"}},
    CSV: {"schema": {"type": "string"}},
    ARROW: {"schema": {"type": "string", "format": "binary"}},
}


def openapi() -> dict[str, Any]:
    """Return the document, in OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "streamhouse serve", "version": version("streamhouse-spark")},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": {
            "/api/v1/overview": {
                "get": _operation("All tables, with rows and lag; with a primary key these count changes (rows_unit).")
            },
            "/api/v1/tables": {"get": _operation("The names of all tables.")},
            "/api/v1/tables/{table}": {
                "get": _operation(
                    "A table's columns and keys, its last rounds and those that failed, and who reads and writes it.",
                    _TABLE,
                    _query("costs", "With any value: also an estimate of a month's requests and dollars."),
                )
            },
            "/api/v1/tables/{table}/rows": {
                "get": _operation(
                    "Some rows, hot and cold; a name such as orders$lake or orders$history shows that.",
                    _TABLE,
                    _query("where", "A condition, such as: amount > 5 AND customer = 'ann'"),
                    _query("columns", "Names with commas between them."),
                    _query("limit", "How many rows, 100 by default."),
                    answers=_ROWS,
                ),
                "post": {
                    **_operation(
                        "Write rows: all of them or none, durable when answered.",
                        _TABLE,
                        _query("mode", "append, upsert or delete; by default append, with a primary key upsert."),
                        _query("columns", "With upsert: only these columns and the key are in the rows."),
                        _query("bad_rows", "refuse (all rows or none), skip, or dead-letter."),
                        _query("dead_letters", "The table for rows that do not fit, such as sales.bad."),
                        _header(
                            IDEMPOTENCY_KEY,
                            "Any text that is new for each request, kept for 24 hours. A retry with the same key and "
                            "body gets the first answer and adds nothing.",
                            "8e03978e-40d5-43dd-bc93-6894a57f9324",
                        ),
                        _header(PRODUCER_ID, f"With {PRODUCER_SEQUENCE}, instead of {IDEMPOTENCY_KEY}.", "checkout-7"),
                        _header(PRODUCER_SEQUENCE, "Starts at 0 for each table and grows by one.", "42"),
                        errors={
                            "409": "The request is in flight, or the producer's sequence has a gap or a step back.",
                            "422": "The key, or the sequence number, belongs to a request with another body.",
                        },
                    ),
                    "requestBody": {"required": True, "content": _ROWS},
                },
            },
            "/api/v1/tables/{table}/lookup": {
                "get": _operation("The current row of a key, each column of it as a parameter.", _TABLE)
            },
            "/api/v1/tables/{table}/changes": {
                "get": _operation(
                    "Rows as they land, as server-sent events.",
                    _TABLE,
                    _query("from", "latest, earliest, or the id of an event."),
                    answers={"text/event-stream": {"schema": {"type": "string"}}},
                )
            },
        },
    }


def _query(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}


def _header(name: str, text: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": text, "schema": {"type": "string"}, "example": example}


def _operation(
    summary: str,
    *parameters: dict[str, Any],
    answers: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
) -> dict[str, Any]:
    content = answers or {JSON: {"schema": {"type": "object"}}}
    responses = {
        "200": {"description": "OK", "content": content},
        **{status: {"description": text} for status, text in (errors or {}).items()},
        "default": {"description": "An error, as JSON: 401, 403 and 429 besides those of the table."},
    }
    return {"summary": summary, "parameters": list(parameters), "responses": responses}
