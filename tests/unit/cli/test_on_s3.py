"""The command line on a warehouse in S3, and what it says where S3 does not answer."""

from __future__ import annotations

import pytest

from storage.s3_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, settings_for


@pytest.fixture
def on_s3(run, s3_server):
    """Runs a command on a warehouse in a bucket of this test; credentials come from the environment."""
    location = f"s3://{s3_server.new_bucket()}/wh"
    settings = {k: v for k, v in settings_for(s3_server.endpoint).items() if k in ("s3.endpoint", "s3.region")}
    shared = [word for pair in settings.items() for word in ("--setting", "=".join(pair))]

    def call(*args: str, **kwargs):
        return run("-w", location, *shared, *args, **kwargs)

    return call


@pytest.mark.s3
def test_commands_work_on_a_table_on_s3(on_s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    on_s3("create", "t", "--schema", "id BIGINT, name STRING")
    on_s3("append", "t", "-", "--format", "json", stdin='{"id": 1, "name": "ann"}\n{"id": 2}\n')
    assert on_s3("tier", "--once", "-o", "json").lines[0]["rows"] == 2
    on_s3("append", "t", "-", "--format", "json", stdin='{"id": 3}\n')
    assert len(on_s3("head", "t", "-o", "json").lines) == 3
    assert on_s3("head", "t$lake", "--where", "id = 1", "-o", "json").lines == [{"id": 1, "name": "ann"}]
    assert on_s3("verify", "t", "-o", "json").document["problems"] == []
    assert on_s3("describe", "t", "-o", "json").document["lag"] == 1
    on_s3("drop", "t", "--yes")
    assert on_s3("ls", "-o", "json").lines == []


@pytest.mark.s3
def test_a_missing_bucket_is_one_line_that_shows_no_credential(run, s3_server):
    failed = run(
        "-w", "s3://no-such-bucket/wh",
        "--setting", f"s3.endpoint={s3_server.endpoint}",
        "--setting", f"s3.access-key-id={ACCESS_KEY_ID}",
        "--setting", f"s3.secret-access-key={SECRET_ACCESS_KEY}",
        "--setting", "s3.region=us-east-1",
        "ls",
        code=1,
    )  # fmt: skip
    assert len(failed.stderr.splitlines()) == 1
    assert SECRET_ACCESS_KEY not in failed.stderr + failed.stdout
