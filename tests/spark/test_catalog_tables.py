"""Databases and tables in SQL: what is made, shown, changed and dropped, and what is refused, saying why."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from streamhouse_spark import Warehouse, tier

pytestmark = [pytest.mark.spark]


@pytest.fixture
def database(spark, request) -> str:
    """A database of this test alone, in SQL's spelling."""
    name = f"db_{abs(hash(request.node.nodeid)) % 10**9}"
    spark.sql(f"CREATE DATABASE streamhouse.{name} COMMENT 'of a test'")
    return name


def texts(rows) -> list[str]:
    return [row[0] for row in rows.collect()]


@pytest.mark.always
@pytest.mark.spark41
def test_databases_come_and_go(spark, database, wh: Warehouse):
    assert database in texts(spark.sql("SHOW DATABASES IN streamhouse"))
    described = {r.info_name: r.info_value for r in spark.sql(f"DESCRIBE DATABASE streamhouse.{database}").collect()}
    assert described["Comment"] == "of a test"
    spark.sql(f"COMMENT ON DATABASE streamhouse.{database} IS 'changed'")
    assert wh.database_comment(database) == "changed"
    with pytest.raises(AnalysisException, match=r"(?i)dbproperties|propert"):
        spark.sql(f"ALTER DATABASE streamhouse.{database} SET DBPROPERTIES ('owner' = 'me')")
    with pytest.raises(AnalysisException, match="SCHEMA_ALREADY_EXISTS"):
        spark.sql(f"CREATE DATABASE streamhouse.{database}")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS streamhouse.{database}")
    spark.sql(f"CREATE TABLE streamhouse.{database}.t (a INT)")
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_EMPTY"):
        spark.sql(f"DROP DATABASE streamhouse.{database}")
    spark.sql(f"DROP DATABASE streamhouse.{database} CASCADE")
    assert database not in wh.databases()
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        spark.sql(f"DROP DATABASE streamhouse.{database}")


def test_create_table_like_copies_columns_and_properties(spark, database, wh: Warehouse):
    first, second = f"streamhouse.{database}.first", f"streamhouse.{database}.second"
    spark.sql(f"""
        CREATE TABLE {first} (id BIGINT NOT NULL COMMENT 'the key', at TIMESTAMP, name STRING DEFAULT 'none',
        PRIMARY KEY (id)) PARTITIONED BY (bucket(4, id)) COMMENT 'all of them'
        TBLPROPERTIES ('table.log.ttl' = '3d', 'table.datalake.freshness' = '1h')
    """)
    spark.sql(f"INSERT INTO {first} VALUES (1, now(), 'a')")
    spark.sql(f"CREATE TABLE {second} LIKE {first} TBLPROPERTIES ('table.log.ttl' = '9d')")
    one, other = wh.table(f"{database}.first"), wh.table(f"{database}.second")
    assert other.schema == one.schema
    assert other.state.primary_key == one.state.primary_key == ("id",)
    assert other.state.properties == {**one.state.properties, "table.log.ttl": "9d"}
    assert (other.num_buckets, other.uuid == one.uuid) == (4, False)
    spark.sql(f"INSERT INTO {second} (id) VALUES (2)")
    assert [tuple(r) for r in spark.sql(f"SELECT id, name FROM {second}").collect()] == [(2, "none")]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE {second} LIKE {first}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {second} LIKE {first}")
    assert wh.table(f"{database}.second").uuid == other.uuid


