"""Storage on Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.storage.gcs.client import CLIENTS, GcsBlobs
from streamhouse_spark.storage.gcs.settings import GcsAddress
from streamhouse_spark.storage.remote.blob_storage import BlobStorage
from streamhouse_spark.storage.remote.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class GcsBucket:
    """A bucket."""

    address: GcsAddress

    def blobs(self) -> GcsBlobs:
        return CLIENTS.get(self.address)


def gcs_storage(url: str, settings: Mapping[str, str], world: World | None = None) -> BlobStorage:
    """Return the store at ``gs://bucket/prefix``, with pyiceberg's ``gcs.*`` settings.

    The default are the application default credentials of this machine. Raises `InvalidOptionError`.
    """
    address, prefix = GcsAddress.parse(url, settings)
    return BlobStorage(url, prefix, GcsBucket(address), world, RetryPolicy.parse(settings))
