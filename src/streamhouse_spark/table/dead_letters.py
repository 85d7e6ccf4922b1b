"""Columns of dead-letter tables, for rows and events that could not be written."""

from __future__ import annotations

from typing import Final

DEAD_LETTERS: Final = "at TIMESTAMP, target STRING, reason STRING, position STRING, event STRING"
"""Time, target table, reason, position in the input, and the original row or event."""
