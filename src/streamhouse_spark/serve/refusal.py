"""Rejection of a request."""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rejection of a request, with its HTTP status."""

    status: int
    text: str
    wait_s: int = 0
