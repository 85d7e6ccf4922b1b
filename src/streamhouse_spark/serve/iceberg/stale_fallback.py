"""Fallback to the lake alone if a document with hot rows takes too long or cannot be built.

It is off by default: an engine that prefers old rows to none cannot see the difference, except for the `Warning` header
of the response.
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
    """Waits a limited time for documents.

    Safe for threads: per table, at most one document is built and one more waits, however many requests there are.
    """

    def __init__(self, wait_s: float, counts: ServerCounters) -> None:
        self._wait_s = wait_s
        self._counts = counts
        self._lock = new_lock()
        self._locks: WeakKeyDictionary[ServedTable, threading.RLock] = WeakKeyDictionary()
        self._waiting: dict[ServedTable, Future[Document]] = {}

    def document(self, table: ServedTable) -> tuple[Document, str | None]:
        """Return the latest document, or that of the lake and the reason for the fallback.

        The build continues in the background, so that a later request finds it. A table without a lake has no fallback:
        its request waits and raises, as do errors of names and options. Raises like `ServedTable.newest`.
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
        logger.warning("%s: answered with the lake alone: %s", table.table.name, reason)
        return document, reason

    def _request_document(self, table: ServedTable) -> Future[Document]:
        """Return a future of a document whose build has not begun to read the table yet."""
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
                del self._waiting[table]  # later requests need a later state
            try:
                future.set_result(table.newest())
            except BaseException as error:  # noqa: BLE001 - raised by the requests that wait
                future.set_exception(error)
