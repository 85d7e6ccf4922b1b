"""A server of Arrow Flight in the test's process, and real clients of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from streamhouse_spark import Warehouse
from streamhouse_spark.serve.flight.server import FlightServer
from streamhouse_spark.serve.options import ListenAddress, ServeOptions


@contextmanager
def flights(
    warehouse: Warehouse, options: ServeOptions | None = None, listening: ListenAddress | None = None
) -> Iterator[FlightServer]:
    from streamhouse_spark.serve.app import make_app

    server = FlightServer(make_app(warehouse, options).state.shared, listening or ListenAddress(flight_port=0))
    try:
        yield server
    finally:
        server.stop(30)


def command(**asked: Any) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps(asked))


class Client:
    """Reads as a user's program does: an info, and then all of its parts."""

    def __init__(self, url: str, token: str | None = None, **more: Any) -> None:
        self.flight = flight.connect(url, **more)
        self.options = flight.FlightCallOptions(
            headers=[(b"authorization", f"Bearer {token}".encode())] if token else [], timeout=60
        )

    def info(self, **asked: Any) -> flight.FlightInfo:
        return self.flight.get_flight_info(command(**asked), self.options)

    def part(self, endpoint: flight.FlightEndpoint) -> pa.Table:
        return self.flight.do_get(endpoint.ticket, self.options).read_all()

    def read(self, **asked: Any) -> pa.Table:
        info = self.info(**asked)
        return pa.concat_tables([info.schema.empty_table(), *map(self.part, info.endpoints)])

    def direct(self, **asked: Any) -> pa.Table:
        return self.flight.do_get(flight.Ticket(json.dumps(asked)), self.options).read_all()


def told(error: flight.FlightError) -> tuple[str, int]:
    """Return condition and status of an error."""
    found = json.loads(error.extra_info)
    return found["condition"], found["status"]
