"""Procedures whose files are written by tasks of Spark jobs, with a driver that stands in for Spark's."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from streamhouse_spark import CommitConflictError, InvalidOptionError, OffsetsTrimmedError, StreamhouseError
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.datasource.catalog.procedures import spark_jobs as jobs_module
from streamhouse_spark.datasource.catalog.procedures import spark_jobs as tasks_module
from streamhouse_spark.lake.iceberg import compaction
from unit.datasource.catalog.procedures.job_driver import JobDriver

ROUNDS, ROWS = 6, 40


@pytest.fixture
def driver(warehouse_path):
    with_jobs = JobDriver(warehouse_path)
    yield with_jobs
    with_jobs.close()


@pytest.fixture
def call(catalog, driver):
    def run(name, jobs=driver, **arguments):
        given = {"name": name, "arguments": {"table": "sales.orders", **arguments}}
        found = catalog.call("call_procedure", **given, jobs=jobs and jobs.address)
        names = [field["name"] for field in json.loads(found["schema"])["fields"]]
        (row,) = found["rows"]
        return dict(zip(names, row, strict=True))

    return run


OTHER_KINDS = [pytest.param(kind, marks=pytest.mark.long) for kind in ("paimon", "iceberg by key")]


@pytest.fixture(params=["iceberg", "paimon by key", *OTHER_KINDS])
def table(catalog, request):
    lake, *keyed = request.param.split(" by ")
    properties = {"bucket.num": "3", "bucket.key": "id", "table.datalake.format": lake}
    key = ["id"] if keyed else []
    columns = "id bigint not null, turn int" if keyed else "id bigint, turn int"
    catalog.create("sales", "orders", columns, properties=properties, primary_key=key)
    return catalog.connection.table("sales.orders")


@pytest.fixture
def in_iceberg(catalog):
    catalog.create("sales", "orders", "id bigint, turn int", properties={"bucket.num": "3", "bucket.key": "id"})
    return catalog.connection.table("sales.orders")


def rows_of(turn, *, keyed=False):
    """Of a table with a primary key, each round has the rows of the one before again."""
    first = 0 if keyed else turn * ROWS
    return pa.table({"id": range(first, first + ROWS), "turn": pa.array([turn] * ROWS, pa.int32())})


def write(table, turn):
    keyed = bool(table.state.primary_key)
    (table.upsert if keyed else table.append)(rows_of(turn, keyed=keyed))


def rows_in(found):
    return sorted(zip(found["id"].to_pylist(), found["turn"].to_pylist(), strict=True))


def test_tasks_write_the_files_of_rounds_and_of_compaction(call, driver, table):
    keyed = bool(table.state.primary_key)
    for turn in range(ROUNDS):
        write(table, turn)
        shown = call("tier", spark_job=True, dry_run=True)
        assert (shown["rows"], shown["snapshots"], shown["dry_run"]) == (ROWS * (2 if keyed and turn else 1), 0, True)
        assert driver.jobs == []
        done = call("tier", spark_job=True)
        assert (done["rows"], done["snapshots"], done["conflicts"]) == (ROWS, 1, 0)
        assert driver.jobs.pop() == ("tier sales.orders: 3 tasks, 0 MiB", 3)
    expected = rows_in(table.to_arrow())
    assert len(expected) == (ROWS if keyed else ROUNDS * ROWS)
    assert call("compact", spark_job=True, dry_run=True)["files_removed"] >= 18
    assert driver.jobs == []
    done = call("compact", spark_job=True)
    assert (done["rows"], done["files_added"], done["healed_rows"]) == (len(expected), 3, 0)
    assert done["files_removed"] >= 18
    assert driver.jobs.pop() == ("compact sales.orders: 3 groups of files, 0 MiB", 3)
    assert rows_in(table.lake.to_arrow()) == rows_in(table.to_arrow()) == expected
    assert call("compact", spark_job=True)["files_removed"] == 0
    assert driver.jobs == []


def test_tasks_lay_rows_out(call, driver, in_iceberg):
    for turn in range(2):
        write(in_iceberg, turn)
        call("tier")
    assert driver.jobs == []
    done = call("optimize", order_by="turn", where="id >= 0", spark_job=True)
    assert (done["rows"], done["files_removed"]) == (2 * ROWS, 6)
    assert driver.jobs.pop() == ("optimize sales.orders: 3 groups of files, 0 MiB", 3)
    assert rows_in(in_iceberg.lake.to_arrow()) == rows_in(in_iceberg.to_arrow())
    assert call("optimize", order_by="turn", spark_job=True)["rows"] == 0


def test_a_job_is_run_where_there_is_much_to_write(call, driver, in_iceberg, monkeypatch):
    for turn in range(ROUNDS):
        write(in_iceberg, turn)
        call("tier", spark_job=[None, False][turn % 2])
    call("compact")
    assert driver.jobs == []
    monkeypatch.setattr(jobs_module, "JOB_BYTES_MIN", 1)
    call("optimize", order_by="turn", spark_job=False)
    assert driver.jobs == []
    write(in_iceberg, ROUNDS)
    call("tier")
    call("optimize", order_by="id")
    assert [description.split()[0] for description, _ in driver.jobs] == ["tier", "optimize"]
    write(in_iceberg, ROUNDS + 1)
    assert call("tier", jobs=None)["rows"] == ROWS
    assert len(driver.jobs) == 2


def test_without_a_driver_of_jobs_none_can_be_asked_for(call, in_iceberg):
    refused = pytest.raises(
        InvalidOptionError, match="spark_job is true, but the session's jar is from another version"
    )
    write(in_iceberg, 0)
    with refused:
        call("tier", jobs=None, spark_job=True)
    for turn in range(1, ROUNDS + 1):
        call("tier", jobs=None)
        write(in_iceberg, turn)
    with refused:
        call("compact", jobs=None, spark_job=True)
    with refused:
        call("optimize", jobs=None, spark_job=True, order_by="id")


def test_a_job_that_ends_early_commits_nothing(call, warehouse_path, table):
    lost = JobDriver(warehouse_path, failing=frozenset({0, 1}))
    try:
        write(table, 0)
        with pytest.raises(StreamhouseError, match=r"JOB_ENDED: tier sales\.orders: .*the Spark job ended early"):
            call("tier", jobs=lost, spark_job=True)
        assert table.lake.newest() is None
        assert call("tier", spark_job=True)["rows"] == ROWS
        for turn in range(1, ROUNDS):
            write(table, turn)
            call("tier")
        before, files = table.lake.newest(), rows_in(table.lake.to_arrow())
        with pytest.raises(StreamhouseError, match=r"JOB_ENDED: compact sales\.orders: "):
            call("compact", jobs=lost, spark_job=True)
        assert table.lake.newest() == before
        assert lost.jobs[1][1] == 3
    finally:
        lost.close()
    done = call("compact", spark_job=True)
    assert (done["files_added"], done["rows"]) == (3, len(files))
    assert rows_in(table.lake.to_arrow()) == files


def test_what_was_committed_before_a_job_that_ends_early_stays(call, warehouse_path, in_iceberg, monkeypatch):
    monkeypatch.setattr(compaction, "DISTRIBUTED_BYTES_MAX", 1)  # a group a commit
    for turn in range(ROUNDS):
        write(in_iceberg, turn)
        call("tier")
    lost = JobDriver(warehouse_path, failing=frozenset({1}))
    try:
        with pytest.raises(StreamhouseError, match="JOB_ENDED"):
            call("compact", jobs=lost, spark_job=True)
    finally:
        lost.close()
    assert in_iceberg.lake.files().num_rows == 2 * ROUNDS + 1
    done = call("compact", spark_job=True)
    assert (done["files_removed"], done["files_added"]) == (2 * ROUNDS, 2)
    assert rows_in(in_iceberg.lake.to_arrow()) == rows_in(in_iceberg.to_arrow())


def test_a_driver_that_is_gone_ends_the_call(call, warehouse_path, in_iceberg):
    gone = JobDriver(warehouse_path)
    gone.close()
    write(in_iceberg, 0)
    with pytest.raises(StreamhouseError, match="JOB_ENDED"):
        call("tier", jobs=gone, spark_job=True)
    assert in_iceberg.lake.newest() is None


def test_a_task_tells_that_others_were_faster_and_the_round_is_planned_again(call, driver, in_iceberg, monkeypatch):
    write(in_iceberg, 0)
    run, failures = tasks_module.run_on_executor, []

    def trimmed_meanwhile(connection, tasks):
        if len(failures) < 2:  # an attempt, and the one that repeats it
            failures.append(tasks)
            raise OffsetsTrimmedError("others tiered these rows, and trimmed them")
        return run(connection, tasks)

    monkeypatch.setattr(tasks_module, "run_on_executor", trimmed_meanwhile)
    done = call("tier", spark_job=True)
    assert (done["rows"], done["conflicts"], done["snapshots"]) == (ROWS, 1, 1)
    assert len(driver.jobs) == 2
    assert rows_in(in_iceberg.lake.to_arrow()) == rows_in(in_iceberg.to_arrow())


def refused(*_args):
    raise CommitConflictError("rows were deleted")


def test_a_conflict_in_a_task_is_the_conflict_of_the_call(call, in_iceberg, monkeypatch):
    for turn in range(ROUNDS):
        write(in_iceberg, turn)
        call("tier")
    monkeypatch.setattr(compaction, "merge_group", refused)
    with pytest.raises(CommitConflictError, match=r"^COMMIT_CONFLICT: rows were deleted$"):
        call("compact", spark_job=True)


def test_an_outcome_says_how_much_was_written(connection, monkeypatch):
    file = {"num_rows": 2, "size_bytes": 30}
    for result, rows in (([[file, file], [file]], 6), ({"files": [file], "num_read": 5}, 2), ([[], []], 0)):
        monkeypatch.setattr(tasks_module, "run_on_executor", lambda *_, r=result: r)
        found = tasks_module.run_encoded_task(connection, json.dumps({"round": []}))
        assert (found["rows"], found["bytes"], found["result"]) == (rows, 15 * rows, result)
        assert tasks_module.decode_outcome(json.dumps(found)) == result


def test_a_process_that_does_not_get_into_the_session_ends_and_changes_nothing(catalog, call, driver):
    definition = ViewDefinition("SELECT id FROM sales.t", "incremental", 1000, ("id",), "natural", {})
    warehouse = catalog.connection.warehouse()
    view = warehouse.create_table(
        "sales.orders", "id BIGINT NOT NULL", primary_key=["id"], properties={VIEW: definition.to_text()}
    )
    with pytest.raises(StreamhouseError, match="the subprocess ended before it replied") as error:
        call("refresh")
    assert error.value.condition == "JOB_ENDED"
    assert view.refresh().version == 1
    assert driver.jobs == []
