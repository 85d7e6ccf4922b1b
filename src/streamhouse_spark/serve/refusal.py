"""Why a request is not answered."""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered, as HTTP says it."""

    status: int
    text: str
    wait_s: int = 0
