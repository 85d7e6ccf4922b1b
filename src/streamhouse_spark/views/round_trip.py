"""Proof that a query which was parsed and printed again means what its text means to Spark.

A view that is kept by changes runs SQL that `views.ivm.delta_sql` prints from the parsed query. Spark analyses the text
and the printed query, and their canonical plans have to be equal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from streamhouse_spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def require_same_meaning(view: str, query: str, printed_query: str, written: DataFrame, printed: DataFrame) -> None:
    """Raise `InvalidOptionError` unless the text of a query and what is printed from its parsed form have equal plans.

    ``written`` is the analysed text, ``printed`` the analysed print, over the same relations.
    """
    if have_equal_plans(written, printed):
        return
    if not hasattr(written, "_jdf") and re.search(r"\bwith\b", query, re.IGNORECASE):
        raise InvalidOptionError(
            f"the query of {view} has WITH, and Spark Connect cannot compare plans of it; write subqueries in FROM, "
            "create the view by CALL streamhouse.system.materialize, or use mode='full'"
        )
    raise InvalidOptionError(
        f"the query of {view} cannot be kept: it is read as {_first_difference(query, printed_query)}, which Spark "
        "analyses differently; write this part otherwise, or use mode='full', which runs the text as it is"
    )


def have_equal_plans(left: DataFrame, right: DataFrame) -> bool:
    """Return whether Spark's analysed plans are equal, but for the ids of their expressions."""
    if not hasattr(left, "_jdf"):  # Spark Connect has no other comparison; it tells common table expressions apart
        return bool(left.sameSemantics(right))
    plans: list[Any] = [frame._jdf.queryExecution().normalized() for frame in (left, right)]  # noqa: SLF001 - of no API
    return bool(plans[0].sameResult(plans[1]))


def _first_difference(query: str, printed_query: str) -> str:
    """Return the words around the first difference of two texts of one query, without regard to case and layout."""
    words, printed_words = (text.replace("`", "").split() for text in (query, printed_query))
    pairs = zip(words, printed_words, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a.lower() != b.lower()), min(len(words), len(printed_words)))
    return " ".join(printed_words[max(place - 2, 0) : place + 6])
