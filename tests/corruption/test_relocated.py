"""Flipped bytes and cuts of what a move, a copy or a lake rebuilt reads and writes: an error or right rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.sequential import one_thing_at_a_time
from faults.test_relocation_calls import at, filled, opened
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import CorruptDataError, StreamhouseError, relocate
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_cache")]

DAMAGES = 4


def damages(data: bytes, number: int) -> list[tuple[str, bytes]]:
    """Some flipped bytes, others for each file, and a cut."""
    places = [len(data) * part // DAMAGES + number % max(1, len(data) // DAMAGES) for part in range(DAMAGES)]
    flips = [(f"byte {p} ^ 0xff", data[:p] + bytes([data[p] ^ 0xFF]) + data[p + 1 :]) for p in places if p < len(data)]
    return [*flips, ("cut", data[: len(data) // 2])]


def read_all(storage: MemoryStorage, number: int) -> tuple[list[int], list[int]]:
    close_tablets()
    clear_manifest_cache()
    table = opened(storage, number).table("t")
    return ids(table), sorted(table.lake.to_arrow()["id"].to_pylist())


LAKES = pytest.mark.parametrize("lake", ["iceberg", "paimon"])
VERBS = pytest.mark.parametrize("verb", ["move", "copy", "retier"])
KEYED = pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])


def told(error: StreamhouseError, key: str, what: str) -> str:
    """The kind of an error; damage is told with the damaged file."""
    assert not isinstance(error, CorruptDataError) or key in str(error), f"{key}, {what}, does not name it: {error}"
    return type(error).__name__


@LAKES
@VERBS
@KEYED
def test_what_the_verb_reads(verb, lake, keyed):
    """Each file in turn is damaged before the verb runs. Mended, the verb is run again and ends right."""
    made = filled(lake, keyed=keyed)
    wanted = ids(opened(made, 2).table("t"))
    counts: Counter[str] = Counter()
    with one_thing_at_a_time():
        for number, key in enumerate(sorted(made._objects)):
            whole = made.read(key)
            for what, data in damages(whole, number):
                storage = at(made, "first" if verb == "retier" else "second")
                storage.put(key, data)

                def relocated_rows(storage: MemoryStorage = storage) -> Any:
                    run(verb, storage)
                    return read_all(storage, 4)[0]

                counts[outcome_of(relocated_rows, wanted, key, f"{verb}, {what}")] += 1
    print(f"{verb}, {lake}: {dict(counts)}")  # noqa: T201
    assert counts["CorruptDataError"] > 10


def outcome_of(read: Callable[[], Any], wanted: Any, key: str, what: str) -> str:
    """Read what may be damaged: return ``right`` or the name of the typed error, and raise `AssertionError` else."""
    try:
        found = read()
    except StreamhouseError as error:
        return told(error, key, what)
    except BaseException as error:
        raise AssertionError(f"{key}, {what}: {type(error).__name__}: {error}") from error
    assert found == wanted, f"{key}, {what}: {found}"
    return "right"


def run(verb: str, storage: MemoryStorage) -> None:
    if verb != "retier":
        relocate(opened(storage, 3), copy=verb == "copy")
        return
    table = opened(storage, 3).table("t")
    table.retier()
    tier(table)


@LAKES
@VERBS
@KEYED
def test_damage_to_each_file_that_a_relocation_wrote_is_detected(verb, lake, keyed):
    """Each file that it wrote is damaged in turn."""
    made = filled(lake, keyed=keyed)
    storage = at(made, "first" if verb == "retier" else "second")
    with one_thing_at_a_time():
        run(verb, storage)
        wanted = read_all(storage, 4)
        new = [key for key, data in storage._objects.items() if made._objects.get(key) != data]
        counts: Counter[str] = Counter()
        for number, key in enumerate(sorted(new)):
            whole = storage.read(key)
            for what, data in damages(whole, number):
                storage.put(key, data)
                counts[outcome_of(lambda: read_all(storage, 4), wanted, key, f"{verb}, {what}")] += 1
            storage.put(key, whole)
        assert read_all(storage, 4) == wanted
    print(f"{verb}, {lake}: {len(new)} files: {dict(counts)}")  # noqa: T201
    assert counts["CorruptDataError"] > 3
