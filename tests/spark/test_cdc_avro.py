"""`streamhouse_spark.cdc` of Debezium's events in Avro, with a registry of their schemas or with a given one."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import random
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

import streamhouse_spark as sh
from kit.schema_registry import running_registry
from spark import debezium_avro as avro
from spark.debezium_avro import bare, envelope, event, wired
from spark.session import forget_commit
from streamhouse_spark.datasource.cdc import avro_schemas as registry_module
from streamhouse_spark.errors import InvalidOptionError

pytestmark = [pytest.mark.spark, pytest.mark.spark41, pytest.mark.classic]
ONE = envelope({"id": "long", "name": "string", "n": "int"})
TWO = envelope({"id": "long", "name": "string", "more": "string", "n": "long"})


class Topic:
    """A folder of values of bytes, one a line behind its offset, as a stream of Kafka would have them."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark, self.folder, self.number = spark, folder, 0
        folder.mkdir()

    def put(self, *values: bytes | None) -> None:
        lines = []
        for value in values:
            text = None if value is None else base64.b64encode(value).decode()
            lines.append(json.dumps({"offset": self.number, "value": text}))
            self.number += 1
        (self.folder / f"{self.number:06d}.json").write_text("\n".join(lines) + "\n")

    def stream(self):
        return self.spark.readStream.schema("offset BIGINT, value BINARY").json(str(self.folder))


@pytest.fixture
def topic(spark, tmp_path) -> Topic:
    return Topic(spark, tmp_path / "events")


@pytest.fixture
def registry():
    with running_registry() as it:
        yield it


@pytest.fixture
def make(request, wh):
    def make(ddl="id BIGINT, name STRING, n INT", **options):
        return wh.create_table(f"avro.t{abs(hash(request.node.nodeid))}", ddl, primary_key=["id"], **options)

    return make


@pytest.fixture
def run(wh, topic, registry, tmp_path):
    def run(table, **options) -> None:
        options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": {"availableNow": True}, **options}
        if "avro_schema" not in options:
            options = {"registry": registry.url, **options}
        query = sh.cdc(topic.stream(), table.name, warehouse=wh.url, format="debezium-avro", **options)
        query.awaitTermination()

    return run


def there(table) -> dict:
    table.refresh()
    return {row.pop("id"): tuple(row.values()) for row in table.to_arrow().to_pylist()}


def row(number, name="a", n=1, **more):
    return {"id": number, "name": name, "n": n, **more}


def test_a_life_of_a_table_with_a_schema_that_changes(topic, registry, make, run, tmp_path):
    """Snapshot, changes, tombstones, a second schema in the middle of a batch, a batch that is sent again."""
    table = make(buckets=2)
    one = registry.register(ONE)
    topic.put(*(wired(one, ONE, event("r", None, row(number))) for number in range(4)))
    run(table)
    assert there(table) == dict.fromkeys(range(4), ("a", 1))
    assert registry.asked == [one]

    two = registry.register(TWO)
    before = row(1)
    topic.put(
        wired(one, ONE, event("u", before, row(1, "b", None))),
        wired(one, ONE, event("d", row(2))),
        None,
        wired(two, TWO, event("u", row(3), row(3, "c", 2**31 - 1, more="x"))),
        wired(one, ONE, event("u", row(0), row(10, "moved", 5))),
        wired(two, TWO, event("c", None, row(4, "ü€", -5, more=None))),
    )
    version = table.refresh().version
    run(table, new_columns="ignore")
    rows = {1: ("b", None), 3: ("c", 2**31 - 1), 10: ("moved", 5), 4: ("ü€", -5)}
    assert there(table) == rows
    assert table.state.version == version + 1
    assert registry.asked == [one, one, two], "each query asks once for each schema"

    assert forget_commit(str(tmp_path / "checkpoint")) == 1
    run(table, new_columns="ignore")
    assert there(table) == rows
    assert table.state.version == version + 1


