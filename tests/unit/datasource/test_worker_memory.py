from __future__ import annotations

import gc
import subprocess
import sys

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
