"""The kinds of changes that a table with a primary key logs."""

from __future__ import annotations

import enum


class ChangeType(enum.IntEnum):
    """The kinds of changes in a changelog. The numbers are the stored format."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3
