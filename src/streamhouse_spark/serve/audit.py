"""Audit log of a server: one JSON line per request that requires a right. It never contains tokens or rows."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
from collections.abc import Mapping
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.errors import InvalidOptionError

logger = logging.getLogger(__name__)

_REJECTED: Final = (401, 403, 421, 429)


class AuditLog:
    """Appends lines to a file, which log rotation may move while the server runs. Safe for threads.

    Each line is appended by one write, so several servers of a host may share the file.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        """Open the file. Only its owner may read a new file. Raises `InvalidOptionError` if that fails."""
        require_writable(path)
        self._clock = clock
        self._path = path
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
            self._file = WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            raise _not_writable_error(path, str(error)) from error
        self._file.setFormatter(logging.Formatter("%(message)s"))
        self._file.handleError = self._log_failure  # type: ignore[method-assign]

    def write(self, fields: Mapping[str, Any]) -> None:
        """Append a line. If that fails, the error is logged, and the request continues."""
        now = dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC)
        line = {"time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **fields}
        text = json.dumps(line, ensure_ascii=True)
        self._file.handle(logging.LogRecord("audit", logging.INFO, "", 0, text, (), None))

    def write_request(
        self,
        request_id: str,
        *,
        client: str | None,
        address: str | None,
        method: str,
        path: str,
        right: str | None,
        table: str | None,
        rows: int | None,
        status: int,
        is_denied: bool,
        **more: object,
    ) -> None:
        """Append a line if the request required a right or was rejected."""
        is_rejected = status in _REJECTED
        if right is None and not is_rejected:
            return
        line: dict[str, object] = {
            "request": request_id,
            "client": client,
            "address": address,
            "method": method,
            "path": path,
        }
        line |= {"right": right, "table": table, "rows": rows, "status": status}
        self.write({**line, "allowed": not is_rejected and not is_denied, **more})

    def close(self) -> None:
        self._file.close()

    def _log_failure(self, record: logging.LogRecord) -> None:
        logger.error("cannot write to the audit log %s, which misses the line: %s", self._path, record.msg)


def require_writable(path: str) -> None:
    """Raise `InvalidOptionError` for a file that cannot be created or appended to, without creating it."""
    try:
        file = Path(path)
        if file.exists():
            is_writable = file.is_file() and os.access(file, os.W_OK)
        else:
            is_writable = bool(path) and os.access(file.parent, os.W_OK | os.X_OK)
    except (OSError, ValueError) as error:
        raise _not_writable_error(path, str(error)) from error
    if not is_writable:
        raise _not_writable_error(path, "it is not a writable file, or its folder is not writable")


def _not_writable_error(path: str, reason: str) -> InvalidOptionError:
    return InvalidOptionError(f"--audit-log {path} is not writable: {reason}; specify a writable file")
