"""Metadata of a lake in the right form, with values that no engine writes: an answer, or an error of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.hostile_input import MANY, changed_json, profile, refuses_or_answers
from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.avro import AvroFile, encode_avro, read_avro
from streamhouse_spark.storage.memory import MemoryStorage

EXAMPLES = [2, pytest.param(MANY, marks=pytest.mark.long)]
JSON = {"iceberg": [".metadata.json"], "paimon": ["/snapshot/snapshot-", "/schema/schema-"]}
ODD_NUMBERS = st.one_of(st.sampled_from([-1, 0, 1, 2, 1 << 31, -(1 << 62), 1 << 62]), st.integers(-300, 300))
ODD_TEXTS = st.one_of(st.sampled_from(["", "../../x", "/etc/passwd", "parquet", "s3://x/y", "\0"]), st.text(max_size=5))

LAKE_CALLS = [
    ("to_arrow", {}),
    ("snapshots", {}),
    ("files", {}),
    ("compact", {"dry_run": True}),
    ("expire_snapshots", {"retain_last": 1, "dry_run": True}),
    ("remove_orphan_files", {"dry_run": True}),
]


def rows(start: int) -> list[dict[str, Any]]:
    return [{"id": n, "day": "a" if n % 2 else "b", "n": n} for n in range(start, start + 6)]


def put(table, start: int) -> None:
    (table.upsert if table.state.primary_key else table.append)(rows(start))


@pytest.fixture(scope="module", params=["iceberg", "paimon"])
def lake_format(request):
    return request.param


@pytest.fixture(scope="module", params=[False, True], ids=["log", "key"])
def files(lake_format, request, tmp_path_factory):
    """The files of a warehouse with one table, which was tiered, changed, tiered again, and has rows in the log."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        storage = MemoryStorage(World())
        warehouse = Warehouse("memory://wh", storage=storage)
        how = {"primary_key": ["id", "day"]} if request.param else {}
        properties = {"table.datalake.format": lake_format}
        columns = "id BIGINT NOT NULL, day STRING NOT NULL, n INT"
        table = warehouse.create_table("s.t", columns, partition_by=["day"], properties=properties, **how)
        put(table, 0)
        tier(table)
        put(table, 3)
        if not request.param and lake_format == "iceberg":
            table.delete(where=[("id", "=", 1)])
        tier(table)
        put(table, 4)
        yield {info.key: storage.read(info.key) for info in storage.list("")}


def use(files: dict[str, bytes]) -> None:
    """Read the table and its lake, and go on with it: each may refuse."""
    storage = MemoryStorage(World())
    for key, data in files.items():
        storage.put(key, data)
    table = Warehouse("memory://wh", storage=storage).table("s.t")
    for call in (
        table.to_arrow,
        table.inspect.partitions,
        lambda: table.to_arrow(filter=[("day", "=", "a")]),
    ):
        refuses_or_answers(call)
    for name, how in LAKE_CALLS:
        refuses_or_answers(lambda name=name, how=how: getattr(table.lake, name)(**how))
    refuses_or_answers(tier, table)
    refuses_or_answers(lambda: table.lake.compact())  # noqa: PLW0108 - the lake is opened within


def chosen(files: dict[str, bytes], parts: list[str]) -> list[str]:
    found = sorted(key for key in files if key.startswith("lake/") and any(part in key for part in parts))
    assert found
    return found


@pytest.mark.parametrize("examples", EXAMPLES)
def test_forged_json_of_a_lake_is_an_error_or_read(files, lake_format, own_cache, examples):
    keys = chosen(files, JSON[lake_format])

    @profile(examples)
    @given(st.sampled_from(keys).flatmap(lambda key: st.tuples(st.just(key), changed_json(json.loads(files[key])))))
    def holds(forged):
        key, value = forged
        use({**files, key: json.dumps(value).encode("utf-8", "surrogatepass")})

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_forged_avro_of_a_lake_is_an_error_or_read(files, lake_format, own_cache, examples):
    keys = chosen(files, [".avro"] if lake_format == "iceberg" else ["/manifest/"])
    whole = {key: read_avro(files[key], key) for key in keys}

    @profile(examples)
    @given(st.sampled_from(keys).flatmap(lambda key: st.tuples(st.just(key), changed_avro(whole[key]))))
    def holds(forged):
        key, data = forged
        use({**files, key: data})

    holds()


# -- Avro -------------------------------------------------------------------------------------------------------------


def changed_avro(file: AvroFile) -> st.SearchStrategy[bytes]:
    """The file with one value that is another of its type, or with another header."""
    headers = st.sampled_from(sorted(file.header)).flatmap(lambda name: _header(file, name))
    places = [place for place in _places(file.records) if place]
    if not places:
        return headers

    def with_another(place: tuple[Any, ...]) -> st.SearchStrategy[bytes]:
        values = _other(_at(file.records, place))
        return values.map(lambda new: encode_avro(AvroFile(file.header, file.sync, _with(file.records, place, new))))

    return st.one_of(st.sampled_from(places).flatmap(with_another), headers)


def _header(file: AvroFile, name: str) -> st.SearchStrategy[bytes]:
    """The file as it is, with another value in its header."""
    data = encode_avro(file)
    try:
        values = changed_json(json.loads(file.header[name])).map(lambda value: json.dumps(value).encode())
    except ValueError:
        values = st.binary(max_size=5)
    old = file.header[name]
    return values.map(lambda new: data.replace(_long(len(old)) + old, _long(len(new)) + new, 1))


def _long(value: int) -> bytes:
    rest, out = value << 1, bytearray()
    while rest & ~0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    return bytes((*out, rest))


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    elif isinstance(value, tuple):  # a union's branch and value
        inner = [(1, value[1])] if value[1] is not None else []
    else:
        inner = []
    return [place, *(found for key, one in inner for found in _places(one, (*place, key)))]


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for part in place:
        value = value[part]
    return value


def _with(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    first, *rest = place
    changed = _with(value[first], tuple(rest), new)
    if isinstance(value, dict):
        return {**value, first: changed}
    parts = list(value)
    parts[first] = changed
    return tuple(parts) if isinstance(value, tuple) else parts


def _other(value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, tuple):
        return st.just((0, None))
    if isinstance(value, bytes):
        return st.one_of(
            st.just(value[::-1]), st.binary(min_size=len(value), max_size=len(value)), st.binary(max_size=9)
        )
    if isinstance(value, int):
        return ODD_NUMBERS
    if isinstance(value, str):
        return ODD_TEXTS
    if isinstance(value, list):
        return st.sampled_from([[], [*value, *value]])
    return st.just(value)
