"""Random bytes over a socket that are nearly HTTP: the server answers each with 2xx, 3xx or 4xx, and goes on.

``python -m kit.http_fuzz MINUTES [SEED]`` in ``tests`` runs it alone and prints what breaks the rule.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kit.raw_http import exchange
from streamhouse_spark import Warehouse

METHODS = (
    "GET",
    "GET",
    "POST",
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "PRI",
    "get",
    "G\x00T",
    "",
)
NAMES = (
    "s.t",
    "s.k",
    "s.absent",
    "s.t$lake",
    "s.t$history",
    "s.k$changelog",
    "s.t$branch_x",
    "s",
    "..",
    "s.t%2F..",
    "%00",
    "%ff",
    "s.\u00e9",
    "S.T",
    "$",
    "s.t$",
    "lake",
    "x" * 300,
)
PATHS = (
    "/",
    "*",
    "",
    "//",
    "/health",
    "/metrics",
    "/api/v1/overview",
    "/api/v1/tables",
    "/api/v1/openapi.json",
    "/api/v1/tables/{}",
    "/api/v1/tables/{}/rows",
    "/api/v1/tables/{}/rows",
    "/api/v1/tables/{}/lookup",
    "/api/v1/tables/{}/changes",
    "/iceberg/v1/config",
    "/iceberg/v1/namespaces",
    "/iceberg/v1/namespaces/{}",
    "/iceberg/v1/namespaces/s/tables",
    "/iceberg/v1/namespaces/s/tables/{}",
    "/iceberg/v1/lake/namespaces/s/tables/{}",
    "/iceberg/v1/namespaces/s/tables/{}/metrics",
    "/iceberg/v1/namespaces/s/views",
    "/iceberg",
    "/api/v1/../../etc",
    "http://localhost/health",
    "localhost:80",
    "/%2e%2e/",
    "/\u00e9",
    "/api/v1/tables/{}/rows/",
)
PARAMETERS = (
    "mode",
    "columns",
    "bad_rows",
    "dead_letters",
    "where",
    "limit",
    "id",
    "s",
    "from",
    "costs",
    "snapshots",
    "warehouse",
    "parent",
    "mod",
    "pageSize",
    "pageToken",
)
VALUES = (
    "",
    "1",
    "-1",
    "upsert",
    "delete",
    "append",
    "skip",
    "dead-letter",
    "s.bad",
    "id",
    "id,s",
    "id=1",
    "id+%3D+1",
    "s+LIKE+'%25'",
    "latest",
    "earliest",
    "%7B%7D",
    "%7B%22version%22:1%7D",
    "9" * 40,
    "%00",
    "%ff",
    "all",
    "refs",
    "lake",
    "(" * 500,
    "'",
    "x" * 5_000,
)
TYPES = (
    "application/json",
    "application/json",
    "application/x-ndjson",
    "text/csv",
    "application/vnd.apache.arrow.stream",
    "text/plain",
    "application/json; charset=latin1",
    "*/*",
    "",
    "a/b, application/json",
    "\u00e9",
)
HEADERS = (
    "Accept",
    "Origin",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Authorization",
    "Range",
    "Expect",
    "Upgrade",
    "X-Iceberg-Access-Delegation",
    "Sec-Fetch-Site",
    "Content-Encoding",
    "Cookie",
    "Transfer-Encoding",
    "Content-Length",
    "Host",
    "Connection",
    "X-Forwarded-Host",
)
HEADER_VALUES = (
    "",
    "*",
    "null",
    "http://evil.com",
    "a:1",
    "a:",
    '"x"',
    'W/"x"',
    "100-continue",
    "websocket",
    "h2c",
    "chunked",
    "gzip",
    "5",
    "-1",
    "0",
    "99999999999999999999",
    "bytes=0-1",
    "localhost",
    "evil.com",
    "close",
    "keep-alive",
    "Upgrade",
    "Bearer x",
    "Basic eDp4",
    "vended-credentials",
    "cross-site",
    "\u00e9",
    "text/csv;q=0.5, */*",
    "x" * 9_000,
    "\t",
)
BODIES = (
    b"",
    b"[]",
    b"{}",
    b"null",
    b'[{"id": 1}]',
    b'[{"id": 1, "s": "a"}, {"id": null}]',
    b'{"id":1}\n{"id":2}\n',
    b"id,s\n1,a\n",
    b'id,s\n1,"a\n',
    b"[" * 5_000,
    b'[{"id": 1e400}]',
    b'[{"id": NaN}]',
    b'[{"s": "\\ud800"}]',
    b"\x00" * 64,
    b"ARROW1\x00\x00",
    b"\xff\xff\xff\xff\x10\x00\x00\x00" * 4,
    b"x" * 100_000,
    b'[{"ID": 1}]',
    b'[{"id": 1, "id": 2}]',
)
TIMEOUT_S = 30
PATIENCE_S = 0.1


@dataclass(frozen=True)
class Finding:
    request: bytes
    text: str

    def __str__(self) -> str:
        shown = self.request if len(self.request) < 600 else self.request[:300] + b" ... " + self.request[-200:]
        return f"{self.text}\n  {shown!r}"


def random_request(rng: random.Random) -> tuple[bytes, bool]:
    """Return a request that most often is right but for a few places, and whether all of it is sent."""
    method, target, parameters = rng.choice(METHODS), rng.choice(PATHS).replace("{}", rng.choice(NAMES)), PARAMETERS
    if rng.random() < 0.5:  # of rows, which have most to read
        method = rng.choice(("GET", "POST", "POST"))
        target = f"/api/v1/tables/{rng.choice(NAMES[:2])}/rows"
        parameters = PARAMETERS[4:6] if method == "GET" else PARAMETERS[:4]
    if rng.random() < 0.5:
        pairs = (f"{name}={rng.choice(VALUES)}" for name in rng.sample(parameters, rng.choice((1, 1, 2))))
        target += "?" + "&".join(pairs)
    body = rng.choice(BODIES)
    lines = [] if rng.random() < 0.03 else ["Host: " + rng.choice(("127.0.0.1", "localhost", "localhost:8181"))]
    if rng.random() < 0.9:
        lines.append("Content-Type: " + rng.choice(TYPES))
    is_chunked = rng.random() < 0.2
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
        sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part) + b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body)}")
        sent = body
    names = [rng.choice(HEADERS) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    lines += [f"{name}: {rng.choice(HEADER_VALUES)}" for name in names]
    version = rng.choices(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTX/1.1", ""), (80, 8, 2, 1, 1, 1))[0]
    head = "\r\n".join([f"{method} {target} {version}", *lines, "Connection: close", "", ""])
    request = bytearray(head.encode("utf-8") + sent)
    num_changes = rng.choice((0, 0, 0, 0, 1, 3, 20))
    for _ in range(num_changes):
        place = rng.randrange(len(request))
        match rng.randrange(3):
            case 0:
                request[place] = rng.randrange(256)
            case 1:
                del request[place : place + rng.randint(1, 20)]
            case 2:
                request[place:place] = rng.randbytes(rng.randint(1, 8))
        if not request:
            break
    return bytes(request), not num_changes and not {"Content-Length", "Transfer-Encoding"} & {*names}


def fuzz(authority: str, seed: int, until: float, statuses: Counter[int] | None = None) -> Iterator[Finding]:
    """Send requests until a monotonic time, and yield those that are answered with 5xx or not at all.

    A request that is not whole gets a moment, and then its client ends: the server has to answer or to close.
    """
    rng = random.Random(seed)
    while time.monotonic() < until:
        request, is_whole = random_request(rng)
        is_whole = is_whole and b"/changes" not in request
        try:
            answer = exchange(authority, request, timeout_s=TIMEOUT_S, patience_s=TIMEOUT_S if is_whole else PATIENCE_S)
        except TimeoutError:
            yield Finding(request, "no answer, and no end")
            continue
        if statuses is not None:
            statuses[answer.status] += 1
        if answer.status >= 500 and answer.status not in (501, 505):
            yield Finding(request, f"status {answer.status}: {answer.body[:300]!r}")
        if answer.status == 0 and is_whole:
            yield Finding(request, "closed without an answer")


def main() -> None:
    import tempfile

    from kit.serving import served

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    minutes, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    statuses: Counter[int] = Counter()
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder, served(fuzzed_warehouse(Warehouse(f"{folder}/wh"))) as url:
        for finding in fuzz(url.removeprefix("http://"), seed, time.monotonic() + minutes * 60, statuses):
            say(str(finding))
    say(f"{statuses.total()} requests: {dict(sorted(statuses.items()))}")


def fuzzed_warehouse(warehouse: Warehouse) -> Warehouse:
    warehouse.create_table("s.t", "id BIGINT, s STRING").append([{"id": 1, "s": "a"}])
    warehouse.create_table("s.k", "id BIGINT NOT NULL, s STRING", primary_key=["id"]).upsert([{"id": 1, "s": "a"}])
    return warehouse


if __name__ == "__main__":
    main()
