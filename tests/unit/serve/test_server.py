"""Addresses that a server may listen at."""

from __future__ import annotations

import pytest

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.serve.acl import ANONYMOUS, Access, digest_of
from streamhouse_spark.serve.options import ListenAddress

TOKENS = Access({digest_of("0123456789abcdef"): ANONYMOUS})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_this_machine_alone_is_safe(host):
    ListenAddress(host).require_safe(Access())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_a_public_address_needs_tls_and_tokens(host):
    tls = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
    for listening, access in [
        (ListenAddress(host), Access()),
        (ListenAddress(host), TOKENS),
        (ListenAddress(host, **tls), Access()),
    ]:
        with pytest.raises(InvalidOptionError, match="--insecure"):
            listening.require_safe(access)
    ListenAddress(host, **tls).require_safe(TOKENS)
    ListenAddress(host, allows_insecure=True).require_safe(Access())
