"""Object stores on loopback, each in a process of its own with an empty bucket: moto's server, MinIO behind a relay."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import botocore.session

from benchmarks.server_processes import GUARD, free_ports

BUCKET = "bench"
KEYS = ("bench-key", "bench-secret-1")
REGION = "us-east-1"
MINIO = Path(__file__).parent.parent / "artifacts" / "servers" / "bin" / "minio"
_START_SECONDS_MAX = 60


def warehouse_settings(endpoint: str) -> dict[str, str]:
    """What a user gives a warehouse on such a store."""
    return {
        "s3.endpoint": endpoint,
        "s3.region": REGION,
        "s3.access-key-id": KEYS[0],
        "s3.secret-access-key": KEYS[1],
    }


def hadoop_settings(endpoint: str) -> dict[str, str]:
    """What a user gives S3A for the same store."""
    return {
        "endpoint": endpoint,
        "endpoint.region": REGION,
        "path.style.access": "true",
        "access.key": KEYS[0],
        "secret.key": KEYS[1],
    }


@dataclass(frozen=True)
class Asked:
    """Requests that passed a relay, and the bytes of the answers."""

    requests: tuple[str, ...]
    answered_bytes: int

    @property
    def kinds(self) -> str:
        """How many there were of each method."""
        found = Counter(request.partition(" ")[0] for request in self.requests)
        return ", ".join(f"{count} {method}" for method, count in sorted(found.items()))


class Relay:
    """A relay before a store, by its process. Not for use by several threads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _say(self, order: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        return self._line()

    def set_delay(self, delay_ms: float) -> None:
        """Delay each piece of a request that arrives from now on by so much."""
        self._say(f"delay {delay_ms}")

    def asked(self) -> Asked:
        """What passed since the last call."""
        found = json.loads(self._say("count"))
        return Asked(tuple(found["requests"]), found["answered_bytes"])


@contextmanager
def moto(log: Path) -> Iterator[str]:
    """Run moto's server with an empty bucket; the endpoint."""
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output
        )
    try:
        _make_bucket(f"{endpoint}/{BUCKET}")
        yield endpoint
    finally:
        server.kill()
        server.wait()


def _make_bucket(url: str) -> None:
    until = time.monotonic() + _START_SECONDS_MAX
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
        except URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


@contextmanager
def minio(folder: Path) -> Iterator[Relay]:
    """Run MinIO with an empty bucket, and a relay before it that does not delay yet."""
    if not MINIO.exists():
        raise SystemExit(f"{MINIO} is missing: make bench-latency and make bench-remote fetch it")
    (port,) = free_ports(1)
    keys = {"MINIO_ROOT_USER": KEYS[0], "MINIO_ROOT_PASSWORD": KEYS[1]}
    command = [str(MINIO), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder / "minio")]
    with _guarded(command, keys):
        _wait_for(port)
        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id=KEYS[0],
            aws_secret_access_key=KEYS[1],
            region_name=REGION,
        )
        client.create_bucket(Bucket=BUCKET)
        with relayed(port, 0) as relay:
            yield relay


@contextmanager
def relayed(port: int, delay_ms: float) -> Iterator[Relay]:
    """Run a relay before a server of this host."""
    command = [sys.executable, "-m", "benchmarks.delayed", str(port), str(delay_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Relay(process)
        finally:
            process.kill()


@contextmanager
def _guarded(command: list[str], environment: Mapping[str, str]) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARD), *command],
        env=os.environ | dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the guard ends the command then; killed itself, it would leave it behind
            process.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("MinIO did not start")
