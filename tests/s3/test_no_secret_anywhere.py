"""Twelve secrets, and all places where somebody may look: no secret is in any of them.

One warehouse on a store gets credentials of all kinds. Everything that it writes, shows, answers, logs or raises is a
place; the place's text is looked through for each secret, as it is, and as JSON and URLs write it.
"""

from __future__ import annotations

import io
import json
import logging
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import flight

from kit.flight_client import Client, flights
from kit.serving import http_client
from kit.tables import tier
from storage.s3_server import settings_for
from streamhouse_spark import StreamhouseError, Warehouse
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.cli.output import _JsonLines
from streamhouse_spark.datasource.table_definition import describe_properties
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.metrics import format_prometheus, process_metrics
from streamhouse_spark.read.system_tables import SYSTEM_TABLES
from streamhouse_spark.serve.acl import Access, digest_of, parse_pattern
from streamhouse_spark.serve.acl import Client as Rights
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.options import ServeOptions
from streamhouse_spark.service.openlineage import RoundEventEmitter, build_event, create_listener
from streamhouse_spark.service.tiering_service import Service
from streamhouse_spark.warehouse.process_cache import Connection

pytestmark = [pytest.mark.s3, pytest.mark.long]

SETTINGS = {
    name: f"canary/{number}+of=secrets-4711"
    for number, name in enumerate((
        "s3.access-key-id",
        "s3.secret-access-key",
        "s3.session-token",
        "adls.account-key",
        "adls.sas-token",
        "adls.client-secret",
        "gcs.oauth2.token",
        "hdfs.delegation-token",
    ))
}  # fmt: skip
READS, WRITES = "canary-token-that-reads", "canary-token-that-writes"
API_KEY, PASSWORD = "canary-key-of-lineage", "canary-password-in-a-property"
SECRETS = [*SETTINGS.values(), READS, WRITES, API_KEY, PASSWORD]
NOBODY = "http://127.0.0.1:1"
"""Nothing listens there."""


def spellings(secret: str) -> set[str]:
    return {secret, json.dumps(secret)[1:-1], urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret)}


@dataclass
class World:
    warehouse: Warehouse
    settings: dict[str, str]
    log: io.StringIO
    audit: str

    @property
    def table(self):
        return self.warehouse.table("s.t")

    @property
    def keyed(self):
        return self.warehouse.table("s.k")


@pytest.fixture(scope="module")
def world(s3_server, tmp_path_factory) -> Iterator[World]:
    settings = settings_for(s3_server.endpoint) | SETTINGS
    folder, log = tmp_path_factory.mktemp("secrets"), io.StringIO()
    handlers = [logging.StreamHandler(log), _JsonLines()]
    handlers[1].emit = lambda record: log.write(handlers[1].format(record) + json.dumps(record.__dict__, default=str))
    root, level = logging.getLogger("streamhouse_spark"), logging.getLogger("streamhouse_spark").level
    root.setLevel(logging.DEBUG)
    for handler in handlers:
        root.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMHOUSE_CACHE_DIR", str(folder / "cache"))
        warehouse = Warehouse(f"s3://{s3_server.new_bucket()}/wh", settings)
        table = warehouse.create_table("s.t", "id BIGINT, name STRING", properties={"comment": "plain"})
        keyed = warehouse.create_table("s.k", "id BIGINT NOT NULL, n INT", primary_key=["id"])
        for number in range(2):
            table.append([{"id": number, "name": "x"}])
            keyed.upsert([{"id": number, "n": 1}])
            for one in (table, keyed):
                tier(one)
        table.append(pa.table({"id": range(50_000), "name": ["y"] * 50_000}))
        table.create_tag("kept")
        table.log.checkpoint(table.refresh())
        yield World(warehouse, settings, log, str(folder / "audit"))
    for handler in handlers:
        root.removeHandler(handler)
    root.setLevel(level)


def objects(world: World) -> Iterator[tuple[str, str]]:
    yield from (
        (f"text of {type(one).__name__}", f"{one!r} {one!s}")
        for one in (
            world.warehouse,
            world.table,
            world.keyed.keyed,
            world.table.lake,
            world.table.inspect,
            world.warehouse.view("s.t$lake"),
            world.table.storage,
            world.table.open_lake(),
            world.table.state,
            Connection.of(world.warehouse.url, world.settings),
            ServeOptions(access=access),
            access(),
        )
    )


def files(world: World) -> Iterator[tuple[str, str]]:
    """What is stored, by kind of file."""
    found: dict[str, bytes] = {}
    for info in world.warehouse.storage.list(""):
        folder = "/".join(part for part in info.key.split("/")[:-1] if len(part) < 30) or "root"
        kind = f"stored: {folder} {info.key.rpartition('.')[2][:8]}"
        found[kind] = found.get(kind, b"") + world.warehouse.storage.read(info.key)
    yield from ((kind, body.decode("latin-1")) for kind, body in found.items())


def tables(world: World) -> Iterator[tuple[str, str]]:
    for name in SYSTEM_TABLES:
        yield f"${name}", str(world.warehouse.view(f"s.t${name}").to_arrow().to_pylist()) or "none"
    yield "properties in Spark", json.dumps(describe_properties(world.table))


