"""Ports and bodies of requests."""

from __future__ import annotations

import io
import socket

import pyarrow as pa


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arrow_stream(rows: pa.Table) -> bytes:
    """Return the rows as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()
