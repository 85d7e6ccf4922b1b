"""Spark's own reader reads lake files by the warehouse's settings, and follows logs, without a secret in plans and
events. Maven fetches the file systems.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.tables import tier
from stores.servers import AZURITE_ACCOUNT, AZURITE_KEY, azurite, fake_gcs, hdfs
from streamhouse_spark import Warehouse

pytestmark = pytest.mark.stores

POM = Path(__file__).with_name("readers_pom.xml")
GOOGLES_CONNECTOR = {
    "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "spark.hadoop.fs.gs.block.size": "67108864",  # Hadoop 3.5 has a default there that version 4.0.0 cannot read
}


def hadoop_version() -> str:
    import pyspark

    [jar] = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    found = re.search(r"api-(.+)\.jar", jar.name)
    assert found
    return found[1]


def jars_of(store: str, folder: Path) -> str:
    folder.mkdir()
    shutil.copy(POM, folder / "pom.xml")
    command = ["mvn", "-q", "-B", f"-P{store}", f"-Dhadoop={hadoop_version()}", "dependency:build-classpath"]
    subprocess.run([*command, "-Dmdep.outputFile=classpath"], cwd=folder, check=True, timeout=600)
    return (folder / "classpath").read_text().replace(":", ",")


def ask(url: str, settings: Mapping[str, str], conf: Mapping[str, str]) -> Any:
    request = {"url": url, "settings": settings, "conf": conf}
    done = subprocess.run(
        [sys.executable, "-m", "stores.spark_reader", json.dumps(request)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def filled(url: str, settings: Mapping[str, str]) -> str:
    table = Warehouse(url, settings).create_table(
        "s.orders", "id BIGINT, name STRING", buckets=2, properties={"bucket.key": "id"}
    )
    table.append([{"id": i, "name": f"n{i}"} for i in range(1000)])
    tier(table)
    return url


def signature(container: str) -> str:
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    return str(
        generate_container_sas(
            AZURITE_ACCOUNT,
            container,
            account_key=AZURITE_KEY,
            permission=ContainerSasPermissions(read=True, list=True, write=True, create=True, delete=True),
            expiry=datetime.now(UTC) + timedelta(hours=1),
        )
    )


@pytest.mark.parametrize("by", ["key", "signature"])
def test_spark_reads_lake_files_in_azure_itself(tmp_path, by):
    with azurite(tmp_path / "server") as server:
        url, settings = server.new_url(), dict(server.settings)
        filled(url, settings)
        if by == "signature":
            del settings["adls.account-key"]
            settings["adls.sas-token"] = signature("container-1")
        conf = {"spark.hadoop.fs.azure.io.retry.max.retries": "1"}
        found = ask(url, settings, {"spark.jars": jars_of("azure", tmp_path / "jars")} | conf)
    assert found["rows"] == [1000, 999 * 500]
    assert "lake files by Spark's reader over abfss" in found["plan"]
    secret = AZURITE_KEY if by == "key" else settings["adls.sas-token"].rpartition("sig=")[2]
    assert secret not in found["plan"] + found["events"]
    assert "streamhouse s.orders" in found["events"]
    assert "fs.azure.account.key" in found["bare"], "other reads of the container have what the session has"
    assert found["followed"] == 1000, "in real-time mode"


def test_spark_reads_lake_files_in_google_cloud_itself(tmp_path):
    with fake_gcs(tmp_path / "server") as server:
        url = filled(server.new_url(), server.settings)
        found = ask(url, server.settings, {"spark.jars": jars_of("google", tmp_path / "jars")} | GOOGLES_CONNECTOR)
    assert found["rows"] == [1000, 999 * 500]
    assert "lake files by Spark's reader over gs" in found["plan"]
    assert found["followed"] == 1000, "in real-time mode"


def test_spark_reads_lake_files_in_hdfs_itself(tmp_path):
    with hdfs(tmp_path / "server") as server:
        url = filled(server.new_url(), server.settings)
        found = ask(url, server.settings, {})
    assert found["rows"] == [1000, 999 * 500]
    assert "lake files by Spark's reader over hdfs" in found["plan"]
    assert found["followed"] == 1000, "in real-time mode"
