"""The names of tables in OpenLineage: those that its listener in Spark shows, and those of tiering rounds. Pure.

A name is a namespace, the store, and a path in it, as OpenLineage names what lies on stores. A table of ours is
``<warehouse>/<database>.<table>``, which is the place of no file; its lake table has its folder, as for other engines.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NAME_PROPERTY: Final = "openlineage.dataset.name"
NAMESPACE_PROPERTY: Final = "openlineage.dataset.namespace"
PROPERTY_PREFIX: Final = "openlineage."


class DatasetName(NamedTuple):
    namespace: str
    name: str


def dataset_name(warehouse_url: str, within: str) -> DatasetName:
    """Return the name of a table, ``sales.orders``, or of a folder in a warehouse."""
    url = warehouse_url.rstrip("/")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return DatasetName("file", f"{url}/{within}")
    authority, _, path = rest.partition("/")
    return DatasetName(f"{scheme}://{authority}", f"{path}/{within}" if path else within)
