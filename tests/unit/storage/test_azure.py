"""URLs and settings of Azure, and what its failures mean."""

from __future__ import annotations

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.identity import ClientSecretCredential, DefaultAzureCredential

from streamhouse_spark.errors import InvalidOptionError, ObjectExistsError, StorageError, StorageRefusedError
from streamhouse_spark.storage import azure as storage
from streamhouse_spark.storage.azure import AzureAddress, AzureContainerClient
from streamhouse_spark.storage.remote.retry import FailureKind

URL = "abfss://box@account.dfs.core.windows.net/some/prefix"
KEY = {"adls.account-key": "c2VjcmV0LWtleS00NzEx"}


def blobs(**settings: str) -> AzureContainerClient:
    return AzureContainerClient(AzureAddress.parse(URL, KEY | settings)[0])


def answered(kind: type[HttpResponseError], status: int, code: str, message: str = "told") -> HttpResponseError:
    error = kind(message)
    error.status_code, error.error_code = status, code
    return error


def test_a_url_tells_account_container_and_prefix():
    address, prefix = AzureAddress.parse(URL, {})
    assert (address.account, address.container, prefix) == ("account", "box", "some/prefix")
    assert address.account_url == "https://account.blob.core.windows.net"
    assert address.is_microsoft
    assert AzureAddress.parse("abfs://box@account.dfs.core.windows.net", {})[1] == ""


@pytest.mark.parametrize(
    ("authority", "url"),
    [
        ("127.0.0.1:10000", "http://127.0.0.1:10000/account"),
        (".blob.example.com", "http://account.blob.example.com"),
    ],
)
def test_an_emulator_has_an_authority_of_its_own(authority, url):
    settings = {"adls.blob-storage-authority": authority, "adls.blob-storage-scheme": "http"}
    address, _ = AzureAddress.parse(URL, settings)
    assert address.account_url == url
    assert not address.is_microsoft


@pytest.mark.parametrize(
    "url",
    [
        "abfss://box/prefix",
        "abfss://Box@account.dfs.core.windows.net/p",
        "abfss://box@account.blob.core.windows.net/p",
        "abfss://box@account.dfs.core.windows.net/a//b",
        "abfss://box@account.dfs.core.windows.net/a/../b",
    ],
)
def test_bad_azure_urls_are_rejected(url):
    with pytest.raises(InvalidOptionError):
        AzureAddress.parse(url, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adls.acount-key": "x"}, "did you mean adls.account-key"),
        ({"adls.blob-storage-scheme": "ftp"}, "expected http or https"),
        ({"adls.client-secret": "secret-4711"}, "go together"),
        ({"adls.sas-token": "secret-4711", "adls.sas-token-file": "/t"}, "exclude each other"),
        ({"adls.request-timeout": "0"}, "expected a number of seconds"),
    ],
)
def test_bad_azure_settings_are_rejected_without_their_value(settings, message):
    with pytest.raises(InvalidOptionError, match=message) as caught:
        AzureAddress.parse(URL, settings)
    assert "secret-4711" not in str(caught.value)


def test_settings_of_others_and_of_pyiceberg_are_left_alone():
    given = {"s3.endpoint": "http://x", "adls.account-name": "account", "adls.dfs-storage-scheme": "http"}
    assert AzureAddress.parse(URL, given)[0] == AzureAddress.parse(URL, {})[0]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answered(ResourceExistsError, 409, "BlobAlreadyExists"), FailureKind.EXISTS),
        (answered(HttpResponseError, 412, "ConditionNotMet"), FailureKind.EXISTS),
        (answered(HttpResponseError, 403, "UnauthorizedBlobOverwrite"), FailureKind.EXISTS),
        (answered(ResourceNotFoundError, 404, "BlobNotFound"), FailureKind.ABSENT),
        (answered(ResourceNotFoundError, 404, "ContainerNotFound"), FailureKind.FINAL),
        (answered(ResourceNotFoundError, 404, ""), FailureKind.FINAL),
        (answered(HttpResponseError, 503, "ServerBusy"), FailureKind.THROTTLED),
        (answered(HttpResponseError, 500, "InternalError"), FailureKind.TRANSIENT),
        (answered(ClientAuthenticationError, 403, "AuthorizationPermissionMismatch"), FailureKind.FINAL),
        (ServiceRequestError("no connection"), FailureKind.TRANSIENT),
        (ServiceResponseError("broken off"), FailureKind.TRANSIENT),
        (OSError("broken"), FailureKind.TRANSIENT),
    ],
)
def test_azure_failures_are_classified(error, kind):
    assert blobs().classify_failure(error).kind is kind


def test_texts_have_a_remedy_and_no_secret():
    known = blobs()
    denied = answered(ClientAuthenticationError, 403, "AuthorizationFailure", f"not with {KEY['adls.account-key']}\nno")
    error = known.classify_failure(denied).error("write", f"{URL}/a")
    assert type(error) is StorageRefusedError
    assert "grant the role Storage Blob Data Contributor" in str(error)
    assert KEY["adls.account-key"] not in str(error)
    assert "\n" not in str(error)
    exists = known.classify_failure(answered(ResourceExistsError, 409, "BlobAlreadyExists")).error("write", f"{URL}/a")
    assert type(exists) is ObjectExistsError
    gone = known.classify_failure(answered(ResourceNotFoundError, 404, "ContainerNotFound")).error("read", f"{URL}/a")
    assert "create the container" in str(gone)


def test_the_text_form_shows_no_secret():
    assert KEY["adls.account-key"] not in repr(AzureAddress.parse(URL, KEY)[0])


def test_a_backslash_is_refused():
    with pytest.raises(StorageError, match="which Azure takes for a slash"):
        blobs().get("a\\b")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, DefaultAzureCredential),
        ({"adls.client-id": "identity"}, DefaultAzureCredential),
        (
            {"adls.tenant-id": "tenant", "adls.client-id": "client", "adls.client-secret": "secret-4711"},
            ClientSecretCredential,
        ),
        ({"adls.sas-token": "sig=4711"}, str),
        (KEY, dict),
    ],
)
def test_azure_credentials_are_chosen_by_settings(given, kind):
    """Azure's own credentials get a new token before the old one expires."""
    found = storage._credential(AzureAddress.parse(URL, given)[0])
    assert type(found) is kind
    if kind is not dict and kind is not str:
        assert callable(found.get_token)
