"""The change types in the log of a primary-key table."""

from __future__ import annotations

import enum


class ChangeType(enum.IntEnum):
    """The type of a change. The numbers are the stored format."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3
