"""Bad input: a typed error whose only line says what to do, before anything is written; earlier data stays readable."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from streamhouse_spark import Transaction, Warehouse
from streamhouse_spark.errors import (
    InvalidNameError,
    InvalidOptionError,
    SchemaMismatchError,
    StorageError,
    StreamhouseError,
    TableExistsError,
    TableNotFoundError,
    WarehouseNotFoundError,
)
from streamhouse_spark.write.auto_compaction import compact_inline_rows

DDL = "id BIGINT NOT NULL, name STRING"
BAD_NAMES = {
    "empty": "",
    "dots": "..",
    "up": "../orders",
    "up inside": "sales/../../orders",
    "slash": "sales/orders",
    "absolute": "/etc/passwd",
    "backslash": "sales\\orders",
    "nul": "orders\x00",
    "newline": "orders\n",
    "encoded": "%2e%2e%2forders",
    "percent": "%",
    "unicode": "ördérs",
    "look-alike": "оrders",
    "casing that folds to two letters": "straße",
    "dotted capital i": "İd",
    "kelvin sign": "\u212a",
    "full-width": "\uff4frders",
    "emoji": "🦀",
    "300 characters": "x" * 300,
    "129 characters": "x" * 129,
    "space": "or ders",
    "leading space": " orders",
    "dash": "or-ders",
    "digit first": "1orders",
    "quoted": "`orders`",
    "sql": "orders; DROP TABLE x",
    "dot at the end": "orders.",
    "dot at the front": ".orders",
    "dollar alone": "$",
    "suffix alone": "$lake",
    "dollar at the end": "orders$",
    "bidirectional": "orders\u202e",
    "zero-width": "or\u200bders",
    "device": "con:",
}
NUMBERS = Transaction("streamhouse.identity.1", 10)
"""An application id of the log's own."""
NO_STRINGS = [None, 5, b"orders", ["orders"], ("sales", "orders"), Path("orders")]


def tree(root: Path) -> dict[str, bytes]:
    """Every file with its bytes; lock files are hints, and empty folders nothing."""
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.name != ".lock"]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "wh"


@pytest.fixture
def wh(root) -> Warehouse:
    wh = Warehouse(str(root))
    wh.create_table("sales.orders", DDL).append([{"id": 1, "name": "kept"}])
    return wh


@pytest.fixture
def refused(wh, root, tmp_path) -> Callable[..., str]:
    """Ask, expect an error of a kind that changes nothing, and give its text."""

    def refuse(kind: type[StreamhouseError] | tuple[type[StreamhouseError], ...], ask: Callable[[], object]) -> str:
        before = tree(tmp_path)
        with pytest.raises(kind) as error:
            ask()
        text = str(error.value)
        assert "\n" not in text
        assert text.startswith(f"{error.value.condition}: ")
        assert len(text) < 1000
        assert tree(tmp_path) == before
        assert Warehouse(str(root)).table("sales.orders").to_arrow().to_pylist() == [{"id": 1, "name": "kept"}]
        return text

    return refuse