def errors(world: World) -> Iterator[tuple[str, str]]:
    """What is raised where the store is away, where credentials are wrong, and where a property holds a password."""
    away = Warehouse(world.warehouse.url, {**world.settings, "s3.endpoint": NOBODY, "s3.connect-timeout": "1"})
    calls: dict[str, Callable[[], object]] = {
        "listing": away.tables,
        "opening": lambda: away.table("s.t"),
        "creating": lambda: away.create_table("s.x", "id INT"),
        "dropping": lambda: away.drop_table("s.t"),
        "a property": lambda: world.table.alter_properties({"comment": f"password={PASSWORD}"}),
        "another property": lambda: world.warehouse.create_table("s.x", "id INT", properties={"a.password": PASSWORD}),
        "half a pair": lambda: Warehouse(
            "s3://b/wh", {"s3.secret-access-key": SETTINGS["s3.secret-access-key"]}
        ).tables(),
        "an unknown setting": lambda: Warehouse(
            world.warehouse.url, {**world.settings, "s3.secret-acces-key": PASSWORD}
        ).tables(),
    }
    for name, call in calls.items():
        with pytest.raises(StreamhouseError) as caught:
            call()
        yield f"error: {name}", "".join(traceback.format_exception(caught.value)) + repr(caught.value)


def commands(world: World) -> Iterator[tuple[str, str]]:
    shared = [word for pair in world.settings.items() for word in ("--setting", "=".join(pair))]
    for words in (
        ["ls"],
        ["describe", "s.t"],
        ["history", "s.t"],
        ["head", "s.t"],
        ["tail", "s.t", "--no-follow", "--from", "earliest", "--limit", "2"],
        ["segments", "s.t"],
        ["costs"],
        ["verify", "s.t"],
        ["doctor"],
        ["top", "--once"],
        ["maintain", "--dry-run"],
        ["describe", "s.absent"],
        ["alter", "s.t", "--set", f"comment=token={PASSWORD}"],
    ):
        for form in ("text", "json"):
            found = CliRunner().invoke(streamhouse, ["-w", world.warehouse.url, *shared, "-o", form, *words])
            yield f"streamhouse {words[0]} as {form}", found.output + found.stderr + repr(found.exception)


def access() -> Access:
    everything = (parse_pattern("*"),)
    return Access(
        {
            digest_of(READS): Rights("reads", readable=everything),
            digest_of(WRITES): Rights("writes", readable=everything, writable=everything),
        }
    )


def answers(world: World) -> Iterator[tuple[str, str]]:
    audit = AuditLog(world.audit, world.warehouse.world.clock)
    client = http_client(make_app(world.warehouse, ServeOptions(access, audit=audit)), raise_server_exceptions=False)
    for path in (
        "/",
        "/health",
        "/metrics",
        "/api/v1/openapi.json",
        "/api/v1/overview",
        "/api/v1/tables",
        "/api/v1/tables/s.t?costs=1",
        "/api/v1/tables/s.t/rows?limit=3",
        "/api/v1/tables/s.t/rows?where=nope",
        "/api/v1/tables/s.absent/rows",
        "/api/v1/tables/s.k/lookup?id=1",
        "/iceberg/v1/config",
        "/iceberg/v1/namespaces/s/tables",
        "/iceberg/v1/namespaces/s/tables/t",
        "/iceberg/v1/namespaces/s/tables/t$history",
        "/iceberg/v1/namespaces/s/tables/absent",
    ):
        for token in (WRITES, f"{READS}x"):
            answer = client.get(path, headers={"Authorization": f"Bearer {token}"})
            yield f"GET {path} {answer.status_code}", answer.text + str(dict(answer.headers))
    refused = client.post("/api/v1/tables/s.t/rows", json=[{"id": 1}], headers={"Authorization": f"Bearer {READS}"})
    assert refused.status_code == 403
    yield "POST that is refused", refused.text
    audit.close()
    yield "the audit log", Path(world.audit).read_text()
    with flights(world.warehouse, ServeOptions(access)) as server:
        yield "Arrow Flight: the schema", str(Client(server.url, READS).info(table="s.t").schema)
        for asked in ({"table": "s.absent"}, {"table": "s.t", "where": "nope"}):
            with pytest.raises(flight.FlightError) as caught:
                Client(server.url, READS).info(**asked)
            yield f"Arrow Flight: {asked}", repr(caught.value) + str(caught.value.extra_info)
        with pytest.raises(flight.FlightError) as caught:
            Client(server.url, f"{READS}x").info(table="s.t")
        yield "Arrow Flight: a wrong token", repr(caught.value) + str(caught.value.extra_info)


def services(world: World) -> Iterator[tuple[str, str]]:
    storage, settings = world.warehouse.storage, world.warehouse.settings
    service = Service(run_tasks_locally(storage, settings, world.warehouse.world), Connection.of(storage.url, settings))
    yield "the tiering service", f"{service!r} {service.status()} {service.health()}"
    yield "an event of OpenLineage", json.dumps(build_event(world.table, "START", "1", 0, None, ValueError("x")))
    events = RoundEventEmitter(create_listener(f"{NOBODY}/events", API_KEY), world.table, world.table.world)
    events.emit_start()  # which is logged
    yield "Prometheus", str(format_prometheus(process_metrics())[1])


def test_no_secret_is_anywhere(world):
    assert len({*SECRETS}) == 12
    found = [one for places in (objects, files, tables, errors, commands, answers, services) for one in places(world)]
    found.append(("the log", world.log.getvalue()))
    assert len({name for name, _ in found}) >= 40
    assert all(text for _, text in found), "a place that is empty shows nothing"
    told = "cannot deliver an OpenLineage event of s.t"
    assert told in world.log.getvalue(), "the log has what was done here"
    shown = [
        (name, secret) for name, text in found for secret in SECRETS if any(one in text for one in spellings(secret))
    ]
    assert shown == []


def test_a_secret_that_is_shown_is_found():
    text = json.dumps({"url": "https://x/?key=" + urllib.parse.quote(SECRETS[0], safe="")})
    assert any(one in text for one in spellings(SECRETS[0]))
