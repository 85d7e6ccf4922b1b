"""The rows that a changelog makes, each change checked against the row that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def folded(view: Any, key_names: Sequence[str] = ("dt", "id")) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What the changelog makes of nothing, where it holds every change; each change is checked on the way."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    before = None
    for row in view.to_arrow().to_pylist():
        kind, _, _ = row.pop("_change_type"), row.pop("_log_offset"), row.pop("_commit_timestamp")
        key = tuple(row[name] for name in key_names)
        if kind == "insert":
            assert key not in rows
            rows[key] = row
        elif kind == "delete":
            assert rows.pop(key) == row
        elif kind == "update_before":
            assert rows[key] == row
            before = key
        else:
            assert before == key
            rows[key] = row  # the same where the column that changed was dropped since
    return rows
