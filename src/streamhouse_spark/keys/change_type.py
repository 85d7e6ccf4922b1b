"""The kinds of changes that a table with a primary key logs."""

from __future__ import annotations

import enum


class ChangeType(enum.IntEnum):
    """How a changelog stores what happened to a row. The numbers are the format."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3