def test_create_table_like_takes_partitioned_tables_views_and_other_catalogs(spark, database, wh: Warehouse):
    days = f"streamhouse.{database}.days"
    spark.sql(f"CREATE TABLE {days} (id BIGINT, at TIMESTAMP) PARTITIONED BY (days(at))")
    spark.sql(f"CREATE TABLE streamhouse.{database}.like_days LIKE {days}")
    assert wh.table(f"{database}.like_days").state.properties == wh.table(f"{database}.days").state.properties
    spark.sql(f"CREATE TABLE streamhouse.{database}.like_lake LIKE streamhouse.{database}.`days$lake`")
    assert wh.table(f"{database}.like_lake").schema.names == ["id", "at"]
    spark.sql("CREATE TABLE IF NOT EXISTS spark_catalog.default.of_spark (a INT, b STRING) USING parquet")
    spark.sql(f"CREATE TABLE streamhouse.{database}.like_parquet LIKE spark_catalog.default.of_spark")
    assert wh.table(f"{database}.like_parquet").schema.names == ["a", "b"]
    spark.sql("DROP TABLE spark_catalog.default.of_spark")
    with pytest.raises(AnalysisException, match="in the catalog's warehouse"):
        spark.sql(f"CREATE TABLE streamhouse.{database}.elsewhere LIKE {days} LOCATION '/tmp/elsewhere'")


@pytest.mark.spark41
def test_a_table_shows_what_it_was_made_with(spark, database, wh: Warehouse):
    name = f"streamhouse.{database}.orders"
    spark.sql(f"""
        CREATE TABLE {name} (id BIGINT NOT NULL COMMENT 'the key', amount DECIMAL(12,2), day DATE, s STRUCT<a: INT>)
        PARTITIONED BY (day, bucket(4, id)) COMMENT 'all of them' TBLPROPERTIES ('table.log.ttl' = '3d')
    """)
    table = wh.table(f"{database}.orders")
    assert (table.num_buckets, table.partition_by) == (4, ("day",))
    assert table.properties.bucket_key == ("id",)
    described = {row.col_name: row for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect()}
    assert (described["id"].data_type, described["id"].comment) == ("bigint", "the key")
    assert described["Comment"].data_type == "all of them"
    assert described["Provider"].data_type == "streamhouse"
    lineage = f"openlineage.dataset.name={wh.storage.url}/{database}.orders"
    facts = ("table.log.ttl=3d", "status.buckets=4", "status.lake.format=iceberg", "status.log.end-offsets=", lineage)
    for fact in facts:
        assert fact in described["Table Properties"].data_type
    assert spark.table(name).schema["id"].nullable is False
    assert texts(spark.sql(f"SHOW TABLES IN streamhouse.{database}").select("tableName")) == ["orders"]


def test_the_create_statement_that_is_shown_makes_the_same_table(spark, database, wh: Warehouse):
    name = f"streamhouse.{database}.orders"
    spark.sql(f"""
        CREATE TABLE {name} (id BIGINT NOT NULL COMMENT 'it''s', `od d` STRING, day DATE)
        PARTITIONED BY (day, bucket(2, id)) COMMENT 'c' TBLPROPERTIES ('table.datalake.freshness' = '1min')
    """)
    statement = texts(spark.sql(f"SHOW CREATE TABLE {name}"))[0]
    assert "status." not in statement
    assert "openlineage." not in statement
    spark.sql(f"DROP TABLE {name}")
    spark.sql(statement)
    table = wh.table(f"{database}.orders")
    assert (table.num_buckets, table.partition_by, table.schema.names) == (2, ("day",), ["id", "od d", "day"])
    assert table.state.schema.column("id").comment == "it's"


def test_tables_are_made_from_queries_and_frames(spark, database):
    rows = spark.range(5).selectExpr("id", "id * 2 AS v")
    rows.createOrReplaceTempView("five")
    spark.sql(f"CREATE TABLE streamhouse.{database}.a AS SELECT * FROM five")
    rows.writeTo(f"streamhouse.{database}.b").using("streamhouse").create()
    rows.write.saveAsTable(f"streamhouse.{database}.c")
    rows.write.format("streamhouse").saveAsTable(f"streamhouse.{database}.d")
    for name in "abcd":
        assert spark.table(f"streamhouse.{database}.{name}").agg({"v": "sum"}).first()[0] == 20
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE streamhouse.{database}.a (x INT)")
    spark.sql(f"CREATE TABLE IF NOT EXISTS streamhouse.{database}.a (x INT)")
    assert spark.table(f"streamhouse.{database}.a").columns == ["id", "v"]


