from __future__ import annotations

import gc
import subprocess
import sys
import zipfile

from streamhouse_spark.datasource import worker_memory


def test_a_users_process_is_left_alone():
    frozen = gc.get_freeze_count()
    worker_memory.spare_modules()
    assert gc.get_freeze_count() == frozen


def test_a_worker_spares_what_is_loaded_until_more_is_loaded():
    code = """if True:
        import gc, sys, types
        from streamhouse_spark.datasource import worker_memory
        __spec__ = types.SimpleNamespace(name="pyspark.daemon")
        worker_memory.spare_modules()
        first = gc.get_freeze_count()
        assert first > 1000, first
        kept = [[] for _ in range(1000)]
        worker_memory.spare_modules()
        assert gc.get_freeze_count() <= first
        sys.modules["another"] = types.ModuleType("another")
        worker_memory.spare_modules()
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
        worker_memory.spare_modules()
        assert [path for path in archives() if "pyspark.zip" in path] == []
        assert len(archives()) == 1
        import pyspark.sql.late
        assert "pyspark.zip" in pyspark.sql.late.__file__
    """
    subprocess.run([sys.executable, "-c", code], check=True)