@pytest.mark.long
def test_a_new_column_ends_the_query_until_the_table_has_it(topic, registry, make, run):
    table = make()
    two = registry.register(TWO)
    topic.put(wired(two, TWO, event("c", None, row(1, more="x"))))
    with pytest.raises(StreamingQueryException, match="have columns that the table does not have: more"):
        run(table)
    table.alter(add_columns="more STRING")
    run(table)
    assert there(table) == {1: ("a", 1, "x")}


@pytest.mark.long
def test_avro_values_of_every_type_are_decoded(wh, topic, registry, make, run):
    columns = {
        "id": "long", "flag": "boolean", "price": avro.DECIMAL, "any": avro.VARIABLE, "day": avro.DATE,
        "day2": avro.CONNECT_DATE, "ms": avro.MILLIS, "ms2": avro.CONNECT_MILLIS, "us": avro.MICROS, "ns": avro.NANOS,
        "zoned": avro.ZONED, "us2": avro.AVRO_MICROS, "local": avro.LOCAL_MICROS, "at": avro.MICRO_TIME,
        "data": "bytes", "d": "double", "f": "float", "words": {"type": "array", "items": ["null", "string"]},
        "part": {"type": "record", "name": "Part", "fields": [{"name": "a", "type": "int"}]},
        "kv": {"type": "map", "values": "int"}, "kind": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
    }  # fmt: skip
    ddl = (
        "id BIGINT, flag BOOLEAN, price DECIMAL(10, 2), any DECIMAL(20, 4), day DATE, day2 DATE, ms TIMESTAMP_NTZ, "
        "ms2 TIMESTAMP, us TIMESTAMP_NTZ, ns TIMESTAMP, zoned TIMESTAMP, us2 TIMESTAMP, local TIMESTAMP_NTZ, "
        "at BIGINT, data BINARY, d DOUBLE, f FLOAT, words ARRAY<STRING>, part STRUCT<a: INT>, kv MAP<STRING, INT>, "
        "kind STRING"
    )
    table = make(ddl)
    schema = envelope(columns)
    micros = -1_767_225_600_123_456
    wall = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)
    millis = wall.replace(microsecond=wall.microsecond // 1000 * 1000)
    full = {
        "id": 1, "flag": True, "price": decimal.Decimal("-1234.50"), "any": {"scale": 3, "value": b"\xff\x85"},
        "day": -3, "day2": dt.date(2026, 1, 31), "ms": micros // 1000, "ms2": millis.replace(tzinfo=dt.UTC),
        "us": micros, "ns": micros * 1000 + 999, "zoned": "2026-01-31T10:00:00.5+02:00",
        "us2": wall.replace(tzinfo=dt.UTC), "local": wall, "at": 86_399_999_999, "data": b"\x00\xff", "d": 1 / 3,
        "f": 0.5, "words": ["x", None], "part": {"a": 7}, "kv": {"k": 1}, "kind": "B",
    }  # fmt: skip
    special = {"id": 2, "d": float("nan"), "f": float("-inf"), "price": decimal.Decimal("0.00"), "words": []}
    number = registry.register(schema)
    empty = dict.fromkeys(columns)
    events = [full, {**empty, **special}, {**empty, "id": 3}]
    topic.put(*(wired(number, schema, event("c", None, one)) for one in events))
    run(table)
    found = {row["id"]: row for row in table.to_arrow().to_pylist()}
    utc = wall.replace(tzinfo=dt.UTC)
    assert found[1] == {
        **full, "any": decimal.Decimal("-0.1230"), "day": dt.date(1969, 12, 29), "ms": millis, "us": wall, "ns": utc,
        "zoned": dt.datetime(2026, 1, 31, 8, 0, 0, 500_000, tzinfo=dt.UTC), "kv": [("k", 1)],
    }  # fmt: skip
    assert math.isnan(found[2]["d"])
    assert found[2] | {"d": None} == {**empty, **special, "d": None}
    assert found[3] == {**empty, "id": 3}


@pytest.mark.long
def test_a_number_without_a_meaning_is_a_moment_by_times_alone(wh, topic, registry, make, run):
    table = make("id BIGINT, at TIMESTAMP")
    schema = envelope({"id": "long", "at": "long"})
    topic.put(wired(registry.register(schema), schema, event("c", None, {"id": 1, "at": 1500})))
    with pytest.raises(StreamingQueryException, match="column 'at' is '1500', expected timestamp"):
        run(table)
    run(table, times="millis")
    assert there(table)[1][0].timestamp() == 1.5


BAD = (
    (b"", "as in Confluent's wire format"),
    (b"{}", "as in Confluent's wire format"),
    (b'{"op": "c"}', "as in Confluent's wire format"),
    (b"\0\0\0\0\7" + bare(ONE, event("c", None, row(1))), "its schema 7 is not in the registry"),
    (b"\0\xff\xff\xff\xff\0", "its schema -1 was not fetched"),
    ("whole", "extra bytes"),
    ("cut", "its bytes do not match its schema"),
    ("huge", "a value of 1073741824 where"),
    ("branch", "its bytes do not match its schema"),
    ("flat", "is not for change events: record shop.public.t.Value has no field op"),
    ("text", "has type 'JSON', expected AVRO"),
    (wired(100_001, ONE, event("c", None, None)), "its row has no primary key id"),
    (wired(100_001, ONE, event("t")), "its op is 't', which is unknown"),
    (wired(100_001, ONE, event("u", None, row(1, "__debezium_unavailable_value"))), "REPLICA IDENTITY FULL"),
)


def _bad(value, registry) -> bytes:
    good = wired(100_001, ONE, event("c", None, row(5)))
    flat = ONE["fields"][0]["type"][1] | {"namespace": "shop.public.t"}
    match value:
        case "whole":
            return good + b"\0"
        case "cut":
            return good[:-30]
        case "huge":  # a text of a gigabyte
            return good[:8] + b"\2" + bytes.fromhex("8080808008")
        case "branch":
            return good[:5] + b"\x08" + good[6:]
        case "flat":
            return wired(registry.register(flat), flat, row(5))
        case "text":
            return b"\0" + registry.register("{}", schemaType="JSON").to_bytes(4, "big") + b"{}"
    return value


@pytest.mark.long
def test_bad_bytes_have_their_reason_and_a_place(wh, topic, registry, make, run):
    table = make()
    number = registry.register(ONE)
    values = [_bad(value, registry) for value, _ in BAD]
    topic.put(*(wired(number, ONE, event("c", None, row(8))), *values, wired(number, ONE, event("c", None, row(9)))))
    version = table.refresh().version
    with pytest.raises(StreamingQueryException, match=rf"{len(BAD)} events of this batch .* cannot be read"):
        run(table)
    assert table.refresh().version == version
    name = f"{table.name}_letters"
    for _ in range(2):
        run(table, dead_letter=name)
        assert sorted(there(table)) == [8, 9]
        letters = wh.table(name).to_arrow().to_pylist()
        letters.sort(key=lambda letter: int(letter["position"].strip("{}")))
        assert [base64.b64decode(letter["event"]) for letter in letters] == values
        for letter, (value, reason) in zip(letters, BAD, strict=True):
            assert reason in letter["reason"], value


@pytest.mark.long
def test_a_given_avro_schema_needs_no_registry(topic, registry, make, run):
    table = make()
    topic.put(bare(ONE, event("c", None, row(1))), bare(ONE, event("c", None, row(2, "b", None))))
    run(table, avro_schema=json.dumps(ONE))
    assert there(table) == {1: ("a", 1), 2: ("b", None)}
    assert registry.asked == []


@pytest.mark.long
def test_a_registry_that_is_away_ends_the_query_and_a_restart_goes_on(topic, registry, make, run, wh, monkeypatch):
    monkeypatch.setattr(registry_module, "_RETRY_MS", 100)
    table = make()
    number = registry.register(ONE)
    topic.put(wired(number, ONE, event("c", None, row(1))), b"bad")
    registry.answers = [(503, b"")] * 100
    version, name = table.refresh().version, f"{table.name}_letters"
    with pytest.raises(StreamingQueryException, match=r"SCHEMA_REGISTRY_UNAVAILABLE: .* it answered 503"):
        run(table, dead_letter=name)
    assert table.refresh().version == version
    assert wh.table(name).to_arrow().num_rows == 0, "an event whose schema is not known is no bad one"
    registry.answers = []
    run(table, dead_letter=name)
    assert there(table) == {1: ("a", 1)}
    assert wh.table(name).to_arrow().num_rows == 1


@pytest.mark.long
def test_refused_credentials_end_the_query_and_right_ones_continue_it(topic, registry, make, run):
    table = make()
    registry.wanted = "Basic " + base64.b64encode(b"ann:secret").decode()
    topic.put(wired(registry.register(ONE), ONE, event("c", None, row(1))))
    with pytest.raises(StreamingQueryException, match=r"SCHEMA_REGISTRY_REFUSED: .* answered 401"):
        run(table, registry_auth="another")
    run(table, registry_auth=("ann", "secret"))
    assert there(table) == {1: ("a", 1)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "set registry to the URL"),
        ({"registry": "http://r", "avro_schema": "{}"}, "set registry to the URL"),
        ({"avro_schema": "{}"}, "avro_schema is not a schema of Debezium events"),
        ({"avro_schema": '"string"'}, "it is not a record"),
        ({"avro_schema": json.dumps(ONE["fields"][0]["type"][1])}, "record Value has no field op"),
        ({"avro_schema": json.dumps(ONE), "registry_auth": "t"}, "registry_auth requires registry"),
        ({"registry": "r:8081"}, "expected a URL"),
        ({"registry": "http://r", "decimals": "text"}, "decimals is only for JSON events"),
        ({"registry": "http://r", "value": "offset"}, "no column 'offset' of type bytes"),
        (
            {"registry": "http://r", "format": "debezium-json"},
            "are only for format 'debezium-avro', found 'debezium-json'",
        ),
    ],
)
def test_refused_before_anything_runs(wh, topic, tmp_path, make, options, says):
    topic.put(b"x")
    options = {"format": "debezium-avro", "checkpoint": str(tmp_path / "c"), **options}
    with pytest.raises(InvalidOptionError, match=says):
        sh.cdc(topic.stream(), make().name, warehouse=wh.url, **options)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_random_avro_batches_leave_the_rows_of_a_dictionary(topic, registry, make, run, wh, seed, tmp_path):
    """Changes by two schemas with damaged bytes, restarts and batches that are sent again leave the rows of a dict."""
    rng = random.Random(seed)
    table, model, bad = make(buckets=2), {}, 0
    one, two = registry.register(ONE), registry.register(TWO)
    for number in range(6):
        values = []
        for _ in range(rng.randrange(30)):
            key, values_of = rng.randrange(12), (rng.choice(["x", "y", None]), rng.randrange(100))
            before = row(key, *model[key]) if key in model else None
            new = row(key, *values_of)
            is_deletion = before is not None and rng.random() < 0.3
            made = event("d", before) if is_deletion else event("u" if before else "c", before, new)
            if is_deletion:
                model.pop(key)
            else:
                model[key] = values_of
            values.append(wired(one, ONE, made) if number < rng.randrange(7) else wired(two, TWO, made))
            if rng.random() < 0.1:
                values += [None, b"\0" + rng.randbytes(rng.randrange(60))]
                bad += 1
        topic.put(*values)
        options = {"dead_letter": f"{table.name}_letters", "new_columns": "ignore"}
        run(table, **options)
        if number % 2:
            forget_commit(str(tmp_path / "checkpoint"))
            run(table, **options)
        assert there(table) == model
    assert wh.table(f"{table.name}_letters").to_arrow().num_rows == bad