@pytest.mark.spark41
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE {} (a INT) USING parquet", "USING parquet"),
        (
            "CREATE TABLE {} (a INT) USING parquet LOCATION '/tmp/elsewhere'",
            "found USING parquet, expected streamhouse",
        ),
        ("CREATE TABLE {} (a INT) LOCATION '/tmp/elsewhere'", "LOCATION"),
        ("CREATE EXTERNAL TABLE {} (a INT) LOCATION '/tmp/elsewhere'", "LOCATION"),
        ("CREATE TABLE {} (a INT) TBLPROPERTIES ('table.log.tl' = '1d')", "did you mean table.log.ttl"),
        ("CREATE TABLE {} (a INT, d DATE) PARTITIONED BY (hours(d))", "hours"),
        ("CREATE TABLE {} (a INT) PARTITIONED BY (bucket(4, a)) TBLPROPERTIES ('bucket.num' = '2')", "bucket"),
        ("CREATE TABLE {} (a INT, b INT DEFAULT 5 + 5)", "DEFAULT"),
        ("CREATE TABLE {} (a ARRAY<INT>, PRIMARY KEY (a))", "scalar types"),
        ("CREATE TABLE {} (a INT, `_bucket` INT)", "_bucket"),
        ("CREATE TABLE {} (a INT, A STRING)", "COLUMN_ALREADY_EXISTS"),
        ("CREATE TABLE {} (a INTERVAL DAY)", "interval"),
    ],
)
def test_what_cannot_be_made_is_refused(spark, database, wh: Warehouse, statement, says):
    with pytest.raises(Exception, match=rf"(?i){says}"):
        spark.sql(statement.format(f"streamhouse.{database}.refused"))
    assert wh.tables(database) == []


def test_a_table_in_an_absent_database_is_not_made(spark):
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        spark.sql("CREATE TABLE streamhouse.absent.t (a INT)")


@pytest.mark.always
@pytest.mark.spark41
def test_a_table_is_altered(spark, database, wh: Warehouse):
    name = f"streamhouse.{database}.t"
    spark.sql(f"CREATE TABLE {name} (a INT)")
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (b STRING COMMENT 'new', c STRUCT<x: INT>)")
    spark.sql(f"INSERT INTO {name} VALUES (2, 'two', named_struct('x', 2))")
    assert [tuple(r) for r in spark.sql(f"SELECT a, b, c.x FROM {name} ORDER BY a").collect()] == [
        (1, None, None),
        (2, "two", 2),
    ]
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('table.log.ttl' = '9d', 'comment' = 'mine')")
    assert wh.table(f"{database}.t").state.properties["table.log.ttl"] == "9d"
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('table.log.ttl')")
    assert "table.log.ttl" not in wh.table(f"{database}.t").state.properties
    spark.sql(f"ALTER TABLE {name} RENAME TO {database}.u")
    assert spark.table(f"streamhouse.{database}.u").count() == 2
    assert wh.tables(database) == [f"{database}.u"]
    spark.sql(f"DROP TABLE streamhouse.{database}.u")
    spark.sql(f"DROP TABLE IF EXISTS streamhouse.{database}.u")


@pytest.mark.parametrize(
    ("clause", "says"),
    [
        ("ADD COLUMN b INT NOT NULL", "null"),
        ("ADD COLUMN b INT DEFAULT 3", "DEFAULT"),
        ("ADD COLUMN A INT", "already exists|ALREADY_EXISTS"),
        ("DROP COLUMNS (a, s)", "leave no column|at least one column"),
        ("RENAME COLUMN a TO _bucket", "reserved"),
        ("ALTER COLUMN a TYPE STRING", "cannot become string"),
        ("ALTER COLUMN a SET NOT NULL", "null"),
        ("SET TBLPROPERTIES ('bucket.num' = '7')", "bucket.num"),
        ("SET TBLPROPERTIES ('table.log.tl' = '7d')", "did you mean table.log.ttl"),
        ("ADD PARTITION (a = 1)", "partition"),
        ("SET LOCATION '/tmp/elsewhere'", "location"),
    ],
)
def test_what_cannot_be_altered_is_refused(spark, database, wh: Warehouse, clause, says):
    name = f"streamhouse.{database}.t"
    spark.sql(f"CREATE TABLE {name} (a INT, s STRUCT<x: INT>)")
    version = wh.table(f"{database}.t").state.version
    with pytest.raises(Exception, match=rf"(?i){says}"):
        spark.sql(f"ALTER TABLE {name} {clause}")
    assert wh.table(f"{database}.t").state.version == version


