from __future__ import annotations

import gc
import subprocess
import sys
import zipfile

import pytest

from streamhouse_spark.datasource import worker


def test_a_users_process_is_left_alone():
    frozen = gc.get_freeze_count()
    worker.release_memory()
    assert gc.get_freeze_count() == frozen


def test_a_worker_spares_what_is_loaded_until_more_is_loaded():
    code = """if True:
        import gc, sys, types
        from streamhouse_spark.datasource import worker_memory
        __spec__ = types.SimpleNamespace(name="pyspark.daemon")
        worker_memory.release_memory()
        first = gc.get_freeze_count()
        assert first > 1000, first
        kept = [[] for _ in range(1000)]
        worker_memory.release_memory()
        assert gc.get_freeze_count() <= first
        sys.modules["another"] = types.ModuleType("another")
        worker_memory.release_memory()
        assert gc.get_freeze_count() > first
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_worker_forgets_the_finders_of_pysparks_archive_and_can_still_import_of_it(tmp_path):
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("pyspark/__init__.py", "pyspark/sql/__init__.py", "pyspark/sql/late.py"):
            file.writestr(name, "")
    with zipfile.ZipFile(tmp_path / "users.zip", "w") as file:
        file.writestr("users.py", "")
    code = f"""if True:
        import sys, types
        from streamhouse_spark.datasource import worker_memory
        assert "pyspark" not in sys.modules
        sys.path[:0] = [{str(archive)!r}, {str(tmp_path / "users.zip")!r}]
        import pyspark.sql, users
        __spec__ = types.SimpleNamespace(name="pyspark.daemon")
        def archives():
            return [path for path in sys.path_importer_cache if path.startswith({str(tmp_path)!r})]
        assert len([path for path in archives() if "pyspark.zip" in path]) == 2, archives()
        worker_memory.release_memory()
        assert [path for path in archives() if "pyspark.zip" in path] == []
        assert len(archives()) == 1
        import pyspark.sql.late
        assert "pyspark.zip" in pyspark.sql.late.__file__
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("way", ["append", "rewrite"])
@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
def test_each_step_of_a_write_and_a_read_spares_what_it_loaded(tmp_path, key, way):
    """The daemon collects garbage behind each request: a writer's making, its tasks, its commit, and a reader's."""
    code = f"""if True:
        import gc, json, types
        import pyarrow as pa
        from pyspark.sql.types import IntegerType, LongType, StringType, StructType
        from streamhouse_spark import Warehouse
        from streamhouse_spark.datasource import worker_memory
        from streamhouse_spark.datasource.rpc_arguments import READ_OPTION, SCOPE_OPTION
        from streamhouse_spark.datasource.source import StreamhouseDataSource
        from streamhouse_spark.log.read_version import ReadVersion

        __spec__ = types.SimpleNamespace(name="pyspark.daemon")
        url = {str(tmp_path)!r}
        table = Warehouse(url).create_table("s.t", "id BIGINT NOT NULL, n INT", primary_key={key})

        def spared(step):
            gc.unfreeze()
            worker_memory._num_modules = 0
            result = step()
            assert gc.get_freeze_count() > 1000, step
            return result

        options = {{"warehouse": url, "path": "s.t"}}
        if {way!r} == "rewrite":
            scope = {{"reads_once": True, "schema_id": table.state.schema_id, "filters": []}}
            options |= {{READ_OPTION: ReadVersion.of(table.state).to_text(), SCOPE_OPTION: json.dumps(scope)}}
        schema = StructType().add("id", LongType(), nullable=False).add("n", IntegerType())
        source = StreamhouseDataSource(options)
        writer = spared(lambda: source.writer(schema, False))
        rows = pa.record_batch({{"id": pa.array([1, 2]), "n": pa.array([3, 4], pa.int32())}})
        message = spared(lambda: writer.write(iter([rows])))
        spared(lambda: writer.commit([message]))
        if {way!r} == "rewrite":
            options = {{"warehouse": url, "path": "s.t"}}
        reader = StreamhouseDataSource(options).reader(schema)
        parts = spared(reader.partitions)
        found = [batch for part in parts for batch in spared(lambda: reader.read(part))]
        assert sum(batch.num_rows for batch in found) == 2
    """
    subprocess.run([sys.executable, "-c", code], check=True)
