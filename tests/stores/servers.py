"""Servers of object stores, each a process of its own on a free port of loopback, with an empty folder."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from kit.network import free_port

SERVERS = Path(__file__).resolve().parents[2] / "artifacts" / "servers"
MINI_HDFS = Path(__file__).with_name("MiniHdfs.java")
ACCESS_KEY = "test-access-key"
SECRET_KEY = "canary-secret-4711"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that every Azurite has."""
_START_SECONDS_MAX = 240


@dataclass(frozen=True)
class Server:
    """A running server on loopback."""

    port: int
    settings_at: Callable[[int], Mapping[str, str]]
    """Gives the settings of a warehouse that reaches the server by a port: its own, or a proxy's."""
    new_url: Callable[[], str]
    """Makes a bucket that nobody else uses, and returns the URL of a warehouse in it."""
    readers: Mapping[str, str] = field(default_factory=dict)
    """Settings that pyiceberg's own readers need besides."""
    host: str = "127.0.0.1"

    @property
    def settings(self) -> Mapping[str, str]:
        return self.settings_at(self.port)


@contextmanager
def minio(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Server]:
    """``more`` is added to the environment of the process."""
    port = free_port()
    command = [_binary("bin/minio"), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder)]
    environment = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, **(more or {})}
    with _running(command, port, environment):
        yield _s3_server(port)


@contextmanager
def versitygw(folder: Path) -> Iterator[Server]:
    """Serve a folder by a gateway that looks for an object before its body arrives, and writes it behind."""
    port = free_port()
    keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY]
    with _running([_binary("bin/versitygw"), "--port", f"127.0.0.1:{port}", *keys, "posix", str(folder)], port):
        yield _s3_server(port)


@contextmanager
def fake_gcs(folder: Path) -> Iterator[Server]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [_binary("bin/fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-external-url", endpoint, "-public-host", f"127.0.0.1:{port}"]
    names = count(1)

    def new_url() -> str:
        import requests

        name = f"bucket-{next(names)}"
        requests.post(f"{endpoint}/storage/v1/b", json={"name": name}, timeout=60).raise_for_status()
        return f"gs://{name}/some/prefix"

    with _running([*command, "-log-level", "error"], port):
        readers = {"gcs.oauth2.token": "anybody", "gcs.oauth2.token-expires-at": "32503680000000"}
        yield Server(
            port, lambda at: {"gcs.service.host": f"http://127.0.0.1:{at}", "gcs.anonymous": "true"}, new_url, readers
        )


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    from azure.storage.blob import ContainerClient

    port = free_port()
    command = [_binary("azurite/node_modules/.bin/azurite-blob"), "--blobPort", str(port), "--location", str(folder)]
    names = count(1)

    def new_url() -> str:
        name = f"container-{next(names)}"
        key = {"account_name": AZURITE_ACCOUNT, "account_key": AZURITE_KEY}
        with ContainerClient(f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}", name, credential=key) as client:
            client.create_container()
        return f"abfss://{name}@{AZURITE_ACCOUNT}.dfs.core.windows.net/some/prefix"

    def settings_at(at: int) -> Mapping[str, str]:
        return {
            "adls.account-key": AZURITE_KEY,
            "adls.blob-storage-authority": f"127.0.0.1:{at}",
            "adls.blob-storage-scheme": "http",
        }

    with _running([*command, "--silent", "--skipApiVersionCheck", "--disableTelemetry"], port):
        connection = (
            f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{AZURITE_ACCOUNT};"
        )
        yield Server(port, settings_at, new_url, {"adls.connection-string": connection})


@contextmanager
def hdfs(folder: Path) -> Iterator[Server]:
    """Start Hadoop's own NameNode and DataNode, in one process."""
    calls, http, ready = free_port(), free_port(), free_port()
    command = ["java", "-cp", Path(_binary("hdfs/classpath")).read_text(), str(MINI_HDFS), str(folder)]
    names = count(1)
    with _running([*command, *map(str, (calls, http, ready))], ready):
        yield Server(
            http,
            lambda at: {"hdfs.webhdfs.address": f"127.0.0.1:{at}"},
            lambda: f"hdfs://127.0.0.1:{calls}/folder-{next(names)}/some/prefix",
        )


KINDS = {"minio": minio, "fake-gcs-server": fake_gcs, "azurite": azurite, "hdfs": hdfs}


def _s3_server(port: int) -> Server:
    import botocore.session

    endpoint = f"http://127.0.0.1:{port}"
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )
    names = count(1)

    def new_url() -> str:
        name = f"bucket-{next(names)}"
        client.create_bucket(Bucket=name)
        return f"s3://{name}/some/prefix"

    def settings_at(at: int) -> Mapping[str, str]:
        keys = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
        return {"s3.endpoint": f"http://127.0.0.1:{at}", "s3.region": "us-east-1", **keys}

    return Server(port, settings_at, new_url)


def _binary(name: str) -> str:
    path = SERVERS / name
    assert path.exists(), f"{path} is missing: make matrix-stores installs it"
    return str(path)


@contextmanager
def _running(command: list[str], port: int, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    with subprocess.Popen(
        command, env=os.environ | dict(environment or {}), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as process:
        try:
            _wait_for(process, port, command[0])
            yield
        finally:
            process.terminate()
            process.wait(_START_SECONDS_MAX)


def _wait_for(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    give_up = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < give_up:
        assert process.poll() is None, f"{name} ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"{name} did not open port {port}")