@pytest.mark.always
def test_show_partitions_lists_each_partition_once(spark, database):
    name = f"streamhouse.{database}.t"
    spark.sql(f"CREATE TABLE {name} (a INT, day DATE, place STRING) PARTITIONED BY (day, place)")
    spark.sql(f"INSERT INTO {name} VALUES (1, DATE'2026-01-01', 'x'), (2, DATE'2026-01-01', NULL), (3, NULL, 'a=b/c')")
    spark.sql(f"INSERT INTO {name} VALUES (4, DATE'2026-01-01', 'x')")
    assert sorted(texts(spark.sql(f"SHOW PARTITIONS {name}"))) == [
        "day=2026-01-01/place=null",
        "day=2026-01-01/place=x",
        "day=null/place=a%3Db%2Fc",
    ]
    assert texts(spark.sql(f"SHOW PARTITIONS {name} PARTITION (place = 'x')")) == ["day=2026-01-01/place=x"]


ODD = [
    "a b",
    "a`b",
    "quo'te",
    'dou"ble',
    "dol$lar",
    "ünïcode",
    "日本",
    "semi;colon",
    "back\\slash",
    "per%cent",
    "new.dot",
]


@pytest.mark.spark41
def test_odd_column_and_property_names_neither_break_nor_escape(spark, database, wh: Warehouse):
    name = f"streamhouse.{database}.odd"
    quoted = ["`" + column.replace("`", "``") + "`" for column in ODD]
    spark.sql(f"CREATE TABLE {name} (id INT, {', '.join(f'{c} STRING' for c in quoted)})")
    values = ", ".join(f"'{i}'" for i in range(len(ODD)))
    spark.sql(f"INSERT INTO {name} VALUES (1, {values})")
    assert wh.table(f"{database}.odd").schema.names == ["id", *ODD]
    for position, column in enumerate(quoted):
        found = spark.sql(f"SELECT {column} FROM {name} WHERE {column} = '{position}' AND {column} IS NOT NULL")
        assert [tuple(r) for r in found.collect()] == [(str(position),)]
    spark.sql(f"ALTER TABLE {name} ADD COLUMN `an'other\"` INT")
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('comment' = 'it''s \"{{}}\" $x `y` ü')")
    assert wh.table(f"{database}.odd").state.properties["comment"] == 'it\'s "{}" $x `y` ü'


@pytest.mark.parametrize("name", ["a b", "a`b", "a'b", 'a"b', "..", "a/b", "a$lake", "ünï", "a" * 300, "a;b", "a.b"])
def test_odd_table_and_database_names_are_refused(spark, database, wh: Warehouse, name):
    quoted = "`" + name.replace("`", "``") + "`"
    before = sorted(wh.databases())
    with pytest.raises(AnalysisException):
        spark.sql(f"CREATE TABLE streamhouse.{database}.{quoted} (a INT)")
    with pytest.raises(AnalysisException):
        spark.sql(f"CREATE DATABASE streamhouse.{quoted}")
    assert wh.tables(database) == []
    assert sorted(wh.databases()) == before


def test_a_hostile_name_is_nothing_but_an_unknown_name(spark, database):
    for name in ("..", "../..", "x' OR '1'='1", '"}', "\\", "a\nb", "%s{0}"):
        quoted = "`" + name.replace("`", "``") + "`"
        with pytest.raises(AnalysisException):
            spark.sql(f"SELECT * FROM streamhouse.{database}.{quoted}").collect()


def test_an_unknown_suffix_says_what_there_is(spark, database):
    spark.sql(f"CREATE TABLE streamhouse.{database}.t (a INT)")
    with pytest.raises(AnalysisException, match=r"unknown suffix \$lak; available: \$lake"):
        spark.sql(f"SELECT * FROM streamhouse.{database}.`t$lak`")
    with pytest.raises(AnalysisException, match=r"(?i)append|read-only"):
        spark.sql(f"INSERT INTO streamhouse.{database}.`t$lake` VALUES (1)")


