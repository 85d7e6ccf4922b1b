"""Credentials that end after seconds, by the store's own rules: they are renewed without a restart, and where nobody
renews them the error says so.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import botocore.config
import botocore.session
import pytest
from botocore import UNSIGNED

from s3.test_tables_through_faults import check
from stores.identity import IdentityProvider, minio_role, running_identity_provider
from stores.servers import AZURITE_ACCOUNT, AZURITE_KEY, Server, azurite, minio
from streamhouse_spark import StreamhouseError, Warehouse

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("own_cache")]

LIFE_SECONDS = 20
RENEWED_EACH_SECONDS = 3
WORK_SECONDS = 2.5 * LIFE_SECONDS
BOUND_SECONDS = 30


@dataclass(frozen=True)
class Ending:
    """A warehouse, reached with credentials that end."""

    direct: Warehouse
    settings: dict[str, str]
    renew: Callable[[], None]
    """Puts credentials of `LIFE_SECONDS` where the client looks for them."""


@contextmanager
def kept(renew: Callable[[], None]) -> Iterator[None]:
    """Renew credentials in time, as an agent or Kubernetes does."""
    renew()
    done = threading.Event()

    def keep() -> None:
        while not done.wait(RENEWED_EACH_SECONDS):
            renew()

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with running_identity_provider() as running:
        yield running


@pytest.fixture(scope="module")
def guarded_minio(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with minio(tmp_path_factory.mktemp("server"), provider.minio_settings) as running:
        yield running


@pytest.fixture
def aws_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the only files of the AWS chain."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


@pytest.fixture
def by_token_of_the_cluster(guarded_minio, provider, aws_files, monkeypatch) -> Ending:
    """A pod's token, for which the store's STS gives credentials that end when it does."""
    token = aws_files / "token"
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", minio_role())
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", guarded_minio.settings["s3.endpoint"])
    url = guarded_minio.new_url()
    chain = {name: guarded_minio.settings[name] for name in ("s3.endpoint", "s3.region")}
    return Ending(Warehouse(url, guarded_minio.settings), chain, lambda: replace(token, provider.token(LIFE_SECONDS)))


@pytest.fixture
def by_file_of_credentials(guarded_minio, provider, aws_files) -> Ending:
    """Keys in a file, which an agent writes anew; whoever has read them knows nothing of their end."""
    endpoint = guarded_minio.settings["s3.endpoint"]
    unsigned = botocore.config.Config(signature_version=UNSIGNED)
    sts = botocore.session.Session().create_client(
        "sts", region_name="us-east-1", endpoint_url=endpoint, config=unsigned
    )

    def renew() -> None:
        found = sts.assume_role_with_web_identity(
            RoleArn=minio_role(), RoleSessionName="tests", WebIdentityToken=provider.token(LIFE_SECONDS)
        )["Credentials"]
        lines = [
            "[default]",
            f"aws_access_key_id={found['AccessKeyId']}",
            f"aws_secret_access_key={found['SecretAccessKey']}",
            f"aws_session_token={found['SessionToken']}",
        ]
        replace(aws_files / "credentials", "\n".join(lines))

    chain = {"s3.endpoint": endpoint, "s3.region": "us-east-1", "s3.connect-timeout": "9"}  # a client of its own
    return Ending(Warehouse(guarded_minio.new_url(), guarded_minio.settings), chain, renew)


@pytest.fixture
def by_shared_signature(tmp_path) -> Iterator[Ending]:
    from azure.storage.blob import generate_container_sas

    signature = tmp_path / "signature"
    folder = tmp_path / "azurite"
    folder.mkdir()
    with azurite(folder) as server:
        url = server.new_url()
        container = url.partition("://")[2].partition("@")[0]

        def renew() -> None:
            ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=LIFE_SECONDS)
            text = generate_container_sas(
                AZURITE_ACCOUNT, container, account_key=AZURITE_KEY, permission="racwdl", expiry=ends
            )
            replace(signature, text)

        settings = {name: text for name, text in server.settings.items() if name != "adls.account-key"}
        settings["adls.sas-token-file"] = str(signature)
        yield Ending(Warehouse(url, server.settings), settings, renew)


WAYS = ["by_token_of_the_cluster", "by_file_of_credentials", "by_shared_signature"]


@pytest.mark.parametrize("way", WAYS)
def test_credentials_that_end_are_renewed_without_a_restart(way, request):
    ending: Ending = request.getfixturevalue(way)
    acknowledged: set[int] = set()
    began = time.monotonic()
    with kept(ending.renew):
        table = Warehouse(ending.direct.url, ending.settings).create_table("t", "id BIGINT", buckets=1)
        while time.monotonic() - began < WORK_SECONDS or len(acknowledged) < 4:
            number = len(acknowledged)
            table.append([{"id": number}])
            acknowledged.add(number)
            assert table.to_arrow().num_rows == len(acknowledged)
            time.sleep(0.2)
    time.sleep(LIFE_SECONDS + 2)
    asked = time.monotonic()
    with pytest.raises(StreamhouseError, match=r"(?i)credential|token|signature|authenticat") as told:
        table.append([{"id": -1}])
    print(told.value)  # noqa: T201
    assert time.monotonic() - asked < BOUND_SECONDS
    with kept(ending.renew):
        table.append([{"id": len(acknowledged)}])
        acknowledged.add(len(acknowledged))
        assert table.to_arrow().num_rows == len(acknowledged)
    check(ending.direct.table("t"), acknowledged, set())
