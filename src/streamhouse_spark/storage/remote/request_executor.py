"""Sends requests of a synchronous client with metrics, retries and the package's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.storage.remote.blobs import BlobClient
from streamhouse_spark.storage.remote.failures import FailureKind
from streamhouse_spark.storage.remote.retry import USUAL, RetryPolicy, send_with_retries
from streamhouse_spark.storage.request_metrics import METER, Kind, RequestCounts

T = TypeVar("T")
R = TypeVar("R", bound=BlobClient)
R_co = TypeVar("R_co", bound=BlobClient, covariant=True)


class Bucket(Protocol[R_co]):
    """A bucket and the settings to reach it. Can be pickled."""

    def blobs(self) -> R_co:
        """Return this process's client of the bucket."""


@dataclass(frozen=True, slots=True)
class RequestExecutor(Generic[R]):
    """Sends all requests of one store."""

    url: str
    prefix: str
    """The root's name in the bucket, with a slash at its end, or empty."""
    bucket: Bucket[R]
    world: World
    patience: RetryPolicy = USUAL

    def send(
        self,
        kind: Kind,
        doing: str,
        key: str,
        request: Callable[[R, str], T],
        *,
        sent_bytes: int = 0,
        received: Callable[[T], int] = lambda _: 0,
        resend_unclear: bool = True,
    ) -> T:
        """Send a request for the object at ``key``. ``request`` gets the client and the object's complete name.

        Without ``resend_unclear`` a request with an unknown outcome is not retried, unless patience was configured. A
        rejected one is retried with the secret of a file that was renewed. Raises `StorageError` and its subclasses.
        """
        blobs = self.bucket.blobs()
        secret = blobs.token_file
        version = secret.version if secret else 0

        def counted() -> T:
            try:
                answer = request(blobs, self.prefix + key)
            except blobs.failures as error:
                outcome = blobs.judge(error).kind
                refused = int(outcome is FailureKind.EXISTS)
                failed = int(outcome not in (FailureKind.EXISTS, FailureKind.ABSENT))
                self._note(key, kind, RequestCounts(refused_puts=refused, failures=failed, sent_bytes=sent_bytes))
                raise
            self._note(key, kind, RequestCounts(sent_bytes=sent_bytes, received_bytes=received(answer)))
            return answer

        def patiently() -> T:
            return send_with_retries(
                counted,
                self.world,
                blobs.failures,
                lambda e: blobs.judge(e).kind,
                resend_unclear=resend_unclear,
                patience=self.patience,
            )

        where = f"{self.url}/{key}"
        try:
            return patiently()
        except blobs.failures as error:
            failure = blobs.judge(error)
            if not failure.is_refused or secret is None or not secret.renew(version):
                raise failure.error(doing, where) from error
        try:
            return patiently()
        except blobs.failures as error:
            raise blobs.judge(error).error(doing, where) from error

    def _note(self, key: str, kind: Kind, about: RequestCounts) -> None:
        METER.note(self.url, key, RequestCounts(**{kind: 1}) + about)
