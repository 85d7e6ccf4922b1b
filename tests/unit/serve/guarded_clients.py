"""Clients with different rights, and the tables that some of them may use."""

from __future__ import annotations

from pathlib import Path

from streamhouse_spark import Warehouse
from streamhouse_spark.serve.acl import Client, digest_of, parse_pattern

TOKENS = {"none": "token-of-none", "shop": "token-of-shop", "board": "token-of-board"}
CLIENTS = {
    digest_of(TOKENS["none"]): Client("none"),
    digest_of(TOKENS["shop"]): Client("shop", writable=(parse_pattern("sales.orders"),)),
    digest_of(TOKENS["board"]): Client("board", readable=(parse_pattern("sales.*"),), requests_per_s=0.01),
}
NAMES = ("sales.orders", "sales.other", "ops.events")


def guarded_warehouse(folder: Path) -> Warehouse:
    """Create a table of one row for each of `NAMES`."""
    warehouse = Warehouse(str(folder / "wh"))
    for name in NAMES:
        warehouse.create_table(name, "id BIGINT").append([{"id": 1}])
    return warehouse
