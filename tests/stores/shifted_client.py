"""A client whose wall clock is wrong: it reads, appends and tiers, and prints what came of each.

Its argument is a list in JSON: the URL of a warehouse, and its settings.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kit.tables import tier
from streamhouse_spark import StreamhouseError, Warehouse


def told(act: Callable[[], Any]) -> dict[str, Any]:
    began = time.monotonic()
    try:
        found = act()
    except StreamhouseError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    return {"found": found, "seconds": time.monotonic() - began}


def main() -> None:
    url, settings = json.loads(sys.argv[1])
    warehouse = Warehouse(url, settings)
    outcomes = {
        "read": told(lambda: sorted(warehouse.table("t").to_arrow()["id"].to_pylist())),
        "create": told(lambda: str(warehouse.create_table("t2", "id BIGINT").uuid)),
        "append": told(lambda: bool(warehouse.table("t").append([{"id": 3}]))),
        "tier": told(lambda: tier(warehouse.table("t")).rows),
    }
    print(json.dumps({"clock": time.time(), **outcomes}))  # noqa: T201


if __name__ == "__main__":
    main()
