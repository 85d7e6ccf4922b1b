"""Notes of failed rounds, stored next to the tables for people who cannot see this process.

A note is a hint: rounds continue whatever happens to it. A failure costs one PUT, the first success after it another
one, and a round without work costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from streamhouse_spark.core.clock import Clock, host_name
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.log.lifecycle.tiering_failures import Work, describe_failure, note_failure, note_success
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.table.table import Table

logger = logging.getLogger(__name__)


class FailureNotes:
    """Records failures of one process. One thread at a time uses each table."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._host = host_name()
        self._has_failure_note: dict[tuple[str, Work], bool] = {}
        """Whether the note may say that some work of a table fails."""

    def record_failure(self, table: Table, work: Work, error: BaseException, began_ms: int) -> None:
        """Record a failure of work that began at a boot time. For a dropped table nothing is recorded."""
        self._has_failure_note[table.uuid, work] = True
        if isinstance(error, TableNotFoundError):
            return
        duration_ms = self._clock.boot_ms() - began_ms
        try:
            rows, now_ms = sum(bucket_lags(table.state).values()), table.storage.now_ms()
            failure = describe_failure(work, error, host=self._host, rows=rows, now_ms=now_ms, duration_ms=duration_ms)
            note_failure(table.storage, table.uuid, failure)
        except Exception as problem:  # noqa: BLE001 - the failure itself is what counts, and it is logged
            logger.info("the failed round of %s could not be noted beside it: %s", table.name, problem)

    def note_success(self, table: Table, work: Work) -> None:
        """Record that earlier failures are over.

        It writes after failures of this process, and once for maintenance, to cover those of earlier processes. The
        table's own log shows that rows were tiered.
        """
        if not self._has_failure_note.get((table.uuid, work), work == "maintenance"):
            return
        with log_post_commit_errors(logger, "the note that rounds succeed", table.name):
            note_success(table.storage, table.uuid, work, table.storage.now_ms())
            self._has_failure_note[table.uuid, work] = False

    @contextmanager
    def note_failure(self, table: Table) -> Iterator[None]:
        """Record the error of a round that ends the block."""
        began_ms = self._clock.boot_ms()
        try:
            yield
        except Exception as error:
            self.record_failure(table, "tiering", error, began_ms)
            raise
