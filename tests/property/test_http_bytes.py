"""Random bytes that are nearly HTTP: no answer of a server says that it failed, and it waits for nothing."""

from __future__ import annotations

import logging
import time

import pytest

from kit.http_fuzz import fuzz, fuzzed_warehouse
from kit.raw_http import exchange
from kit.serving import served
from streamhouse_spark import Warehouse


@pytest.mark.parametrize("seed", range(2))
def test_no_bytes_make_a_server_fail(tmp_path, caplog, seed):
    caplog.set_level(logging.ERROR)
    with served(fuzzed_warehouse(Warehouse(str(tmp_path / "wh")))) as url:
        authority = url.removeprefix("http://")
        findings = [str(finding) for finding in fuzz(authority, seed, time.monotonic() + 3)]
        assert not findings, "\n".join(findings)
        assert exchange(authority, b"GET /health HTTP/1.0\r\n\r\n").status == 200
    assert not [record.getMessage() for record in caplog.records if record.exc_info], "an exception went unanswered"
