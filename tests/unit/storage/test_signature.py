"""Signatures of reads on the short way are those that the client's own signer makes of the same request."""

from __future__ import annotations

from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.utils import percent_encode
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.storage.s3.signature import GetSigner

HOSTS = [
    "https://bucket.s3.eu-west-1.amazonaws.com",
    "https://Bucket.Example.org:443",
    "http://127.0.0.1:9000",
    "http://localhost:80",
    "https://[::1]:9443",
    "http://minio:443",
]


@given(
    host=st.sampled_from(HOSTS),
    key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    now_s=st.integers(0, 4_000_000_000),
    byte_range=st.none() | st.just("bytes=3-99"),
    token=st.none() | st.text("abc+/=", min_size=1, max_size=9),
    secrets=st.lists(st.text("aZ0+/", min_size=1, max_size=9), min_size=1, max_size=3),
)
def test_they_are_the_clients_own(host, key, now_s, byte_range, token, secrets):
    base = f"{host}/bucket/"
    signer = GetSigner(base, "eu-west-1", "s3")
    url = base + percent_encode(key, safe="/~")
    for secret in secrets:
        credentials = ReadOnlyCredentials("AKID", secret, token)
        headers = signer.headers(urlsplit(url).path, credentials, now_s, byte_range)
        signature = headers.pop("Authorization")
        request = AWSRequest("GET", url, headers={**headers, "User-Agent": "not signed"})
        request.context["timestamp"] = headers["x-amz-date"]
        auth = S3SigV4Auth(credentials, "s3", "eu-west-1")
        text = auth.string_to_sign(request, auth.canonical_request(request))
        auth._inject_signature_to_request(request, auth.signature(text, request))
        assert signature.replace(", ", ",") == request.headers["Authorization"].replace(", ", ",")
