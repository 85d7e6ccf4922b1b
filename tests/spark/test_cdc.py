"""`streamhouse_spark.cdc`: events of Debezium, Maxwell and Canal keep a table equal to that of the source."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException

import streamhouse_spark as sh
from kit.variants import readable_rows
from spark.session import forget_commit
from streamhouse_spark.datasource.cdc import apply, event_formats
from streamhouse_spark.errors import InvalidOptionError

pytestmark = [pytest.mark.spark, pytest.mark.spark41]
DDL = "id BIGINT, name STRING, n INT"


class Source:
    """A folder of events, one a line behind its position, as a stream of Kafka would have them."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark, self.folder, self.number = spark, folder, 0
        folder.mkdir()

    def put(self, *events: object) -> None:
        lines = []
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            lines.append(json.dumps({"offset": self.number, "value": text}))
            self.number += 1
        (self.folder / f"{self.number:06d}.json").write_text("\n".join(lines) + "\n")

    def stream(self):
        return self.spark.readStream.schema("offset BIGINT, value STRING").json(str(self.folder))


def debezium(op: str, before: dict | None = None, after: dict | None = None) -> dict:
    return {"op": op, "before": before, "after": after, "ts_ms": 1, "source": {"connector": "postgresql", "lsn": 7}}


@pytest.fixture
def source(spark, tmp_path) -> Source:
    return Source(spark, tmp_path / "events")


@pytest.fixture
def table(request, wh):
    name = f"cdc.t{abs(hash(request.node.nodeid))}"
    return wh.create_table(name, DDL, primary_key=["id"], buckets=2)


@pytest.fixture
def run(wh, source, table, tmp_path):
    def run(**options) -> None:
        options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": {"availableNow": True}, **options}
        sh.cdc(source.stream(), table.name, warehouse=wh.url, **options).awaitTermination()

    return run


def there(table) -> dict:
    table.refresh()
    return {row.pop("id"): tuple(row.values()) for row in table.to_arrow().to_pylist()}


def row(number: int, name: str | None = "a", n: int | None = 1) -> dict:
    return {"id": number, "name": name, "n": n}


