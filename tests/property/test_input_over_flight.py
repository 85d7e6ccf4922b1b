"""Any ticket, descriptor or criteria over Arrow Flight: an error that says what is wrong, never a defect or a hang."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from kit.flight_client import Client, flights, told
from kit.hostile_input import COLUMNS, FEW, MANY, SECRET, damaged, json_values, names, profile, texts
from streamhouse_spark import Warehouse
from streamhouse_spark.serve.acl import ANONYMOUS, Access, digest_of
from streamhouse_spark.serve.options import ServeOptions

EXAMPLES = [FEW, pytest.param(MANY, marks=pytest.mark.long)]
FIELDS = ["columns", "where", "limit", "version", "snapshot", "parts", "uuid", "plan", "part", "x"]
KNOWN = ["s.t", "s.k", "s.t$lake", "s.t$history", "s.k$changelog", "s.k$binlog", "s.t$lake$files"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    warehouse = Warehouse(str(folder / "wh"))
    warehouse.create_table("s.t", COLUMNS).append([{"id": 1, "s": "a"}])
    warehouse.create_table("s.k", "id BIGINT NOT NULL, s STRING", primary_key=["id"]).upsert([{"id": 1, "s": "a"}])
    with flights(warehouse, ServeOptions(lambda: Access({digest_of(SECRET): ANONYMOUS}))) as server:
        yield Client(server.url, SECRET)
    assert [path.name for path in folder.iterdir()] == ["wh"]


def answered(call):
    failed: list[flight.FlightError] = []
    try:
        call()
    except flight.FlightError as error:
        failed.append(error)
    for error in failed:
        condition, status = told(error)
        assert status < 500, f"{condition}: {error}"
        assert SECRET not in str(error)
        assert "Traceback" not in str(error)


def of_schema(client, descriptor):
    """Ask for columns, of which the library translates no error: the text has the condition."""
    failed: list[pa.ArrowException] = []
    try:
        client.flight.get_schema(descriptor, client.options)
    except pa.ArrowException as error:
        failed.append(error)
    for error in failed:
        assert "INTERNAL" not in str(error)
        assert SECRET not in str(error)
        assert "site-packages" not in str(error)


def all_of(client, wanted):
    """Each call that reads, with a descriptor or a ticket of some bytes."""
    descriptor = flight.FlightDescriptor.for_command(wanted)
    answered(lambda: client.flight.get_flight_info(descriptor, client.options))
    of_schema(client, descriptor)
    answered(lambda: client.flight.do_get(flight.Ticket(wanted), client.options).read_all())


commands = st.builds(
    lambda table, more: json.dumps({"table": table, **more}).encode(),
    st.one_of(st.sampled_from(KNOWN), names, json_values),
    st.dictionaries(st.sampled_from(FIELDS), st.one_of(json_values, texts, st.integers()), max_size=3),
)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_flight_command_or_ticket_gets_an_answer(served, examples):
    @profile(examples)
    @given(st.one_of(commands, st.binary(max_size=200), json_values.map(lambda value: json.dumps(value).encode())))
    def holds(wanted):
        all_of(served, wanted)

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_tickets_that_were_changed(served, examples):
    offers = [served.info(table=name) for name in ("s.t", "s.k", "s.t$lake")]
    tickets = [endpoint.ticket.ticket for offer in offers for endpoint in offer.endpoints]

    @profile(examples)
    @given(damaged(*tickets))
    def holds(wanted):
        all_of(served, wanted)

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_flight_path_or_criteria_gets_an_answer(served, examples):
    words = st.one_of(st.text(max_size=40), names).map(lambda word: word.encode("utf-8", "replace"))

    @profile(examples)
    @given(st.lists(words, max_size=3), words)
    def holds(path, criteria):
        descriptor = flight.FlightDescriptor.for_path(*path)
        answered(lambda: served.flight.get_flight_info(descriptor, served.options))
        of_schema(served, descriptor)
        answered(lambda: list(served.flight.list_flights(criteria, served.options)))

    holds()


def test_a_ticket_that_is_large_or_deep(served):
    for wanted in (
        b"[" * 60_000,
        b'{"table":' * 7_000,
        b'{"table": "s.t", "where": "' + b"x" * 10**6 + b'"}',
        b"\xff" * 100,
    ):
        all_of(served, wanted)
