"""Secrets in files that others renew: one that a store takes no longer is read again, and the request is sent again."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage.quiet_server import QuietServer
from streamhouse_spark.errors import StorageError, StorageRefusedError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.storage.remote.client import TokenFile

OLD, NEW = "sig=old-canary-4711", "sig=new-canary-4711"


@dataclass
class Guard:
    """A server that stores nothing, and takes requests with one secret only."""

    valid: str = OLD
    seen: list[str] = field(default_factory=list)
    port: int = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    guard: Guard

    def _serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        header, query = self.headers.get("Authorization", ""), self.path.partition("?")[2]
        self.guard.seen.append(OLD if OLD in header or OLD in query else NEW if NEW in header or NEW in query else "")
        is_valid = self.guard.seen[-1] == self.guard.valid
        self.send_response({"GET": 206, "PUT": 201, "POST": 200}[self.command] if is_valid else 401)
        if not is_valid:
            self.send_header("x-ms-error-code", "AuthenticationFailed")
        self.send_header("Content-Length", "2")
        self.send_header("Content-Range", "bytes 0-1/2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_PUT = do_POST = _serve  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@contextmanager
def running(guard: Guard) -> Iterator[None]:
    with QuietServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"guard": guard})) as listener:
        guard.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield
        listener.shutdown()
        thread.join()


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = Guard()
    with running(made):
        yield made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{OLD}\n")
    return path


def azure(guard: Guard, secret: Path) -> Storage:
    settings = {"adls.blob-storage-authority": f"127.0.0.1:{guard.port}", "adls.blob-storage-scheme": "http"}
    return open_storage("abfss://box@account.dfs.core.windows.net/wh", {**settings, "adls.sas-token-file": str(secret)})


def google(guard: Guard, secret: Path) -> Storage:
    settings = {"gcs.service.host": f"http://127.0.0.1:{guard.port}"}
    return open_storage("gs://bucket/wh", {**settings, "gcs.oauth2.token-file": str(secret)})


@pytest.mark.parametrize("store", [azure, google])
def test_a_renewed_secret_is_taken_up_by_the_request_that_was_refused(guard, secret, store):
    storage = store(guard, secret)
    assert storage.read("a") == b"{}"
    guard.valid = NEW
    with pytest.raises(StorageRefusedError) as told:  # nobody has renewed it yet
        storage.read("a")
    assert "4711" not in str(told.value)
    secret.write_text(NEW)
    guard.seen.clear()
    storage.put_if_absent("b", b"rows")
    assert guard.seen == [OLD, NEW]
    guard.seen.clear()
    assert storage.read("a") == b"{}"
    assert guard.seen == [NEW]


@pytest.mark.parametrize("store", [azure, google])
def test_a_file_that_cannot_be_read_is_named(guard, secret, store):
    secret.unlink()
    with pytest.raises(StorageRefusedError, match=r"token-file: .*No such file.*write the secret"):
        store(guard, secret).read("a")
    secret.write_text(" \n")
    with pytest.raises(StorageError, match="is empty"):
        store(guard, secret).read("a")


def test_of_many_that_were_refused_each_one_learns_of_the_new_secret(secret):
    file = TokenFile(str(secret), "setting")
    assert not file.renew(0)
    secret.write_text(NEW)
    assert file.renew(0)
    assert file.renew(0), "another that was refused with the old one"
    assert (file.text, file.version, file.renew(1)) == (NEW, 1, False)
    assert file.secrets == (NEW,)