def test_a_second_warehouse_is_a_second_catalog(spark, tmp_path):
    Warehouse(str(tmp_path / "other")).create_table("d.t", "a INT").append([{"a": 7}])
    spark.conf.set("spark.sql.catalog.other", "io.streamhouse.spark.StreamhouseCatalog")
    spark.conf.set("spark.sql.catalog.other.warehouse", str(tmp_path / "other"))
    assert spark.table("other.d.t").first()[0] == 7


def test_a_catalog_without_a_warehouse_says_so(spark, tmp_path):
    spark.conf.set("spark.sql.catalog.nowhere", "io.streamhouse.spark.StreamhouseCatalog")
    spark.conf.set("spark.sql.catalog.nowhere.warehouse", str(tmp_path / "absent"))
    with pytest.raises(AnalysisException, match="WAREHOUSE_NOT_FOUND"):
        spark.table("nowhere.d.t")


@pytest.mark.parametrize("key", ["", "TBLPROPERTIES ('primary.key' = 'a')"], ids=["log", "keyed"])
def test_a_table_is_rolled_back(spark, database, wh: Warehouse, key):
    name = f"streamhouse.{database}.t"
    spark.sql(f"CREATE TABLE {name} (a INT NOT NULL, b STRING) {key}")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'x'), (2, 'y')")
    version = wh.table(f"{database}.t").refresh().version
    tier(spark, wh.url, tables=[f"{database}.t"])
    spark.sql(f"INSERT INTO {name} VALUES (3, 'z')")
    spark.sql(f"UPDATE {name} SET b = 'changed' WHERE a = 1")
    spark.sql(f"DELETE FROM {name} WHERE a = 2")
    (row,) = spark.sql(f"CALL streamhouse.system.rollback_to_version('{database}.t', {version})").collect()
    assert row.version == version
    expected = [(1, "x"), (2, "y")]
    assert sorted(map(tuple, spark.table(name).collect())) == expected
    assert sorted(map(tuple, spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}").collect())) == expected
    tier(spark, wh.url, tables=[f"{database}.t"])
    assert sorted(map(tuple, spark.table(f"streamhouse.{database}.`t$lake`").collect())) == expected


def test_a_version_gets_a_tag_which_time_travel_reads(spark, database, wh: Warehouse):
    name = f"streamhouse.{database}.t"
    spark.sql(f"CREATE TABLE {name} (a INT)")
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    (made,) = spark.sql(f"CALL streamhouse.system.create_tag('{database}.t', 'first')").collect()
    assert (made.tag, made.version) == ("first", wh.table(f"{database}.t").tags()[0].version)
    spark.sql(f"INSERT INTO {name} VALUES (2)")
    assert [r.a for r in spark.sql(f"SELECT a FROM {name} VERSION AS OF 'first'").collect()] == [1]
    names = spark.sql(f"SELECT name FROM streamhouse.{database}.`t$refs`").collect()
    assert [r.name for r in names] == ["main", "first"]
    spark.sql(f"CALL streamhouse.system.drop_tag('{database}.t', 'first')").collect()
    with pytest.raises(Exception, match=r"\(tags: none\)"):
        spark.sql(f"SELECT a FROM {name} VERSION AS OF 'first'").collect()


def test_procedures_show_status_and_consumers(spark, database, wh: Warehouse):
    spark.sql(f"CREATE TABLE streamhouse.{database}.t (a INT)")
    wh.table(f"{database}.t").append([{"a": 1}])
    status = spark.sql(f"CALL streamhouse.system.table_status('{database}.t')").collect()
    assert [(r.table, r.rows, r.lag_rows) for r in status] == [(f"{database}.t", 1, 1)]
    wh.table(f"{database}.t").move_consumer("job", {0: 1})
    for dry_run, left in ((True, {"job"}), (False, set())):
        arguments = f"table => '{database}.t', consumer_id => 'job', dry_run => {dry_run}"
        spark.sql(f"CALL streamhouse.system.drop_consumer({arguments})").collect()
        assert set(wh.table(f"{database}.t").state.consumers) == left
    spark.sql(f"DROP TABLE streamhouse.{database}.t")
    (back,) = spark.sql(f"CALL streamhouse.system.undrop_table('{database}.t', to => '{database}.back')").collect()
    assert (back.table, back.rows) == (f"{database}.back", 1)
    assert spark.table(f"streamhouse.{database}.back").first().a == 1
    with pytest.raises(AnalysisException, match="TABLE_NOT_FOUND"):
        spark.sql(f"CALL streamhouse.system.remove_orphan_files('{database}.absent')").collect()
    with pytest.raises(AnalysisException, match=r"PROCEDURE_NOT_FOUND.*expire_snapshots"):
        spark.sql("CALL streamhouse.system.absent()")


def test_a_clone_is_a_table_of_its_own(spark, database, wh: Warehouse):
    name, clone = f"streamhouse.{database}.t", f"streamhouse.{database}.c"
    spark.sql(f"CREATE TABLE {name} (a INT, b STRING) TBLPROPERTIES ('bucket.num' = '2', 'bucket.key' = 'a')")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'x'), (2, 'y'), (3, 'z')")
    tier(spark, wh.url, tables=[f"{database}.t"])
    spark.sql(f"INSERT INTO {name} VALUES (4, 'hot')")
    (made,) = spark.sql(f"CALL streamhouse.system.clone('{database}.t', '{database}.c')").collect()
    assert (made.source, made.target) == (f"{database}.t", f"{database}.c")
    assert made.lake_snapshot_id == wh.table(f"{database}.t").lake.newest().id
    spark.sql(f"UPDATE {clone} SET b = 'changed' WHERE a = 1")
    spark.sql(f"DELETE FROM {clone} WHERE a = 2")
    spark.sql(f"INSERT INTO {name} VALUES (5, 'new')")
    tier(spark, wh.url, tables=[f"{database}.t", f"{database}.c"])
    expected = {
        name: [(1, "x"), (2, "y"), (3, "z"), (4, "hot"), (5, "new")],
        clone: [(1, "changed"), (3, "z"), (4, "hot")],
    }
    for table, rows in expected.items():
        lake = f"streamhouse.{database}.`{table.rpartition('.')[2]}$lake`"
        for read in (table, lake):
            assert sorted(map(tuple, spark.sql(f"SELECT a, b FROM {read}").collect())) == rows
        assert spark.sql(f"SELECT count(*), min(a), max(a) FROM {table}").first()[0] == len(rows)


