"""Tables of rows and events that could not be written: their columns."""

from __future__ import annotations

from typing import Final

DEAD_LETTERS: Final = "at TIMESTAMP, target STRING, reason STRING, position STRING, event STRING"
"""Time, the table that was meant, the reason, the position among what was sent, and the row or event as it came."""
