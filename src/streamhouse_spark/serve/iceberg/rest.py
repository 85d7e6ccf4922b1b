"""Read-only Iceberg REST catalog. See the OpenAPI document of the Iceberg project.

``/v1/namespaces/{db}/tables/orders`` is the lake table with the hot rows, ``orders$lake`` is the lake table, and names
such as ``orders$history`` are system tables. For engines that do not permit ``$`` in names, the catalog
``warehouse=lake`` contains lake tables only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streamhouse_spark.core.types import TableName
from streamhouse_spark.errors import InvalidOptionError, TableNotFoundError
from streamhouse_spark.serve.acl import Right, database_not_found_error, require_definition
from streamhouse_spark.serve.auth import client_of, make_route
from streamhouse_spark.serve.iceberg.served_tables import ServedMetadata, ServedTable, ServedTables, StaleFallback
from streamhouse_spark.serve.iceberg.system_table_metadata import SystemTableMetadata
from streamhouse_spark.serve.iceberg.vending import CredentialVendor, VendedCredentials
from streamhouse_spark.serve.responses import iceberg_error, iceberg_error_response
from streamhouse_spark.table.system_views import LAKE

LAKE_ONLY: Final = "lake"
"""Warehouse name and prefix of the catalog that contains lake tables only."""
_READ_ONLY: Final = (
    "this catalog is read-only; write with Spark's catalog 'streamhouse', with Python (append, upsert), or with POST "
    "/api/v1/tables/<table>/rows"
)
_ENDPOINTS: Final = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
]
_REJECTED_ENDPOINTS: Final = [
    "POST /v1/{prefix}/namespaces",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "POST /v1/{prefix}/namespaces/{namespace}/register",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/tables/rename",
    "POST /v1/{prefix}/transactions/commit",
]
"""Writes, which are listed so that clients send them and get our error with the remedy. Iceberg's Java library and
pyiceberg do not send requests that a server does not list, and report no remedy."""
_CREDENTIALS: Final = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
_DELEGATION: Final = "x-iceberg-access-delegation"
_VENDED_CREDENTIALS: Final = "vended-credentials"
_READ_METHODS: Final = ("GET", "HEAD")
_SNAPSHOTS: Final = ("all", "refs")
_NO_NAMESPACE: Final = "NoSuchNamespaceException"
_Handler = Callable[[Request], Response]


def iceberg_routes(
    tables: ServedTables,
    client_config: Mapping[str, str],
    vending: CredentialVendor | None = None,
    system: SystemTableMetadata | None = None,
    stale_fallback: StaleFallback | None = None,
) -> list[Route]:
    """Return the routes below ``/iceberg``. Clients receive ``client_config``, which must not contain credentials."""
    return _Catalog(tables, client_config, vending, system or SystemTableMetadata(), stale_fallback).routes()


class _Catalog:
    def __init__(
        self,
        tables: ServedTables,
        client_config: Mapping[str, str],
        vending: CredentialVendor | None,
        system: SystemTableMetadata,
        stale_fallback: StaleFallback | None,
    ) -> None:
        self._tables = tables
        self._warehouse = tables.warehouse
        self._client_config = dict(client_config)
        self._vending = vending
        self._system = system
        self._fallback = stale_fallback

    def routes(self) -> list[Route]:
        routes = [self._route("/v1/config", self._config)]
        for prefix in ("/v1", f"/v1/{LAKE_ONLY}"):
            below = f"{prefix}/namespaces"
            routes += [
                self._route(below, self._namespaces, _NO_NAMESPACE),
                self._route(f"{below}/{{namespace}}", self._namespace, _NO_NAMESPACE),
                self._route(f"{below}/{{namespace}}/tables", self._list, _NO_NAMESPACE),
                self._route(f"{below}/{{namespace}}/views", self._views, _NO_NAMESPACE),
                self._route(f"{below}/{{namespace}}/views/{{view}}", self._view, "NoSuchViewException"),
                self._route(f"{below}/{{namespace}}/tables/{{table}}", self._load, right="read"),
                self._route(
                    f"{below}/{{namespace}}/tables/{{table}}/metrics",
                    self._report_metrics,
                    methods=("POST",),
                    right="read",
                ),
            ]
            if self._vending is not None:
                path = f"{below}/{{namespace}}/tables/{{table}}/credentials"
                routes.append(self._route(path, self._credentials, right="read"))
        return [
            *routes,
            Route("/{path:path}", _refuse_write, methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
        ]

    def _route(
        self,
        path: str,
        handler: _Handler,
        absent: str = "NoSuchTableException",
        methods: tuple[str, ...] = _READ_METHODS,
        *,
        right: Right | None = None,
    ) -> Route:
        """Return a route with Iceberg errors; ``absent`` is the error type for a missing object."""
        return make_route(
            path,
            handler,
            self._warehouse.exists,
            right=right,
            table_of=_base_table,
            to_response=partial(iceberg_error_response, absent=absent),
            methods=methods,
        )

    def _config(self, request: Request) -> Response:
        warehouse = request.query_params.get("warehouse", "")
        if warehouse not in ("", "streamhouse", LAKE_ONLY):
            text = f"there is no warehouse {warehouse!r}; use 'streamhouse', or '{LAKE_ONLY}' for lake tables only"
            return iceberg_error(404, "NoSuchWarehouseException", text)
        overrides = {"prefix": LAKE_ONLY} if warehouse == LAKE_ONLY else {}
        endpoints = [*_ENDPOINTS, *_REJECTED_ENDPOINTS, *([_CREDENTIALS] if self._vending is not None else [])]
        return JSONResponse({"defaults": {}, "overrides": overrides, "endpoints": endpoints})

    def _namespaces(self, request: Request) -> Response:
        client, parent = client_of(request), request.query_params.get("parent")
        if parent:
            self._require_visible(request, parent)  # namespaces are not nested
            return JSONResponse({"namespaces": []})
        names = [name for name in self._warehouse.databases() if client.can_see_database(name)]
        return JSONResponse({"namespaces": [[name] for name in names]})

    def _namespace(self, request: Request) -> Response:
        name = self._visible_namespace(request)
        return (
            _no_content(request) if request.method == "HEAD" else JSONResponse({"namespace": [name], "properties": {}})
        )

    def _visible_namespace(self, request: Request) -> str:
        return self._require_visible(request, str(request.path_params["namespace"]))

    def _require_visible(self, request: Request, name: str) -> str:
        """Return the namespace. Raises `TableNotFoundError` if it does not exist, or the client may not see it."""
        client = client_of(request)
        if not client.can_see_database(name) or name not in self._warehouse.databases():
            raise database_not_found_error(client, name)
        return name

    def _list(self, request: Request) -> Response:
        name = self._visible_namespace(request)
        readable = client_of(request).filter_readable(self._warehouse.tables(name))
        loadable = self._tables.list_loadable(readable, lake_alone=_is_lake_catalog(request))
        names = [table.partition(".")[2] for table in loadable]
        return JSONResponse({"identifiers": [{"namespace": [name], "name": table} for table in names]})

    def _views(self, request: Request) -> Response:
        """Return an empty list, because engines request views before they load a table."""
        self._visible_namespace(request)
        return JSONResponse({"identifiers": []})

    def _view(self, request: Request) -> Response:
        name = f"{self._visible_namespace(request)}.{request.path_params['view']}"
        raise TableNotFoundError(f"there is no view {name[:200]}; load a table, because this catalog has no views")

    def _requested_table(self, request: Request) -> tuple[ServedTable, str | None]:
        """Return the requested table, and the suffix of its name, which is `LAKE` in the catalog of lake tables."""
        suffix = request.path_params["table"].partition("$")[2]
        if not suffix and _is_lake_catalog(request):
            suffix = LAKE
        served = self._tables.table(_base_table(request))
        if suffix:
            require_definition(client_of(request), TableName(served.table.path, suffix.lower()), served.table.state)
        return served, suffix.lower() or None

    def _find_metadata(self, table: ServedTable, suffix: str | None) -> tuple[ServedMetadata, str | None]:
        """Return the metadata, and the reason if it does not contain the hot rows."""
        if suffix is None:
            return self._fallback.metadata(table) if self._fallback is not None else (table.latest_metadata(), None)
        return table.lake_metadata() if suffix == LAKE else self._system.latest_metadata(table.table, suffix), None

    def _load(self, request: Request) -> Response:
        table, suffix = self._requested_table(request)
        snapshots = request.query_params.get("snapshots", "all")
        if snapshots not in _SNAPSHOTS:
            raise InvalidOptionError(f"snapshots={snapshots[:60]!r}: expected {' or '.join(_SNAPSHOTS)}")
        if request.method == "HEAD":
            self._require_loadable(table, suffix)
            return _no_content(request)
        metadata, fallback_reason = self._find_metadata(table, suffix)
        delegations = {word.strip().lower() for word in request.headers.get(_DELEGATION, "").split(",")}
        vended = self._vend_credentials(request, table, suffix) if _VENDED_CREDENTIALS in delegations else None
        version = f"{metadata.location} {snapshots}" + (f" {vended.credentials.ends_ms}" if vended else "")
        headers = {"ETag": f'W/"{hashlib.sha256(version.encode()).hexdigest()[:32]}"'}
        if fallback_reason is not None:
            headers["Warning"] = _format_warning(fallback_reason)
        if is_current(request.headers.getlist("if-none-match"), headers["ETag"]):
            return Response(status_code=304, headers=headers)
        if vended is not None:
            headers |= _audit_credentials(request, vended)
        return Response(
            self._format_load_result(metadata, snapshots, vended), media_type="application/json", headers=headers
        )

    def _format_load_result(self, metadata: ServedMetadata, snapshots: str, vended: VendedCredentials | None) -> str:
        text = _with_refs_only(metadata.text) if snapshots == "refs" else metadata.text
        more: dict[str, Any] = {"config": self._client_config}
        if vended is not None:
            more["config"] = {**self._client_config, **vended.config()}
            more["storage-credentials"] = vended.storage_credentials(self._client_config)
        return f'{{"metadata-location":{json.dumps(metadata.location)},"metadata":{text},{json.dumps(more)[1:]}'

    def _credentials(self, request: Request) -> Response:
        table, suffix = self._requested_table(request)
        self._require_loadable(table, suffix)
        vended = self._vend_credentials(request, table, suffix)
        if vended is None or request.method == "HEAD":
            return _no_content(request)
        body = {"storage-credentials": vended.storage_credentials(self._client_config)}
        return JSONResponse(body, headers=_audit_credentials(request, vended))

    def _require_loadable(self, table: ServedTable, suffix: str | None) -> None:
        """Raise the errors of `_find_metadata` for a table that this catalog does not have. Builds nothing."""
        if suffix == LAKE:
            table.lake_metadata()
        elif suffix is None:
            table.require_shown()
        else:
            self._system.require_shown(table.table, suffix)

    def _report_metrics(self, request: Request) -> Response:
        """Accept a scan report of an engine, and discard it."""
        self._require_loadable(*self._requested_table(request))
        return _no_content(request)

    def _vend_credentials(self, request: Request, table: ServedTable, suffix: str | None) -> VendedCredentials | None:
        if self._vending is None:
            return None
        if suffix not in (None, LAKE):
            return self._vending.vend(client_of(request).name, table.table, of="virtual")
        return self._vending.vend(client_of(request).name, table.table, of="lake" if suffix == LAKE else "both")


def _base_table(request: Request) -> str:
    """Return the requested table without a suffix."""
    return f"{request.path_params['namespace']}.{request.path_params['table'].partition('$')[0]}"


def _audit_credentials(request: Request, vended: VendedCredentials) -> dict[str, str]:
    """Record in the audit log that a client gets credentials. Returns the response headers."""
    request.scope.setdefault("state", {})["credentials_until"] = vended.ends
    return {"Cache-Control": "no-store"}


def _format_warning(reason: str) -> str:
    """Return the value of a `Warning` header, without characters that a header cannot contain."""
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in reason)
    return f'199 streamhouse "without hot rows: {plain[:300]}"'


def _with_refs_only(text: str) -> str:
    """Return the metadata without snapshots that no branch or tag references."""
    metadata = json.loads(text)
    named = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()}
    metadata["snapshots"] = [snapshot for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] in named]
    return json.dumps(metadata, separators=(",", ":"))


def _is_lake_catalog(request: Request) -> bool:
    """Return whether the request is for the catalog of lake tables."""
    return bool(request.scope["path"].startswith(f"{request.scope.get('root_path', '')}/v1/{LAKE_ONLY}/"))


def _no_content(request: Request) -> Response:  # noqa: ARG001 - a handler
    return Response(status_code=204)


def _refuse_write(request: Request) -> Response:
    if request.method in ("GET", "HEAD"):
        return iceberg_error(404, "NotFoundException", f"there is nothing at {request.scope['path']}")
    return iceberg_error(403, "ForbiddenException", _READ_ONLY)


_TAG: Final = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_LIST: Final = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))+")


def is_current(if_none_match: Sequence[str], etag: str) -> bool:
    """Return whether the values of ``If-None-Match`` match an entity tag (RFC 9110).

    ``*`` matches any document. Tags are compared weakly: ``"a"`` matches ``W/"a"``. A malformed value matches nothing.
    """
    value = ",".join(if_none_match).strip()
    if value == "*":
        return True
    return _LIST.fullmatch(value) is not None and etag.removeprefix("W/") in _TAG.findall(value)
