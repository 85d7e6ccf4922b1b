"""Engines that are servers of their own: Trino and Flink, which read a lake on S3."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from interop import flink_cluster, trino_server
from many_engines.engines import Addresses, sql
from many_engines.written import Answer

LAKE = "lake"
"""Name of the second catalog, which has the lake alone."""


class Trino:
    lake_of = f"{LAKE}.{{}}.{{}}"

    def __init__(self, at: Addresses) -> None:
        self._client, own = trino_server.Trino(at.query_servers["trino"]), f"r{os.getpid()}"
        self._fresh, self._lake = f"{own}_sh", f"{own}_{LAKE}"
        self._client.add_catalog(self._fresh, trino_properties(at))
        self._client.add_catalog(self._lake, {**trino_properties(at), "iceberg.rest-catalog.warehouse": "lake"})

    def ask(self, table: str, since: int) -> Answer:
        return self._client.query(sql(table, since, table), self._fresh)[0]  # type: ignore[return-value]

    def count(self, of: str) -> int:
        catalog, name = of.split(".", 1)
        return int(
            self._client.query(f"SELECT count(*) FROM {name}", self._lake if catalog == LAKE else self._fresh)[0][0]
        )


class TrinoJoins(Trino):
    """Each question twice in a statement, the second time as a join with itself: all of it is one state."""

    def ask(self, table: str, since: int) -> Answer:
        joined = f"(SELECT a.* FROM {table} a JOIN {table} b ON a.id = b.id)"
        both = f"{sql(table, since, table)} UNION ALL {sql(table, since, joined)}"
        first, second = self._client.query(both, self._fresh)
        if first != second:
            raise AssertionError(f"two answers in one statement: {first}, {second}")
        return first  # type: ignore[return-value]


class Flink:
    lake_of = f"{LAKE}.{{}}.{{}}"

    def __init__(self, at: Addresses) -> None:
        self._client = flink_cluster.Flink(at.query_servers["flink"])
        self._client.add_catalog("sh", flink_properties(at))
        self._client.add_catalog(LAKE, {**flink_properties(at), "warehouse": "lake"})
        self._client.query("USE CATALOG sh")

    def ask(self, table: str, since: int) -> Answer:
        return self._client.query(sql(table, since, table))[0]  # type: ignore[return-value]

    def count(self, of: str) -> int:
        return int(self._client.query(f"SELECT count(*) FROM {of}")[0][0])


def trino_properties(at: Addresses) -> dict[str, str]:
    return {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": at.iceberg,
        "fs.native-s3.enabled": "true",
        "s3.endpoint": at.settings["s3.endpoint"],
        "s3.region": at.settings["s3.region"],
        "s3.path-style-access": "true",
        "s3.aws-access-key": at.settings["s3.access-key-id"],
        "s3.aws-secret-key": at.settings["s3.secret-access-key"],
    }


def flink_properties(at: Addresses) -> dict[str, str]:
    return {
        "type": "iceberg",
        "catalog-type": "rest",
        "uri": at.iceberg,
        "cache-enabled": "false",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": at.settings["s3.region"],
        "s3.path-style-access": "true",
        **{key: at.settings[key] for key in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key")},
    }


@contextmanager
def query_servers(folder: Path, names: Iterable[str]) -> Iterator[dict[str, str]]:
    """Start the servers of these names, each with a folder of its own; yields their URLs."""
    starts = {"trino": trino_server.running_trino, "flink": flink_cluster.running_flink}
    with ExitStack() as stack:
        found = {}
        for name in sorted(set(names) - {""}):
            (own := folder / name).mkdir()
            found[name] = stack.enter_context(starts[name](own)).url
        yield found
