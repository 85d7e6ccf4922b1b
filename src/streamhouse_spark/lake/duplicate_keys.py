"""Duplicates in the lake of a primary-key table: more than one live row of a key.

Only other engines add them. A round removes them when their key changes; compaction removes all of a bucket and
partition. Both count them and continue.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def warn_of_duplicates(table: str, healed_rows: int) -> None:
    """Log the number of removed duplicates, if any."""
    if healed_rows:
        logger.warning(
            "the lake table of %s had primary keys with several rows, which only other engines add: %d rows were "
            "removed, so that each key has one; only tiering may add rows there",
            table,
            healed_rows,
        )
