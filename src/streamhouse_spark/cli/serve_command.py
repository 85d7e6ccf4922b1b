"""``serve``: fresh rows for Iceberg engines, and rows over HTTP."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

import click

from streamhouse_spark.cli.output import log_to_stderr
from streamhouse_spark.cli.session import Command, Session, pairs_option
from streamhouse_spark.errors import InvalidOptionError, count_of

_PORT_MAX = (1 << 16) - 1


@click.command(
    "serve",
    cls=Command,
    examples="""
streamhouse -w ./warehouse serve

# DuckDB sees rows of the hot log that are milliseconds old
duckdb -c "INSTALL iceberg; LOAD iceberg;
  ATTACH '' AS sh (TYPE iceberg, ENDPOINT 'http://127.0.0.1:8181/iceberg', AUTHORIZATION_TYPE 'none');
  SELECT count(*) FROM sh.sales.orders"

# write rows over HTTP; retries with the same key are stored once
curl -X POST http://127.0.0.1:8181/api/v1/tables/sales.orders/rows -H 'Content-Type: application/json' \\
  -H 'Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324' -d '[{"order_id": 1, "customer": "ann", "amount": 9.5}]'

# for other machines: TLS, and tokens (lines of "read TOKEN" or "write TOKEN")
streamhouse -w s3://bucket/warehouse serve --host 0.0.0.0 --token-file tokens --tls-cert cert.pem --tls-key key.pem

# bulk reads by Arrow Flight, in parallel
streamhouse -w ./warehouse serve --flight-port 8815

# rights by table, for services and for users of an identity provider, and an audit log
streamhouse -w s3://bucket/warehouse serve --access rights.toml --audit-log audit.log
""",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, _PORT_MAX), default=8181, show_default=True, help="0 selects a free port."
)
@click.option(
    "--flight-port",
    type=click.IntRange(0, _PORT_MAX),
    metavar="PORT",
    help="Port of Arrow Flight for bulk reads; 0 selects a free port. Off by default.",
)
@click.option(
    "--token-file", metavar="FILE", help="Tokens that may read, or read and write. By default no token is needed."
)
@click.option(
    "--access", metavar="FILE", help="Clients, groups of an identity provider, and their rights by table; TOML."
)
@click.option("--audit-log", metavar="FILE", help="Write a line of JSON per request that reads or writes a table.")
@click.option("--tls-cert", metavar="FILE", help="Certificate chain, in PEM.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate, in PEM.")
@click.option(
    "--allowed-host",
    metavar="NAME",
    multiple=True,
    help="A Host that requests may have in addition to localhost and addresses, such as the name of a proxy; * for "
    "any. May be given several times.",
)
@click.option(
    "--allowed-origin",
    metavar="ORIGIN",
    multiple=True,
    help="An origin whose pages may send requests, in addition to the server's own, such as "
    "https://streams.example.com. May be given several times.",
)
@click.option("--insecure", is_flag=True, help="Permit other machines without tokens or TLS.")
@pairs_option(
    "--client-config",
    metavar="NAME=VALUE",
    text="A property for Iceberg clients, such as s3.region=eu-west-1. Never credentials.",
)
@click.option(
    "--grace-minutes",
    type=click.IntRange(2, 7 * 24 * 60),
    default=60,
    show_default=True,
    help="How long the files of a query's hot rows stay.",
)
@click.option(
    "--lake-after",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Return the lake without hot rows, with a header Warning, if hot rows take longer. By default requests wait.",
)
@click.option(
    "--vend-role",
    metavar="ARN",
    help="Vend credentials of this S3 role, restricted to the files of a table, to its readers. Off by default.",
)
@click.option(
    "--vend-minutes",
    type=click.IntRange(15, 720),
    default=60,
    show_default=True,
    help="Lifetime of vended credentials, which the role must permit.",
)
@click.option("--check", is_flag=True, help="Check the options and the warehouse, and exit.")
@click.pass_obj
def serve(
    session: Session,
    host: str,
    port: int,
    flight_port: int | None,
    token_file: str | None,
    access: str | None,
    audit_log: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    *,
    allowed_host: tuple[str, ...],
    allowed_origin: tuple[str, ...],
    insecure: bool,
    client_config: Mapping[str, str],
    grace_minutes: int,
    lake_after: float | None,
    vend_role: str | None,
    vend_minutes: int,
    check: bool,
) -> None:
    """Serve fresh rows to Iceberg engines, and read and write rows over HTTP.

    Engines that use Iceberg's REST protocol see each table with its hot rows. /iceberg is the read-only catalog,
    /api/v1 reads and writes rows, Arrow Flight (--flight-port) serves bulk reads, /metrics is for Prometheus, and / is
    an overview. Several servers may run concurrently, because all shared state is in the warehouse. Runs until Ctrl-C.
    """
    from streamhouse_spark.serve.acl import Access, AccessOf, ReloadingAcl, parse_tokens
    from streamhouse_spark.serve.audit import AuditLog, require_writable
    from streamhouse_spark.serve.options import ListenAddress, ServeOptions, VendOptions
    from streamhouse_spark.serve.same_site import AllowedSites
    from streamhouse_spark.serve.server import serve as serve_until_stopped

    clock = session.warehouse.world.clock
    rights: AccessOf = Access
    if token_file is not None and access is not None:
        raise InvalidOptionError("found --token-file and --access, expected at most one of them; leave one out")
    if token_file is not None:
        tokens = parse_tokens(token_file)
        rights = lambda: tokens  # noqa: E731 - one of three alternatives
    elif access is not None:
        rights = ReloadingAcl(access, clock)
    listening = ListenAddress(host, port, flight_port, tls_cert, tls_key, insecure)

    sites = AllowedSites.of((*allowed_host, *listening.names), allowed_origin)
    vend = VendOptions(vend_role, vend_minutes * 60) if vend_role is not None else None
    if vend is not None:
        vend.require_usable(session.warehouse.url)

    if check:
        listening.require_safe(rights())
        listening.require_certificate()
        if audit_log is not None:
            require_writable(audit_log)
        click.echo(
            f"{session.warehouse_location} with {count_of(len(session.warehouse.tables()), 'table')} can be served"
        )
        return

    log_to_stderr()
    audit = AuditLog(audit_log, clock) if audit_log is not None else None
    options = ServeOptions(rights, client_config, grace_minutes * 60_000, audit, lake_after, vend, sites)

    def announce(url: str, flight: str | None) -> None:
        also = f", Arrow Flight at {flight}" if flight else ""
        text = f"serving {session.warehouse_location} at {url} (Iceberg REST at {url}/iceberg{also}) until Ctrl-C"
        click.echo(text, err=True)

    if not serve_until_stopped(session.warehouse, options, listening, announce):
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)  # a gRPC thread that waits for an idle client would keep the process alive