class TestDebezium:
    def test_snapshots_changes_and_deletes(self, source, table, run):
        source.put(debezium("r", None, row(1)), debezium("c", None, row(2)), debezium("c", None, row(3)))
        run()
        assert there(table) == {1: ("a", 1), 2: ("a", 1), 3: ("a", 1)}
        source.put(
            {"schema": {"type": "struct"}, "payload": debezium("u", row(1), row(1, "b", None))},
            debezium("d", row(2)),
            debezium("u", row(3), row(30, "moved", 5)),
            debezium("m"),
        )
        run()
        assert there(table) == {1: ("b", None), 30: ("moved", 5)}

    @pytest.mark.always
    def test_the_last_event_of_a_key_counts(self, source, table, run):
        source.put(
            debezium("c", None, row(1)), debezium("u", row(1), row(1, "b", 2)), debezium("d", row(1)),
            debezium("c", None, row(1, "again", 9)), debezium("c", None, row(2)), debezium("d", row(2)),
        )  # fmt: skip
        version = table.refresh().version
        run()
        assert there(table) == {1: ("again", 9)}
        assert table.state.version == version + 1

    def test_a_batch_is_stored_once(self, source, table, run, tmp_path):
        source.put(debezium("c", None, row(1)))
        run()
        table.delete([1])
        version = table.refresh().version
        assert forget_commit(str(tmp_path / "checkpoint")) == 0
        run()
        assert there(table) == {}
        assert table.state.version == version
        source.put(debezium("c", None, row(2)))
        run()
        assert sorted(there(table)) == [2]

    def test_the_id_of_a_query_is_in_its_checkpoint(self, spark, source, table, run, tmp_path):
        """Spark Connect runs a batch where nothing else tells the id: a session there has no context."""
        source.put(debezium("c", None, row(1)))
        run()
        (batch,) = table.refresh().transactions
        session = SimpleNamespace(read=spark.read)
        assert f"cdc.{apply._query_id(session, str(tmp_path / 'checkpoint'))}" == batch
        assert f"cdc.{apply._query_id(session, (tmp_path / 'checkpoint').as_uri() + '/')}" == batch

    def test_tombstones_are_passed_over(self, spark, source, table, run):
        (source.folder / "1.json").write_text(
            '{"offset": 1}\n' + json.dumps({"offset": 0, "value": json.dumps(debezium("c", None, row(1)))})
        )
        run()
        assert there(table) == {1: ("a", 1)}

    def test_debezium_values_of_every_type_are_decoded(self, wh, source, tmp_path):
        ddl = (
            "id BIGINT, flag BOOLEAN, price DECIMAL(30, 2), small DECIMAL(9, 3), day DATE, at TIMESTAMP, "
            "local TIMESTAMP_NTZ, data BINARY, d DOUBLE, words ARRAY<STRING>, part STRUCT<a: INT>, text STRING"
        )
        made = wh.create_table("cdc.valued", ddl, primary_key=["id"])
        micros = 1_767_225_600_123_456

        def unscaled(number: int) -> str:
            size = max(1, (number.bit_length() + 8) // 8)
            return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()

        numbers = [0, 1, -1, 127, 128, -128, -129, 2**63 - 1, -(2**63), 10**27 + 1, -(10**28) - 7]
        events = [
            {
                "id": i, "flag": i % 2 == 0, "price": unscaled(number), "small": unscaled(i), "day": -3, "at": -micros,
                "local": micros, "data": "AP8=", "d": i / 3, "words": ["x", None], "part": {"a": i}, "text": {"k": [1]},
            }
            for i, number in enumerate(numbers)
        ]  # fmt: skip
        events.append({**events[0], "id": 100, "day": "2026-01-31", "at": "2026-01-31T10:00:00+02:00", "flag": 1})
        events.append({"id": 101})
        source.put(*(debezium("c", None, event) for event in events))
        sh.cdc(
            source.stream(), "cdc.valued", warehouse=wh.url, checkpoint=str(tmp_path / "c"), times="micros",
            decimals="base64", trigger={"availableNow": True},
        ).awaitTermination()  # fmt: skip
        rows = {found["id"]: found for found in made.to_arrow().to_pylist()}
        zero, epoch = dt.timedelta(microseconds=micros), dt.datetime(1970, 1, 1)
        for i, number in enumerate(numbers):
            assert rows[i] == {
                "id": i, "flag": i % 2 == 0, "price": decimal.Decimal(f"{number}E-2"),
                "small": decimal.Decimal(f"{i}E-3"), "day": dt.date(1969, 12, 29),
                "at": (epoch - zero).replace(tzinfo=dt.UTC), "local": epoch + zero, "data": b"\x00\xff", "d": i / 3,
                "words": ["x", None], "part": {"a": i}, "text": '{"k": [1]}',
            }  # fmt: skip
        assert rows[100]["day"] == dt.date(2026, 1, 31)
        assert rows[100]["at"] == dt.datetime(2026, 1, 31, 8, tzinfo=dt.UTC)
        assert rows[100]["flag"] is True
        assert set(rows[101].values()) == {101, None}

    @pytest.mark.parametrize(("unit", "number"), [("millis", 1_500), ("micros", 1_500_000), ("nanos", 1_500_000_999)])
    def test_debezium_times_are_read_in_their_unit(self, wh, source, tmp_path, unit, number):
        made = wh.create_table(f"cdc.at_{unit}", "id BIGINT, at TIMESTAMP", primary_key=["id"])
        source.put(debezium("c", None, {"id": 1, "at": number}), debezium("c", None, {"id": 2, "at": -number}))
        trigger = {"availableNow": True}
        events = source.stream()
        sh.cdc(
            events, made.name, warehouse=wh.url, checkpoint=str(tmp_path / "c"), times=unit, trigger=trigger
        ).awaitTermination()
        found = {row["id"]: row["at"].timestamp() for row in made.to_arrow().to_pylist()}
        assert found == {1: 1.5, 2: -1.500001 if unit == "nanos" else -1.5}


class TestOthers:
    def test_maxwell_events_keep_a_table_equal(self, source, table, run):
        def event(kind: str, data: dict, **more: dict) -> dict:
            return {"database": "shop", "table": "t", "type": kind, "ts": 1, "xid": 2, "data": data, **more}

        source.put(event("bootstrap-start", {}), event("bootstrap-insert", row(1)), event("insert", row(2)))
        source.put(
            event("update", row(1, "b"), old={"name": "a"}),
            event("update", row(20), old={"id": 2}),
            event("delete", row(7)),
            {"type": "table-alter", "database": "shop"},
        )
        run(format="maxwell-json")
        assert there(table) == {1: ("b", 1), 20: ("a", 1)}
        source.put(event("delete", row(1, "b")))
        run(format="maxwell-json")
        assert there(table) == {20: ("a", 1)}

    def test_canal_events_keep_a_table_equal(self, source, table, run):
        def event(kind: str, data: list | None, old: list | None = None) -> dict:
            texts = data and [{k: v if v is None else str(v) for k, v in one.items()} for one in data]
            return {"type": kind, "data": texts, "old": old, "isDdl": data is None, "database": "shop", "table": "t"}

        source.put(event("INSERT", [row(1), row(2), row(3)]), event("ALTER", None))
        source.put(event("UPDATE", [row(1, "b"), row(20)], [{"name": "a"}, {"id": "2"}]), event("DELETE", [row(3)]))
        run(format="canal-json")
        assert there(table) == {1: ("b", 1), 20: ("a", 1)}


class TestBadEvents:
    BAD = (
        ("{no json", "it is not a JSON object"),
        ("[1]", "it is not a JSON object"),
        (debezium("c", None, {**row(1), "n": "many"}), "column 'n' is 'many', expected int"),
        (debezium("c", None, {"name": "x"}), "its row has no primary key id"),
        (debezium("d"), "its row has no primary key id"),
        (debezium("t"), "its op is 't', which is unknown"),
        ({"after": row(1)}, "it has no op"),
        (debezium("c", None, {**row(1), "id": 2**70}), "column 'id' is '1180591620717411303424', expected bigint"),
        (debezium("u", None, row(1, "__debezium_unavailable_value")), "REPLICA IDENTITY FULL"),
    )

    def test_each_has_its_reason(self, wh, source, table, run):
        source.put(debezium("c", None, row(8)), *(event for event, _ in self.BAD), debezium("c", None, row(9)))
        name = f"{table.name}_letters"
        for _ in range(2):
            run(dead_letter=name)
            assert sorted(there(table)) == [8, 9]
            letters = wh.table(name).to_arrow().to_pylist()
            assert {letter["target"] for letter in letters} == {table.name}
            letters.sort(key=lambda letter: int(letter["position"].strip("{}")))
            assert len(letters) == len(self.BAD)
            for number, (letter, (event, reason)) in enumerate(zip(letters, self.BAD, strict=True), start=1):
                assert letter["position"] == f"{{{number}}}"
                assert reason in letter["reason"]
                assert letter["event"] == (event if isinstance(event, str) else json.dumps(event))

    @pytest.mark.parametrize(("event", "reason"), BAD)
    def test_without_a_place_nothing_is_written(self, source, table, run, event, reason):
        source.put(debezium("c", None, row(8)), event)
        version = table.refresh().version
        with pytest.raises(StreamingQueryException) as raised:
            run()
        assert reason in str(raised.value)
        assert "1 events of this batch" in str(raised.value)
        assert table.refresh().version == version

    def test_unknown_columns_of_events_fail_or_are_ignored(self, source, table, run):
        source.put(debezium("c", None, {**row(1), "more": 1, "Even more": 2}))
        with pytest.raises(StreamingQueryException, match="have columns that the table does not have: Even more, more"):
            run()
        run(new_columns="ignore")
        table.alter(add_columns="more INT")
        source.put(debezium("c", None, {**row(2), "more": 5}))
        run()
        assert there(table) == {1: ("a", 1, None), 2: ("a", 1, 5)}

    def test_nulls_of_columns_that_have_none(self, wh, source, tmp_path):
        made = wh.create_table("cdc.strict", "id BIGINT, name STRING NOT NULL", primary_key=["id"])
        source.put(debezium("c", None, {"id": 1, "name": "x"}))
        trigger, checkpoint = {"availableNow": True}, str(tmp_path / "c")
        events = source.stream()
        sh.cdc(events, made.name, warehouse=wh.url, checkpoint=checkpoint, trigger=trigger).awaitTermination()
        source.put(debezium("d", {"id": 1, "name": None}), debezium("c", None, {"id": 2}))
        with pytest.raises(StreamingQueryException, match="column 'name' is null, and NOT NULL"):
            sh.cdc(events, made.name, warehouse=wh.url, checkpoint=checkpoint, trigger=trigger).awaitTermination()

    def test_rows_that_the_table_refuses(self, wh, source, tmp_path):
        ddl = "id BIGINT, n INT, code VARCHAR(3), at TIMESTAMP, price DECIMAL(9, 2), words ARRAY<STRING>"
        properties = {"table.constraint.positive": "n > 0"}
        made = wh.create_table("cdc.checked", ddl, primary_key=["id"], properties=properties)
        whole = {"n": 1, "code": "abc", "at": "2026-01-31T10:00:00Z", "price": "1.50", "words": ["x"]}
        source.put(
            debezium("c", None, {"id": 1, **whole}),
            debezium("c", None, {"id": 2, **whole, "n": 0}),
            debezium("u", None, {"id": 1, **whole, "n": -1}),
            debezium("c", None, {"id": 3, **whole, "code": "long"}),
            debezium("c", None, {"id": 4, **whole, "n": None}),
            debezium("d", {"id": 9, "n": -1}),
        )
        options = {"checkpoint": str(tmp_path / "c"), "trigger": {"availableNow": True}, "times": "micros"}
        options |= {"decimals": "text", "warehouse": wh.url}
        with pytest.raises(StreamingQueryException, match=r"CONSTRAINT_VIOLATED|SCHEMA_MISMATCH"):
            sh.cdc(source.stream(), made.name, **options).awaitTermination()
        assert made.to_arrow().num_rows == 0
        for _ in range(2):
            sh.cdc(source.stream(), made.name, dead_letter="cdc.checked_letters", **options).awaitTermination()
            rows = {found["id"]: found["n"] for found in made.to_arrow().to_pylist()}
            assert rows == {1: 1, 4: None}, "the event before the refused one counts"
            letters = wh.table("cdc.checked_letters").to_arrow().sort_by("position").to_pylist()
            assert [letter["position"] for letter in letters] == ["{1}", "{2}", "{3}"]
            breach = "its row violates constraint 'positive' CHECK (n > 0)"
            assert [letter["reason"] for letter in letters[:2]] == [breach, breach]
            assert "column 'code'" in letters[2]["reason"]

    @pytest.mark.long
    def test_a_large_value_of_bytes_that_is_not_in_the_event(self, wh, source, tmp_path):
        made = wh.create_table("cdc.toasted", "id BIGINT, data BINARY", primary_key=["id"])
        missing = base64.b64encode(b"__debezium_unavailable_value").decode()
        source.put(debezium("u", None, {"id": 1, "data": missing}))
        query = sh.cdc(
            source.stream(), made.name, warehouse=wh.url, checkpoint=str(tmp_path / "c"), trigger={"availableNow": True}
        )
        with pytest.raises(StreamingQueryException, match="REPLICA IDENTITY FULL"):
            query.awaitTermination()


class TestRefusals:
    @pytest.mark.parametrize(
        ("ddl", "properties", "options", "says"),
        [
            ("id BIGINT, at TIMESTAMP", {}, {}, "set times="),
            ("id BIGINT, d DECIMAL(9, 2)", {}, {}, "set decimals="),
            ("id BIGINT, xs ARRAY<TIMESTAMP>", {}, {}, r"column 'xs.element' is a timestamp"),
            ("id BIGINT, kv MAP<STRING, DECIMAL(9, 2)>", {}, {}, r"column 'kv.value' is a decimal"),
            (DDL, {}, {"times": "weeks"}, "times is 'weeks'"),
            (DDL, {}, {"times": "schema", "format": "maxwell-json"}, "times='schema' is only for format debezium-json"),
            (DDL, {}, {"value": "event"}, "no column 'event' of type"),
            (DDL, {}, {"position": ["lsn"]}, "no column 'lsn' to order"),
            (DDL, {"table.merge-engine": "first_row"}, {}, "merge engine first_row"),
            (DDL, {}, {"format": "avro"}, "format is 'avro', expected one of debezium-json"),
            (DDL, {}, {"registry": "http://r"}, "are only for format 'debezium-avro'"),
            (DDL, {}, {"checkpoint": " "}, "checkpoint is empty"),
        ],
    )
    def test_bad_options_are_refused_before_a_stream_runs(self, wh, source, tmp_path, ddl, properties, options, says):
        source.put("x")
        name = f"cdc.refused{abs(hash((ddl, says)))}"
        wh.create_table(name, ddl, primary_key=["id"], properties=properties)
        with pytest.raises(InvalidOptionError, match=says):
            sh.cdc(source.stream(), name, warehouse=wh.url, **{"checkpoint": str(tmp_path / "c"), **options})

    def test_cdc_without_the_jar_is_rejected(self, wh, source, tmp_path, monkeypatch):
        source.put("x")
        made = wh.create_table("cdc.jarless", DDL, primary_key=["id"])
        monkeypatch.setattr(event_formats, "_CLASS", "io.streamhouse.spark.NotThere")
        with pytest.raises(InvalidOptionError, match="cdc requires the package's jar"):
            sh.cdc(source.stream(), made.name, warehouse=wh.url, checkpoint=str(tmp_path / "c"))

    def test_tables_without_a_key_and_frames_that_do_not_stream(self, spark, wh, source, tmp_path):
        source.put("x")
        made = wh.create_table("cdc.keyless", DDL)
        with pytest.raises(InvalidOptionError, match="has no primary key"):
            sh.cdc(source.stream(), made.name, warehouse=wh.url, checkpoint=str(tmp_path / "c"))
        with pytest.raises(InvalidOptionError, match="is not a streaming DataFrame"):
            sh.cdc(spark.range(3), made.name, warehouse=wh.url, checkpoint=str(tmp_path / "c"))


def test_columns_of_json_become_variants(source, wh, tmp_path):
    """Sources send them as texts; a text that is no JSON is a bad row."""
    paimon = {"table.datalake.format": "paimon"}
    table = wh.create_table("cdc.variants", "id BIGINT, v VARIANT", primary_key=["id"], properties=paimon)
    texts = ['{"a": [1, null]}', "[2]", '"text"', None]
    source.put(*(debezium("c", None, {"id": i, "v": text}) for i, text in enumerate(texts)))
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": {"availableNow": True}}
    sh.cdc(source.stream(), table.name, warehouse=wh.url, **options).awaitTermination()
    table.refresh()
    assert {row["id"]: row["v"] for row in readable_rows(table.to_arrow())} == {
        0: {"a": [1, None]},
        1: [2],
        2: "text",
        3: None,
    }
    source.put(debezium("c", None, {"id": 9, "v": "{"}))
    with pytest.raises(StreamingQueryException, match="v"):
        sh.cdc(source.stream(), table.name, warehouse=wh.url, **options).awaitTermination()


@pytest.mark.parametrize("seed", range(3))
def test_random_batches_of_changes_leave_the_rows_of_a_dictionary(source, table, run, wh, seed):
    """Batches of changes, with restarts, tiering and batches that are sent again, leave the rows of a dictionary."""
    rng = random.Random(seed)
    model: dict[int, tuple] = {}
    for number in range(6):
        events = []
        for _ in range(rng.randrange(30)):
            key = rng.randrange(12)
            values = (rng.choice(["x", "y", None]), rng.randrange(100))
            before = row(key, *model[key]) if key in model else None
            if before is not None and rng.random() < 0.3:
                events.append(debezium("d", before))
                model.pop(key)
            elif before is not None and rng.random() < 0.3:
                new = rng.randrange(12, 20)
                events.append(debezium("u", before, row(new, *values)))
                model.pop(key)
                model[new] = values
            else:
                events.append(debezium("u" if before else "c", before, row(key, *values)))
                model[key] = values
        source.put(*events, *(["not json"] if number == 3 else []))
        run(dead_letter=f"{table.name}_letters")
        assert there(table) == model
        if number % 2:
            sh.tier(source.spark, wh.url, [table.name])
            assert {r.pop("id"): tuple(r.values()) for r in table.lake.to_arrow().to_pylist()} == model
    assert wh.table(f"{table.name}_letters").to_arrow().num_rows == 1
