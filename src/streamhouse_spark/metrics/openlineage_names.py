"""Names of tables in OpenLineage, equal in its Spark listener and in tiering rounds. Pure.

A name consists of a namespace, the store, and a path, as OpenLineage names data on stores. A streamhouse table is
``<warehouse>/<database>.<table>``, where no file lies; its lake table has its folder, like for other engines.
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
    """Return the name of a table, such as ``sales.orders``, or of a folder in a warehouse."""
    url = warehouse_url.rstrip("/")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return DatasetName("file", f"{url}/{within}")
    authority, _, path = rest.partition("/")
    return DatasetName(f"{scheme}://{authority}", f"{path}/{within}" if path else within)