class TestNames:
    @pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
    def test_bad_table_names_are_rejected(self, wh, refused, name):
        for spelled in (name, f"sales.{name}", *([] if "$" in name else [f"{name}.orders"])):
            for ask in (
                lambda: wh.create_table(spelled, DDL),  # noqa: B023
                lambda: wh.table(spelled),  # noqa: B023
                lambda: wh.view(spelled),  # noqa: B023
                lambda: wh.exists(spelled),  # noqa: B023
                lambda: wh.drop_table(spelled, if_exists=True),  # noqa: B023
            ):
                refused(InvalidNameError, ask)

    @pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
    def test_bad_database_names_are_rejected(self, wh, refused, name):
        refused(InvalidNameError, lambda: wh.create_database(name))
        refused(InvalidNameError, lambda: wh.tables(name))

    @pytest.mark.parametrize("name", NO_STRINGS, ids=repr)
    def test_that_are_no_strings(self, wh, refused, name):
        for ask in (
            lambda: wh.table(name),
            lambda: wh.view(name),
            lambda: wh.exists(name),
            lambda: wh.create_table(name, DDL),
            lambda: wh.drop_table(name),
            lambda: wh.create_database(name),
        ):
            refused(InvalidNameError, ask)

    @pytest.mark.parametrize("name", ["sales.orders.x", "a.b.c.d", "sales..orders"])
    def test_names_with_too_many_parts_are_rejected(self, wh, refused, name):
        refused(InvalidNameError, lambda: wh.table(name))

    @pytest.mark.parametrize(
        "suffix", ["lakes", "changelogs", "LAKE$", "x" * 300, "a\nb", "\x00", "../x", "öl", "lake$nope"]
    )
    def test_unknown_suffixes_name_the_known_ones(self, wh, refused, suffix):
        text = refused((InvalidNameError, InvalidOptionError), lambda: wh.view(f"sales.orders${suffix}"))
        if not suffix.lower().startswith("lake$"):
            assert "$changelog" in text, "the error says what exists"

    def test_suffixes_of_tables_ignore_case(self, wh):
        assert wh.view("SALES.Orders$Changelog").to_arrow().num_rows == 1

    def test_lake_suffixes_of_a_table_without_a_lake_are_rejected(self, wh):
        wh.create_table("plain", DDL, properties={"table.datalake.enabled": "false"})
        for suffix in ("lake", "lake$snapshots"):
            with pytest.raises(InvalidNameError, match=r"has no lake.*available: \$changelog"):
                wh.view(f"plain${suffix}")
        with pytest.raises(InvalidOptionError, match="has no lake"):
            _ = wh.table("plain").lake
        with pytest.raises(InvalidNameError, match="only primary-key tables"):
            wh.view("plain$binlog")

    def test_unknown_names_suggest_the_nearest(self, wh, refused):
        assert "did you mean sales.orders?" in refused(TableNotFoundError, lambda: wh.table("sales.order"))
        assert "did you mean sales.orders?" in refused(TableNotFoundError, lambda: wh.table("sale.orders"))
        assert "did you mean sales?" in refused(TableNotFoundError, lambda: wh.tables("sale"))
        refused(TableNotFoundError, lambda: wh.view("sales.nothing$changelog"))
        refused(TableNotFoundError, lambda: wh.drop_table("sales.nothing"))


