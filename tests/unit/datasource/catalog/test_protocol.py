"""The names that Java and Python pass to each other are those of `jvm/protocol.json`, which Java's tests read too."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from streamhouse_spark import StreamhouseError
from streamhouse_spark.datasource import rpc_arguments
from streamhouse_spark.datasource.catalog.ddl import alter
from streamhouse_spark.datasource.catalog.procedures.spark_jobs import run_encoded_task
from streamhouse_spark.datasource.catalog.rpc import OPERATIONS, answer, operation_of
from streamhouse_spark.datasource.dml import keyed_row_writer
from streamhouse_spark.datasource.scan import catalog_options as scan_options
from streamhouse_spark.datasource.scan.arrow_reader import COUNTS_KEY
from streamhouse_spark.datasource.scan.file_systems import s3a_settings
from streamhouse_spark.datasource.scan.input_splits import ParquetSplit, SplitPlan, groups_to_json, pack_by_bucket
from streamhouse_spark.datasource.scan.pushed_filters import parse_filters
from streamhouse_spark.datasource.scan.stream_pushdown import StreamPartReader
from streamhouse_spark.datasource.source import StreamhouseDataSource
from streamhouse_spark.datasource.table_definition import format_partitioning, parse_partitioning
from streamhouse_spark.datasource.write.staging_writer import StagedCommitMessage, with_task_metrics
from unit.datasource.calls import struct
from unit.datasource.catalog.procedures.job_driver import JobDriver

PROTOCOL = json.loads((Path(__file__).parents[4] / "jvm" / "protocol.json").read_text())


class Read(dict[str, Any]):
    """A dict that remembers which of its keys were asked for, there or not; so do those within it."""

    def __init__(self, values: dict[str, Any], seen: set[str]) -> None:
        super().__init__({name: _read(value, seen) for name, value in values.items()})
        self.seen = seen

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.seen.add(str(name))
        return super().__contains__(name)


def _read(value: Any, seen: set[str]) -> Any:
    if isinstance(value, dict):
        return Read(value, seen)
    return [_read(item, seen) for item in value] if isinstance(value, list) else value


def shown(name: str) -> dict[str, Any]:
    return {"transform": "identity", "columns": [[name]], "arguments": []}


@pytest.fixture
def ask(connection):
    """Asks with all arguments that the list has for the operation, and checks what was read and what was answered."""

    def asked(operation: str, **args: Any) -> Any:
        listed = PROTOCOL["operations"][operation]
        assert sorted(args) == sorted(listed["arguments"]), operation
        args = json.loads(json.dumps(args))
        seen: set[str] = set()
        given = Read(args, seen)
        for name, value in args.items():
            dict.__setitem__(given, name, value)  # what is within, other tests look at
        found = operation_of(operation)(connection, given)
        assert seen <= set(args), operation
        assert sorted(found) == sorted(listed["answer"]), operation
        return json.loads(json.dumps(found))

    return asked


def test_each_operation_reads_what_it_is_given_and_answers_what_is_listed(ask, connection):
    assert set(PROTOCOL["operations"]) == set(OPERATIONS)
    sales, orders = {"database": "sales"}, {"database": "sales", "table": "orders"}
    declared = {"schema": struct("id BIGINT, dt DATE"), "time_zone": "UTC", "properties": {}, "as_select": False}
    partitioning = [shown("dt"), {"transform": "bucket", "columns": [["id"]], "arguments": [4]}]
    set_property = {"change": "set_property", "name": "comment", "value": "c"}

    for part in ("reads", "lakes"):
        ask("warm_up", part=part)
    ask("create_database", **sales, properties={})
    ask("alter_database", **sales, changes=[set_property])
    assert ask("database", **sales)["exists"]
    assert "sales" in ask("databases")["databases"]
    ask("create_table", **orders, **declared, partitioning=partitioning, primary_key=[], like={})
    assert ask("tables", **sales) == {"tables": ["orders"]}
    connection.table("sales.orders").append([{"id": 1, "dt": None}])
    loaded = ask("load", **orders, version=None, timestamp_us=None)
    assert ask("load_source", options={"path": " Sales.orders", "failOnDataLoss": "false"}) == loaded
    for place, kind in (("buckets", "buckets"), ("metadata_columns", "metadata_column"), ("partitioning", "transform")):
        check_keys(loaded[place], kind)
    ask("replace_table", **orders, **{**declared, "as_select": True}, partitioning=[], primary_key=[])
    staged = ask("replace_table", **orders, **declared, partitioning=[], primary_key=[])
    ask("abandon_table", **orders, uuid=staged["uuid"], replaces=staged["replaces"])
    ask("alter_table", **orders, time_zone="UTC", of_pipeline=False, changes=[set_property])
    change_type = {"change": "update_type", "path": ["id"], "type": '"long"'}
    assert ask("can_alter", **orders, uuid=loaded["uuid"], changes=[change_type])["can"]
    ask("merge_columns", **orders, schema=struct("id BIGINT, note STRING"))
    ask("check_options", name="sales.orders", mode="readStream", options={"failOnDataLoss": "false"})
    chosen = {"snapshot": loaded["snapshot"], "options": {}}
    read = {"columns": ["id"], "filters": [], "limit": None, "parallelism": 2, "native_schemes": ["file"]}
    planned = ask("plan", **chosen, **read, hadoop_version="3.5.0", reads_once=True, drops_rows=True, stays_keyed=False)
    check_keys(planned["hot"], "hot_group")
    counted = ask("aggregate", **chosen, aggregates=[{"function": "count_star", "column": None}])
    assert counted["row"] == [1]
    for reply in (loaded, planned, counted):
        check_keys(reply["validators"], "validator")
    assert ask("partition_values", **orders, names=[], values=[]) == {"partitions": [[None]]}
    ask("drop_partitions", **orders, uuid=loaded["uuid"], partitions=[[None]])
    ask("truncate_partitions", **orders, uuid=loaded["uuid"], partitions=[[None]])
    ask("truncate_table", **orders, uuid=loaded["uuid"])
    found = ask("procedures")["procedures"]
    check_keys(found, "procedure")
    check_keys([parameter for procedure in found for parameter in procedure["parameters"]], "parameter")
    ask("call_procedure", name="table_status", arguments={"table": "sales.orders"}, jobs=None)
    staged = ask("replace_table", **orders, **declared, partitioning=[], primary_key=[])
    ask("publish_table", **orders, uuid=staged["uuid"], replaces=staged["replaces"])
    keyed = {"database": "sales", "table": "keyed"}
    ask("create_table", **keyed, **declared, partitioning=[], primary_key=["id"], like={})
    pinned = ask("load", **keyed, version=None, timestamp_us=None)["snapshot"]
    ask("row_level_operation", snapshot=pinned, command="DELETE", options={})
    asked = {"by": "version", "start": "1", "end": None, "includes_start": True, "includes_end": True}
    changes = ask("load_changes", **keyed, range=asked, mode="none")
    start = {"uuid": changes["uuid"], "commit": 0, "attempt": None, "time_us": None}
    assert sorted(start) == sorted(PROTOCOL["given"]["offset_of_changes"])
    assert ask("end_of_changes", snapshot=changes["snapshot"], start=start, until=None) == {"newest": 1, "offset": None}
    connection.table("sales.keyed").upsert([{"id": 1, "dt": None}])
    end = ask("end_of_changes", snapshot=changes["snapshot"], start=start, until=None)["offset"]
    assert sorted(end) == sorted(start)
    more = {
        "options": {},
        "hadoop_version": "3.5.0",
        "reads_once": True,
        "drops_rows": True,
        "start": start,
        "end": end,
    }
    ask("plan_batch_of_changes", snapshot=changes["snapshot"], **read, **more)
    view = {"text": "select 1 AS one", "schema": struct("one INT"), "catalog": None, "namespace": ["sales"]}
    view |= {"query_columns": [], "schema_mode": None, "configs": {"a": "b"}, "properties": {"comment": "c"}}
    named = {"database": "sales", "table": "ones"}
    assert sorted(view) == sorted(PROTOCOL["given"]["view"])
    ask("create_view", **named, view=view, replace=False)
    ask("replace_view", **named, view={**view, "text": "select 2 AS one"})
    assert ask("load_view", **named)["view"] == {**view, "text": "select 2 AS one"}
    check_keys(view, "view")
    assert ask("views", **sales) == {"views": ["ones"]}
    ask("rename_view", **named, to_database="sales", to_table="twos")
    assert ask("drop_view", database="sales", table="twos") == {"dropped": True}
    log = ask("load", database="sales", table="keyed$changelog", version=None, timestamp_us=None)["snapshot"]
    reached = {"snapshot": log, "native_schemes": ["file"], "hadoop_version": "3.5.0"}
    begun = ask("begin_real_time", **reached, options={"startingOffsets": "latest"})
    following = {"start": begun["offset"], "parallelism": 2, "tasks": 1, "taken": 0, "columns": ["id", "dt"]}
    followed = ask("plan_real_time_batch", **reached, options={}, initial_schema=begun["initial_schema"], **following)
    check_keys(followed["tasks"], "task")
    check_keys(followed["tasks"][0]["buckets"], "followed_bucket")
    check_keys(list(followed["tasks"][0]["layouts"].values()), "layout")
    ask("finish_real_time", **reached, options={"consumerId": "c"}, end=followed["offset"])
    written = {"name": "sales.keyed", "uuid": changes["uuid"], "query": "q", "source": "s", "batch": 0, "options": {}}
    assert ask("begin_real_time_write", **written, source_name="sales.log", buckets=2) == {"offsets": {}}
    assert ask("end_real_time_write", **written) == {}
    ask("rename_table", **keyed, to_database="sales", to_table="renamed")
    assert ask("drop_table", **orders, purge=True) == {"dropped": True}
    ask("drop_table", database="sales", table="renamed", purge=False)
    assert ask("drop_database", **sales, cascade=False) == {"dropped": True}


def check_keys(found: Any, kind: str) -> None:
    found = found if isinstance(found, list) else [found]
    assert found
    assert {tuple(sorted(one)) for one in found} == {tuple(sorted(PROTOCOL["answered"][kind]))}


def test_native_groups_and_their_files_have_the_names_that_are_listed():
    unit = ParquetSplit("file:///a", 0, 1, 1, 0, 1, 1)
    groups = groups_to_json(pack_by_bucket(SplitPlan([unit], [], 1 << 20, 1 << 20), 2))
    check_keys(groups["native"], "native_group")
    check_keys([file for group in groups["native"] for file in group["files"]], "file")
    check_keys([one.to_json() for one in s3a_settings("b", {"s3.region": "eu-west-1"})], "file_system")


@pytest.mark.usefixtures("catalog")
def test_the_reply_is_an_answer_or_an_error(connection):
    call = {rpc_arguments.CALL_OPTION: "databases", rpc_arguments.ARGUMENTS_OPTION: "{}"}
    found = [json.loads(answer(lambda: connection, call).fields[0].metadata["json"])]
    call = {rpc_arguments.CALL_OPTION: "load", rpc_arguments.ARGUMENTS_OPTION: '{"database": "a", "table": "b"}'}
    found.append(json.loads(answer(lambda: connection, call).fields[0].metadata["json"]))
    assert [name for reply in found for name in reply] == PROTOCOL["answered"]["reply"]
    assert sorted(found[1]["error"]) == sorted(PROTOCOL["answered"]["error"])


def test_options_are_those_that_are_listed():
    found = {
        name.removesuffix("_OPTION"): value for name, value in vars(rpc_arguments).items() if name.endswith("_OPTION")
    }
    assert {**found, "PART_PROPERTY": keyed_row_writer._PART_PROPERTY} == PROTOCOL["options"]
    listed = [name for name in PROTOCOL["options"].values() if name.startswith("__")]
    assert all(rpc_arguments.is_internal(name) for name in listed)


def test_what_a_query_needs_of_a_stream_is_read_by_the_names_that_are_listed(catalog, connection, warehouse_path):
    declared = {"schema": struct("id BIGINT"), "partitioning": [], "properties": {}, "primary_key": []}
    catalog.call("create_table", database="sales", table="orders", **declared, like={})
    connection.table("sales.orders").append([{"id": 1}])
    options = {"path": "sales.orders", "warehouse": warehouse_path, rpc_arguments.NEED_OPTION: "true"}
    reader = StreamhouseDataSource(options).streamReader(StructType().add("id", LongType()))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    seen: set[str] = set()
    schema = json.loads(struct("id BIGINT"))
    need = Read({"columns": ["id"], "schema": schema, "filters": []}, seen)
    (part,) = reader.partitions({**start, rpc_arguments.NEED_OPTION: need}, end)
    assert seen == set(PROTOCOL["given"]["need"])
    check_keys(reader.reportLatestOffset()[rpc_arguments.LAG_OPTION], "lag")
    last = list(StreamPartReader(connection).read(part))[-1].column(0)[0].as_py()
    check_keys(json.loads(pa.ipc.open_stream(last).schema.metadata[COUNTS_KEY.encode()]), "counts")


def test_counts_of_a_write():
    message = with_task_metrics(lambda: StagedCommitMessage(None))
    check_keys(json.loads(message.counts.removeprefix(COUNTS_KEY)), "counts_of_write")
    assert pickle.dumps(message).rindex(COUNTS_KEY.encode()) > pickle.dumps(message).rindex(b"partitions")


def test_what_a_job_is_asked_for_and_what_its_tasks_answer(catalog, connection, warehouse_path):
    catalog.create("sales", "orders", "id bigint")
    connection.table("sales.orders").append([{"id": 1}])
    driver = JobDriver(warehouse_path)
    try:
        given = {"table": "sales.orders", "spark_job": True}
        catalog.call("call_procedure", name="tier", arguments=given, jobs=driver.address)
        with pytest.raises(StreamhouseError, match="ended before it replied"):
            catalog.call("call_procedure", name="refresh", arguments={"table": "sales.orders"}, jobs=driver.address)
    finally:
        driver.close()
    check_keys(driver.asked, "job")
    check_keys(driver.sessions, "session_asked")
    check_keys([run_encoded_task(connection, task) for job in driver.asked for task in job["tasks"]], "outcome")


def test_conditions_that_java_knows_are_those_that_python_raises(catalog):
    declared = {"schema": struct("id BIGINT"), "partitioning": [], "properties": {}, "primary_key": []}
    catalog.call("create_table", database="sales", table="orders", **declared)
    view = {"text": "", "schema": "", "catalog": None, "namespace": [], "query_columns": [], "schema_mode": None}
    view |= {"configs": {}, "properties": {}}
    catalog.call("create_view", database="sales", table="a_view", view=view, replace=False)
    refused = [
        ("create_view", {"database": "sales", "table": "a_view", "view": view, "replace": False}),
        ("load_view", {"database": "sales", "table": "gone"}),
        ("load", {"database": "sales", "table": "a_view"}),
        ("create_database", {"database": "sales", "properties": {}}),
        ("drop_database", {"database": "sales", "cascade": False}),
        ("tables", {"database": "gone"}),
        ("create_table", {"database": "sales", "table": "orders", **declared}),
        ("load", {"database": "sales", "table": "gone"}),
    ]
    found = set()
    for operation, args in refused:
        with pytest.raises(StreamhouseError) as error:
            catalog.call(operation, **args)
        found.add(error.value.condition)
    assert found == set(PROTOCOL["conditions"])


def test_changes_that_python_knows_are_those_that_java_names():
    """A change that Java has no name for is `other`; it is refused by the name of its class."""
    assert {*_cases(alter._collect_change), *_cases(alter._collect_column_change), "other"} == set(PROTOCOL["changes"])


def test_modes_of_options_are_those_that_java_names():
    assert set(_cases(scan_options.check_options)) == set(PROTOCOL["modes"])


def _cases(function: Any) -> Iterator[str]:
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        if isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant):
            yield node.value.value


def test_trees_are_read_by_the_names_that_are_listed(wh):
    seen: set[str] = set()
    column, literal = {"column": ["id"]}, {"literal": 1, "type": '"long"'}
    compared = {"op": "=", "children": [column, literal]}
    state = wh.create_table("d.t", "id BIGINT", partition_by=[]).state
    tree = {"op": "AND", "children": [compared, {"op": "IN", "children": [column, literal]}, {"unknown": "f(id)"}]}
    parse_filters([Read(tree, seen)], {field.name: field.type for field in state.schema.arrow})
    assert seen == {"op", "children", "column", "literal", "type"}
    assert seen | {"unknown"} == set(PROTOCOL["given"]["expression"])


def test_transforms_have_the_names_that_are_listed(wh):
    seen: set[str] = set()
    bucket = {"transform": "bucket", "columns": [["id"]], "arguments": [4]}
    assert parse_partitioning([Read(bucket, seen), Read(shown("dt"), seen)]).fields == ("dt",)
    assert seen == set(PROTOCOL["given"]["transform"])
    table = wh.create_table("d.t", "id BIGINT, dt DATE", partition_by=["dt"])
    check_keys(format_partitioning(table.state), "transform")
