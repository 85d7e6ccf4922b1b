"""``streamhouse serve`` without what it needs."""

import sys

import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.cli import serve_command


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "anyio"])
def test_without_the_extra_the_error_names_it(run, warehouse_path, monkeypatch, missing):
    monkeypatch.setattr(serve_command, "log_to_stderr", lambda: None)  # its handler would outlive the test
    Warehouse(warehouse_path).create_table("d.t", "id BIGINT")
    for name in [n for n in sys.modules if n.startswith("streamhouse_spark.serve") or n.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    error = run("serve", "--port", "0", code=1).stderr
    assert f"the server requires {missing}" in error
    assert "pip install 'streamhouse-spark[serve]'" in error