class TestSchemas:
    @pytest.mark.parametrize(
        "schema",
        [
            "",
            "id",
            "id BIGINTT",
            "id BIGINT,",
            "id BIGINT id STRING",
            "id BIGINT, ID STRING",
            "_change_type STRING",
            "_LOG_OFFSET INT",
            "x DECIMAL(39,2)",
            "x DECIMAL(5,6)",
            "x INTERVAL",
            "x VARIANT",
            "x ARRAY<",
            "x MAP<STRING>",
            "`` INT",
            pa.schema([]),
            pa.schema([("x", pa.time64("us"))]),
            pa.schema([("x", pa.duration("s"))]),
            pa.schema([("x", pa.decimal256(50, 2))]),
            pa.schema([("x", pa.null())]),
            pa.schema([("x", pa.int32()), ("X", pa.int32())]),
            pa.schema([("x", pa.dense_union([pa.field("a", pa.int32())]))]),
            pa.schema([("x\ny", pa.int32())]),
            pa.schema([("x" * 300, pa.int32())]),
            5,
            None,
            {"id": "BIGINT"},
            [("id", "BIGINT")],
        ],
        ids=lambda s: str(s)[:40],
    )
    def test_schemas_that_cannot_be_are_rejected(self, wh, refused, schema):
        refused(SchemaMismatchError, lambda: wh.create_table("sales.other", schema))

    @pytest.mark.parametrize(
        ("asked", "kind"),
        [
            ({"buckets": 0}, InvalidOptionError),
            ({"buckets": -1}, InvalidOptionError),
            ({"buckets": 2.5}, InvalidOptionError),
            ({"buckets": "many"}, InvalidOptionError),
            ({"buckets": 10**6}, InvalidOptionError),
            ({"partition_by": ["nope"]}, SchemaMismatchError),
            ({"partition_by": ["name", "NAME"]}, InvalidOptionError),
            ({"partition_by": ["id", "name"]}, InvalidOptionError),
            ({"partition_by": "name"}, (InvalidOptionError, SchemaMismatchError)),
            ({"primary_key": ["nope"]}, SchemaMismatchError),
            ({"properties": {"bucket.numm": "3"}}, InvalidOptionError),
            ({"properties": {"bucket.num": "x"}}, InvalidOptionError),
            ({"properties": {"bucket.key": "nope"}}, SchemaMismatchError),
            ({"properties": {"bucket.key": "id,name"}}, InvalidOptionError),
            ({"properties": {"table.datalake.format": "hudi"}}, InvalidOptionError),
            ({"properties": {"table.datalake.enabled": "perhaps"}}, InvalidOptionError),
            ({"properties": {"table.log.ttl": "-1d"}}, InvalidOptionError),
            ({"properties": {"table.log.ttl": "7 fortnights"}}, InvalidOptionError),
            ({"properties": {"table.log.arrow.compression.type": "brotli"}}, InvalidOptionError),
            ({"properties": {"table.statistics.columns": "nope"}}, SchemaMismatchError),
            ({"properties": {"comment": "key AKIA1234567890ABCDEF"}}, InvalidOptionError),
            ({"properties": {"line\nbreak": "x"}}, InvalidOptionError),
            ({"properties": {"": "x"}}, InvalidOptionError),
            ({"properties": {"table.merge-engine": "first_row"}}, InvalidOptionError),
        ],
        ids=str,
    )
    def test_options_that_cannot_be(self, wh, refused, asked, kind):
        text = refused(kind, lambda: wh.create_table("sales.other", DDL, **asked))
        assert "AKIA" not in text

    def test_nothing_is_made_for_a_refused_first_table(self, tmp_path):
        for ask in (
            lambda wh: wh.create_table("../x", DDL),
            lambda wh: wh.create_table("t", "id"),
            lambda wh: wh.create_table("t", DDL, buckets=0),
            lambda wh: wh.create_database("a/b"),
        ):
            with pytest.raises(StreamhouseError):
                ask(Warehouse(str(tmp_path / "new")))
            assert not (tmp_path / "new").exists()


class TestLocations:
    def test_there_is_no_warehouse(self, tmp_path):
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("x")
        for name in ("absent", "empty", "file", "file/below"):
            wh = Warehouse(str(tmp_path / name))
            for ask in (wh.tables, lambda: wh.table("a.b"), lambda: wh.view("a.b$lake")):  # noqa: B023
                with pytest.raises(WarehouseNotFoundError, match=r"no streamhouse\.json.*create_table"):
                    ask()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file"]

    def test_a_directory_with_other_files_is_no_warehouse(self, tmp_path):
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.jpg").write_text("x")
        before = tree(tmp_path)
        for location in (tmp_path, tmp_path / "photos"):
            with pytest.raises(WarehouseNotFoundError, match="expected an empty location"):
                Warehouse(str(location)).create_table("t", DDL)
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("below", ["", "/wh", "/a/b"])
    def test_a_file_where_the_directory_should_be(self, tmp_path, below):
        (tmp_path / "file").write_text("x")
        with pytest.raises(StorageError, match=r"(?i)not a directory") as error:
            Warehouse(f"{tmp_path}/file{below}").create_table("t", DDL)
        assert "choose" in str(error.value)
        assert (tmp_path / "file").read_text() == "x"

    @pytest.mark.parametrize(
        "location",
        ["", "ftp://host/wh", "http://host/wh", "hdfs:///wh", "file://otherhost/wh", "s3://", "a\x00b", "x" * 5000],
        ids=lambda s: s[:20],
    )
    def test_locations_that_cannot_be_are_rejected(self, location):
        with pytest.raises(StreamhouseError) as error:
            Warehouse(location).create_table("t", DDL)
        assert "\n" not in str(error.value)

    def test_a_damaged_warehouse_file_is_an_error(self, wh, root):
        (root / "streamhouse.json").write_text("{}")
        with pytest.raises(StreamhouseError, match="restore this file"):
            Warehouse(str(root)).tables()
        with pytest.raises(StreamhouseError, match="restore this file"):
            Warehouse(str(root)).create_table("t", DDL)


