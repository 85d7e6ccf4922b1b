"""Helpers of the cases of advice: a table to break, and the check that following the words made it healthy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import StorageError, StreamhouseError, Table, Warehouse
from unit.error_texts import error_texts

Case = Iterator[Callable[[], object]]
HOUR_MS = 3_600_000


class Place:
    """A warehouse in memory, its clock, and a table ``t`` with the rows 0 to 9, tiered, and 10 to 19, hot."""

    def __init__(self, memory: Any, clock: Any, lake: str) -> None:
        self.memory, self.clock, self.lake = memory, clock, lake
        self.seed = 100
        table = self.create()
        table.append([{"id": i} for i in range(10)])
        tier(table)
        table.append([{"id": i} for i in range(10, 20)])
        self.uuid, self.location = table.uuid, table.state.lake_location

    def warehouse(self, storage: Any = None) -> Warehouse:
        self.seed += 1
        world = sim_world(self.seed, self.clock)
        return Warehouse("wh", storage=storage if storage is not None else self.memory, world=world)

    def table(self, storage: Any = None) -> Table:
        return self.warehouse(storage).table("t")

    def create(self) -> Table:
        return self.warehouse().create_table("t", "id BIGINT", properties={"table.datalake.format": self.lake})

    def keyed(self, **properties: str) -> Table:
        """A table ``k`` by key, with a row in each of its partitions."""
        table = self._parted("k", {"primary_key": ["id", "p"]}, properties)
        table.upsert([{"id": 1, "p": "a", "n": 1}, {"id": 2, "p": "b", "n": 1}])
        return table

    def partitioned(self, **properties: str) -> Table:
        """A log table ``p``, with a row in each of its partitions."""
        table = self._parted("p", {}, properties)
        table.append([{"id": 1, "p": "a", "n": 1}, {"id": 2, "p": "b", "n": 1}])
        return table

    def _parted(self, name: str, options: dict[str, Any], properties: dict[str, str]) -> Table:
        options["properties"] = {"table.datalake.format": self.lake, **properties}
        return self.warehouse().create_table(name, "id BIGINT, p STRING, n INT", partition_by=["p"], **options)

    @staticmethod
    def rows(*ids: int) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int64())})

    def damaged(self, key: str) -> bytes:
        """Flip a bit of the file; returns what it was."""
        whole = self.memory.read(key)
        self.memory.put(key, whole[:-2] + bytes([whole[-2] ^ 4]) + whole[-1:])
        return whole

    def lake_files(self, ending: str = "") -> list[str]:
        return sorted(i.key for i in self.memory.list(f"{self.location}/") if i.key.endswith(ending))

    def delete_lake(self) -> None:
        for key in self.lake_files():
            self.memory.delete(key)

    def require_healthy(self, name: str = "t") -> None:
        table = self.warehouse().table(name)
        before = ids(table.to_arrow())
        row = {"id": 1000} if name == "t" else {"id": 1000, "p": "c"}
        (table.upsert if table.state.primary_key else table.append)([row])
        tier(table)
        table.maintain()
        table = self.warehouse().table(name)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [*before, 1000]


def lossy_at(pattern: str, memory: Any) -> FaultyStorage:
    """A store that keeps objects of such names, says that it did not, and cannot read them back."""
    lost: list[str] = []

    class Lossy(FaultyStorage):
        def put_if_absent(self, key: str, data: Any) -> None:
            super().put_if_absent(key, data)
            if re.search(pattern, key):
                lost.append(key)
                raise StorageError("lost")

        def read(self, key: str) -> bytes:
            if key in lost:
                raise StorageError("unreachable")
            return super().read(key)

    return Lossy(memory)


@dataclass(frozen=True)
class Advice:
    """The advice that a case follows."""

    condition: str
    says: str
    """A pattern of the message."""
    words: str
    """Words of the source's text, of this condition: all texts with them advise the same."""
    lakes: tuple[str, ...] = ("iceberg", "paimon")


def each_lake(advice: Mapping[Callable[[Place], Case], Advice]) -> list[Any]:
    """Parameters ``case`` and ``lake`` of a test."""
    return [pytest.param(c, lake, id=f"{c.__name__}-{lake}") for c, a in advice.items() for lake in a.lakes]


def follow(case: Callable[[Place], Case], advice: Advice, place: Place) -> None:
    """Meet the error, do what it says, and see that the table takes rows, tiers, and has the same rows everywhere."""
    steps = case(place)
    with pytest.raises(StreamhouseError, match=rf"^{advice.condition}: .*{advice.says}") as met:
        next(steps)()
    told = [text for text in error_texts() if text.condition == advice.condition and advice.words in text.text]
    assert any(text.made(str(met.value)) for text in told), "the case meets a text with these words"
    for _ in steps:
        pytest.fail("a case meets one error")
    place.require_healthy()