def test_properties_of_the_users_own_are_kept(spark, wh):
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.owned")
    own = "TBLPROPERTIES ('team' = 'ann', 'team.x' = 'y')"
    spark.sql(f"CREATE TABLE streamhouse.owned.made (id BIGINT) {own}")
    spark.sql(f"CREATE TABLE streamhouse.owned.selected {own} AS SELECT 1L AS id")
    spark.sql(f"CREATE OR REPLACE TABLE streamhouse.owned.selected {own} AS SELECT 2L AS id, 3 AS n")
    written = spark.range(1).writeTo("streamhouse.owned.written").tableProperty("team", "ann")
    written.tableProperty("team.x", "y").create()
    spark.range(2).write.mode("append").saveAsTable("streamhouse.owned.written")
    spark.range(3).write.mode("overwrite").saveAsTable("streamhouse.owned.written")
    for name in ("made", "selected", "written"):
        shown = {row.key: row.value for row in spark.sql(f"SHOW TBLPROPERTIES streamhouse.owned.{name}").collect()}
        assert (shown["team"], shown["team.x"]) == ("ann", "y"), name
        assert wh.table(f"owned.{name}").state.properties["team"] == "ann"
    spark.sql("ALTER TABLE streamhouse.owned.made SET TBLPROPERTIES ('team' = 'bo')")
    spark.sql("ALTER TABLE streamhouse.owned.made UNSET TBLPROPERTIES ('team.x')")
    assert wh.table("owned.made").state.properties == {"team": "bo"}
