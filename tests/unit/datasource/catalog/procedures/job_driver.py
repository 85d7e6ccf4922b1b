"""A driver of jobs without Spark: it answers at a socket as the catalog's Java does, and runs the tasks itself."""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

from pyspark.sql.types import BinaryType, StructField, StructType

from streamhouse_spark.datasource.rpc_arguments import ARGUMENTS_OPTION, CALL_OPTION, RUN_TASKS
from streamhouse_spark.datasource.source import StreamhouseDataSource

_ROWS = StructType([StructField("batch", BinaryType(), nullable=True)])

NOBODY = {"port": 1, "secret": "none", "token": "none"}
"""A way into a session, behind which nobody answers."""


class JobDriver:
    """Runs each task twice, as if its first outcome was lost. Jobs whose number is in ``failing`` fail behind that."""

    def __init__(self, warehouse: str, failing: frozenset[int] = frozenset()) -> None:
        self._warehouse = warehouse
        self._map_disk_errors = failing
        self._folder = Path(tempfile.mkdtemp())
        self._server = socket.socket(socket.AF_UNIX)
        self.address = str(self._folder / "jobs")
        self._server.bind(self.address)
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.jobs: list[tuple[str, int]] = []
        """Descriptions of jobs, and the numbers of their tasks."""
        self.asked: list[dict[str, Any]] = []
        self.sessions: list[dict[str, Any]] = []
        """What was asked for a session."""

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._server.close()
        shutil.rmtree(self._folder)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    asked = json.loads(line)
                    answer = self._way(asked) if "session" in asked else {"outcomes": self._run(asked)}
                    if len(self.jobs) - 1 in self._map_disk_errors:
                        break
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()

    def _way(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.sessions.append(asked)
        return NOBODY

    def _run(self, job: dict[str, Any]) -> list[str]:
        self.asked.append(job)
        self.jobs.append((job["description"], len(job["tasks"])))
        options = {CALL_OPTION: RUN_TASKS, ARGUMENTS_OPTION: json.dumps(job["tasks"]), "warehouse": self._warehouse}
        planned = StreamhouseDataSource(options).reader(_ROWS)
        partitions = planned.partitions()
        reader = pickle.loads(pickle.dumps(planned))
        assert not any(task in pickle.dumps(planned).decode("latin1") for task in job["tasks"])
        found = []
        for partition in partitions:
            for _ in range(2):
                (batch,) = reader.read(pickle.loads(pickle.dumps(partition)))
            found.append(batch.column(0)[0].as_py().decode())
        return found
