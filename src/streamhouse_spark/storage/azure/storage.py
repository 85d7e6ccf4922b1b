"""Storage on Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.storage.azure.client import CLIENTS, AzureBlobs
from streamhouse_spark.storage.azure.settings import AzureAddress
from streamhouse_spark.storage.remote.blob_storage import BlobStorage
from streamhouse_spark.storage.remote.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class Container:
    """A container of an account."""

    address: AzureAddress

    def blobs(self) -> AzureBlobs:
        return CLIENTS.get(self.address)


def azure_storage(url: str, settings: Mapping[str, str], world: World | None = None) -> BlobStorage:
    """Return the store at ``abfss://container@account.dfs.core.windows.net/prefix``, with pyiceberg's ``adls.*``
    settings.

    The default is the Azure identity of this machine. Raises `InvalidOptionError`.
    """
    address, prefix = AzureAddress.parse(url, settings)
    return BlobStorage(url, prefix, Container(address), world, RetryPolicy.parse(settings))