class TestReads:
    @pytest.fixture
    def table(self, wh):
        return wh.table("sales.orders")

    @pytest.mark.parametrize(
        "start",
        ["first", "", None, 5, {9: 0}, {"0": 0}, {0: "x"}, {0: -5}, {0: 1.5}, {0: None}, {0: 2}, {0: 10**30}],
        ids=repr,
    )
    def test_bad_starts_of_tails_are_rejected(self, table, refused, start):
        refused(InvalidOptionError, lambda: table.tail(start))

    def test_a_start_without_a_zone(self, table, refused):
        import datetime as dt

        assert "zone" in refused(InvalidOptionError, lambda: table.tail(dt.datetime(2026, 1, 1)))

    def test_unknown_columns_of_reads_are_rejected(self, wh, table, refused):
        for ask in (
            lambda: table.to_arrow(columns=["nmae"]),
            lambda: table.tail(columns=["nmae"]),
            lambda: wh.view("sales.orders$changelog").to_arrow(columns=["nmae"]),
            lambda: wh.view("sales.orders$changelog").to_arrow(filter=[("nmae", "=", 1)]),
        ):
            assert "'name'" in refused(SchemaMismatchError, ask)
        assert "bucket" in refused(
            SchemaMismatchError, lambda: wh.view("sales.orders$buckets").to_arrow(columns=["buckett"])
        )

    def test_grace_periods_below_the_minimum_are_rejected(self, table, refused):
        for grace_ms in (0, -1, 1000):
            refused(InvalidOptionError, lambda: table.maintain(grace_ms=grace_ms))  # noqa: B023
            refused(InvalidOptionError, lambda: table.maintain(grace_ms=grace_ms, dry_run=True))  # noqa: B023

    def test_rows_that_do_not_fit_are_rejected(self, table, refused):
        refused(SchemaMismatchError, lambda: table.append([{"id": 1, "nmae": "x"}]))
        refused(SchemaMismatchError, lambda: table.append([{"name": "x"}]))
        refused(SchemaMismatchError, lambda: table.append(pa.table({"id": ["1"]})))

    def test_a_table_with_a_taken_name_is_rejected(self, wh, refused):
        refused(TableExistsError, lambda: wh.create_table("Sales.ORDERS", DDL))


# -- disks that refuse ------------------------------------------------------------------------------------------------

_CHILD = """
import importlib, os, pkgutil, resource, signal, sys
import pyarrow as pa
import pyarrow.dataset
import streamhouse_spark as sh
root, uid, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
if uid:  # who may then not reach the modules that are loaded when they are asked for
    for module in pkgutil.walk_packages(sh.__path__, sh.__name__ + "."):
        if module.name.split(".")[1] not in ("cli", "datasource", "demo"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if "STREAMHOUSE_TEST_WITHOUT_PAIMON" not in os.environ or "pypaimon" not in str(error):
                    raise
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
def attempt(ask):
    try:
        ask()
    except sh.StreamhouseError as error:
        print(type(error).__name__, str(error).splitlines()[0], sep="|")
    else:
        print("done|")
wh = sh.Warehouse(root)
big = pa.table({"id": range(200_000), "name": ["x" * 30] * 200_000})
"""
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")


