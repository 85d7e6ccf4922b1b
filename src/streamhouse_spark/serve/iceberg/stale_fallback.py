"""The lake alone, in the place of a document with hot rows that takes too long or cannot be made.

A server does so only if it is told to: an engine that would rather have old rows than none cannot see the difference,
but for the header `Warning` of the answer.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from weakref import WeakKeyDictionary

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError, TableNotFoundError
from streamhouse_spark.serve.iceberg.virtual_tables import Document, ServedTable
from streamhouse_spark.serve.metrics import ServerCounters

logger = logging.getLogger(__name__)


class StaleFallback:
    """Waits for documents for a time. Safe for threads: of a table, one document is made and one more waits its turn,
    however many ask.
    """

    def __init__(self, wait_s: float, counts: ServerCounters) -> None:
        self._wait_s = wait_s
        self._counts = counts
        self._lock = new_lock()
        self._locks: WeakKeyDictionary[ServedTable, threading.RLock] = WeakKeyDictionary()
        self._waiting: dict[ServedTable, Future[Document]] = {}

    def document(self, table: ServedTable) -> tuple[Document, str | None]:
        """Return the newest document, or that of the lake and the reason why it stands in.

        The making goes on behind the answer, so that a later one has it. A table without a lake has nothing that could
        stand in: its answer waits, and its errors are raised; so are those of a name or an option. Raises as
        `ServedTable.newest`.
        """
        future = self._request_document(table)
        try:
            return future.result(self._wait_s), None
        except TimeoutError:
            reason = f"its hot rows were not ready after {self._wait_s:g} s"
        except (TableNotFoundError, InvalidOptionError):
            raise
        except StreamhouseError as error:
            reason = f"its hot rows cannot be shown: {error}"
        try:
            document = table.lake_as_fallback()
        except StreamhouseError:
            return future.result(), None
        self._counts.count_lake_only_answer(table.table.name)
        logger.warning("%s is answered with its lake alone: %s", table.table.name, reason)
        return document, reason

    def _request_document(self, table: ServedTable) -> Future[Document]:
        """Return a document that somebody begins to look for from now on."""
        with self._lock:
            future = self._waiting.get(table)
            if future is None:
                future = self._waiting[table] = Future()
                turn = self._locks.setdefault(table, new_lock())
                threading.Thread(target=self._run, args=(table, turn, future), daemon=True).start()
            return future

    def _run(self, table: ServedTable, turn: threading.RLock, future: Future[Document]) -> None:
        with turn:
            with self._lock:
                del self._waiting[table]  # who asks from now on wants a later look
            try:
                future.set_result(table.newest())
            except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits
                future.set_exception(error)