def child(root: Path, code: str, *, uid: int = 0, limit: int = 0) -> list[tuple[str, str]]:
    """Run code that calls ``attempt`` in a process of its own; what each attempt gave."""
    result = subprocess.run(
        [sys.executable, "-c", _CHILD + code, str(root), str(uid), str(limit)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return [tuple(line.split("|", 1)) for line in result.stdout.splitlines()]


@pytest.fixture
def open_root() -> Iterator[Path]:
    """A directory that another user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path / "wh"


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Nobody may write here, not even the owner, root excepted."""
    folders = [root, *(p for p in root.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_read_only_directory(open_root):
    wh = Warehouse(str(open_root))
    table = wh.create_table("sales.orders", DDL)
    table.append([{"id": 1, "name": "kept"}])
    table.append(pa.table({"id": range(50_000)}))
    before = tree(open_root)
    uid = NOBODY if os.geteuid() == 0 else 0
    with read_only(open_root):
        found = child(
            open_root,
            """
from streamhouse_spark.write.auto_compaction import compact_inline_rows

table = wh.table("sales.orders")
attempt(lambda: table.append([{"id": 2}]))
attempt(lambda: table.append(big))
attempt(lambda: table.alter_properties({"comment": "x"}))
attempt(lambda: wh.create_table("sales.more", "a INT"))
attempt(lambda: wh.create_database("more"))
attempt(lambda: wh.drop_table("sales.orders"))
attempt(lambda: compact_inline_rows(table))
assert table.to_arrow().num_rows == 50_001
assert wh.view("sales.orders$changelog").to_arrow().num_rows == 50_001
assert table.inspect.segments().num_rows == 2
attempt(lambda: table.maintain(dry_run=True))
""",
            uid=uid,
        )
    assert [kind for kind, _ in found] == ["StorageRefusedError"] * 7 + ["done"]
    for _, text in found[:-1]:
        assert "permission denied: run as the warehouse's owner or grant this user write access" in text
    assert tree(open_root) == before
    assert table.append([{"id": 3}]).num_rows == 1


@needs_root
def test_a_directory_that_may_not_be_read(open_root):
    Warehouse(str(open_root)).create_table("sales.orders", DDL)
    open_root.chmod(0o700)
    found = child(open_root, 'attempt(wh.tables); attempt(lambda: wh.create_table("t", "a INT"))', uid=NOBODY)
    assert [kind for kind, _ in found] == ["StorageRefusedError"] * 2
    assert all("permission denied" in text for _, text in found)


@needs_root
def test_a_parent_that_may_not_be_written(open_root):
    found = child(open_root, 'attempt(lambda: wh.create_table("t", "a INT"))', uid=NOBODY)
    assert [kind for kind, _ in found] == ["StorageRefusedError"]
    assert "permission denied" in found[0][1]
    assert not open_root.exists()


def test_files_that_may_not_grow(open_root):
    """The quota of a process stands for a disk that is full for large files and not for small ones."""
    table = Warehouse(str(open_root)).create_table("sales.orders", DDL)
    table.append([{"id": 1, "name": "kept"}])
    before = tree(open_root)
    found = child(
        open_root,
        """
table = wh.table("sales.orders")
attempt(lambda: table.append(big))
assert table.to_arrow().num_rows == 1
""",
        limit=100_000,
    )
    assert [kind for kind, _ in found] == ["StorageError"]
    assert tree(open_root) == before
    assert table.append(pa.table({"id": range(200_000)})).num_rows == 200_000


def test_a_full_disk_keeps_earlier_rows_readable(small_disk):
    root = small_disk / "wh"
    wh = Warehouse(str(root))
    table = wh.create_table("sales.orders", DDL)
    table.append([{"id": 0, "name": "kept"}])
    filler = small_disk / "filler"

    big = pa.table({"id": range(200_000), "name": ["x" * 30] * 200_000})
    before = tree(root)
    with pytest.raises(StorageError, match=r"the disk is full .*free space, then run the same command again"):
        table.append(big)
    assert tree(root) == before, "what could not be written whole is gone"

    fill(filler)
    before = tree(root)
    for ask in (
        lambda: table.append([{"id": 1}]),
        lambda: table.alter_properties({"comment": "x"}),
        lambda: wh.create_table("sales.more", DDL),
        lambda: wh.create_database("more"),
        lambda: wh.drop_table("sales.orders"),
        lambda: compact_inline_rows(table),
        lambda: Warehouse(str(small_disk / "wh2")).create_table("t", DDL),
    ):
        with pytest.raises(StorageError, match="the disk is full"):
            ask()
    assert tree(root) == before
    assert Warehouse(str(root)).table("sales.orders").to_arrow().to_pylist() == [{"id": 0, "name": "kept"}]

    filler.unlink()
    assert table.append([{"id": 1}]).num_rows == 1
    assert table.to_arrow()["id"].to_pylist() == [0, 1]
    assert Warehouse(str(small_disk / "wh2")).create_table("t", DDL).append([{"id": 1}]).num_rows == 1


def test_a_disk_that_fills_up_between_appends(small_disk):
    """Every append is stored or refused; the first refused one is the last, and none is torn."""
    table = Warehouse(str(small_disk / "wh")).create_table("t", DDL, properties={"table.datalake.enabled": "false"})
    stored = 0
    while stored < 2000:
        try:
            table.append([{"id": stored, "name": "x" * 4000}])
        except StorageError as error:
            assert "the disk is full" in str(error)  # noqa: PT017 - where it happens is the question
            break
        stored += 1
    assert 50 < stored < 2000
    assert table.to_arrow()["id"].to_pylist() == list(range(stored))
    reopened = Warehouse(str(small_disk / "wh")).table("t")
    assert reopened.to_arrow()["id"].to_pylist() == list(range(stored))


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


class TestArguments:
    """Arguments of the wrong kind, before they can be stored and trouble every later reader."""

    HALF = "\ud800"

    @pytest.mark.parametrize("location", [None, 5, b"wh", ["wh"]], ids=repr)
    def test_a_location_of_the_wrong_type_is_rejected(self, location):
        with pytest.raises(InvalidOptionError, match="expected a path or a URL"):
            Warehouse(location)

    @pytest.mark.parametrize("settings", ["x", ["x"], 5], ids=repr)
    def test_settings_of_the_wrong_type_are_rejected(self, root, settings):
        with pytest.raises(InvalidOptionError, match="expected a mapping"):
            Warehouse(str(root), settings)
        assert Warehouse(str(root), {"storage.local.single-host": True}).url == str(root)

    @pytest.mark.parametrize(
        ("app_id", "version", "owner"),
        [
            ("", 1, None),
            (None, 1, None),
            (HALF, 1, None),
            ("a", "1", None),
            ("a", 1.5, None),
            ("a", 2**63, None),
            ("a", 1, ""),
            ("a", True, None),
        ],
        ids=repr,
    )
    def test_transactions_of_the_wrong_type_are_rejected(self, app_id, version, owner):
        with pytest.raises(InvalidOptionError, match="transaction"):
            Transaction(app_id, version, owner)

    @pytest.mark.parametrize(
        ("consumer", "offsets"),
        [
            ("", {0: 0}),
            (None, {0: 0}),
            (HALF, {0: 0}),
            ("c", {1: 0}),
            ("c", {0: 2}),
            ("c", {0: -1}),
            ("c", {0: "1"}),
            ("c", {"0": 0}),
            ("c", {0: True}),
            ("c", 5),
            ("c", [0]),
            (1, {}),
        ],
        ids=repr,
    )
    def test_consumer_offsets_of_the_wrong_type_are_rejected(self, wh, refused, consumer, offsets):
        refused(InvalidOptionError, lambda: wh.table("sales.orders").move_consumer(consumer, offsets))

    def test_texts_that_cannot_be_stored(self, wh, refused):
        table = wh.table("sales.orders")
        refused(SchemaMismatchError, lambda: table.append([{"id": 1, "name": self.HALF}]))
        refused(InvalidOptionError, lambda: table.alter_properties({"comment": self.HALF}))
        refused(InvalidOptionError, lambda: wh.create_table("t", DDL, properties={"comment": self.HALF}))
        refused(SchemaMismatchError, lambda: wh.create_table("t", pa.schema([("a b\x7f", pa.int32())])))

    def test_bytes_that_are_no_text(self, wh, refused):
        table = wh.table("sales.orders")
        raw = pa.array([b"a", "é".encode(), b"\xff", None], pa.binary())
        names = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
        bad = pa.table({"id": range(8), "name": pa.chunked_array([pa.array(["b"] * 4), names])})
        assert "column 'name' of sales.orders has a string that is not UTF-8 in row 6" in refused(
            SchemaMismatchError, lambda: table.append(bad)
        )
        refused(SchemaMismatchError, lambda: table.append(bad.set_column(1, "NAME", bad["name"].cast("large_string"))))
        wide = pa.table({"id": range(100_000), "name": pa.concat_arrays([pa.array(["x"] * 99_996), names])})
        assert "in row 99998 " in refused(SchemaMismatchError, lambda: table.append(wide))

    def test_read_times_of_the_wrong_type_are_rejected(self, wh, refused):
        import datetime as dt

        table = wh.table("sales.orders")
        for moment in ("yesterday", 1.5, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)):
            refused(InvalidOptionError, lambda: table.to_arrow(as_of_timestamp_ms=moment))  # noqa: B023
        for columns in ("id", 5):
            refused(InvalidOptionError, lambda: table.to_arrow(columns=columns))  # noqa: B023
        refused(SchemaMismatchError, lambda: table.to_arrow(columns=[5]))
        for value in (-1, "1", float("nan")):
            refused(InvalidOptionError, lambda: table.tail(poll_ms=value))  # noqa: B023
            refused(InvalidOptionError, lambda: table.tail(until_ms=value))  # noqa: B023
        refused(InvalidOptionError, lambda: table.tail(stop=5))
        refused(InvalidOptionError, lambda: table.tail(columns=5))
        refused(InvalidOptionError, lambda: table.tail(columns="id"))
        refused(SchemaMismatchError, lambda: table.tail(columns=[5]))
        refused(SchemaMismatchError, lambda: table.tail(columns=["id", "ID"]))

    @pytest.mark.parametrize(
        ("ask", "expected"),
        [
            (lambda t: t.alter_properties(["x"]), "expected a mapping"),
            (lambda t: t.alter_properties(removed=5), "expected a list of names"),
            (lambda t: t.alter_properties(removed="comment"), "expected a list of names"),
            (lambda t: t.alter_properties(removed=[5]), "expected a list of property names"),
            (lambda t: t.alter(comments={"id": 5}), "expected a string or None for each column"),
            (lambda t: t.maintain(grace_ms="1d"), "grace_ms is '1d', expected milliseconds"),
            (lambda t: t.maintain(grace_ms=float("nan")), "grace_ms is nan, expected milliseconds"),
            (lambda t: t.append([{"id": 2}], transaction=("app", 1)), "expected a Transaction(app_id, version)"),
            (lambda t: t.append([{"id": 2}] * 99_999, transaction="app"), "expected a Transaction(app_id, version)"),
            (lambda t: t.overwrite([{"id": 2}], transaction=("app", 1)), "expected a Transaction(app_id, version)"),
            (lambda t: t.append([{"id": 2}], transaction=NUMBERS), "choose another id"),
            (lambda t: t.overwrite([{"id": 2}], transaction=NUMBERS), "choose another id"),
            (lambda t: t.forget_transactions(5), "expected a text"),
            (lambda t: t.forget_transactions(["app"]), "expected a text"),
            (lambda t: t.tail(start=3.5), "start is 3.5, expected 'latest'"),
        ],
    )
    def test_arguments_of_other_types(self, wh, refused, ask, expected):
        assert expected in refused(InvalidOptionError, lambda: ask(wh.table("sales.orders")))

    @pytest.mark.parametrize(
        "asked",
        [
            {"partition_by": "name"},
            {"partition_by": 5},
            {"partition_by": [5]},
            {"properties": ["x"]},
            {"properties": "x"},
            {"primary_key": 5},
            {"primary_key": "id"},
        ],
        ids=str,
    )
    def test_table_options_of_the_wrong_type_are_rejected(self, wh, refused, asked):
        refused(InvalidOptionError, lambda: wh.create_table("sales.other", DDL, **asked))
