"""A folder that `golden.make` wrote, as tests read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults.sim import sim_world
from streamhouse_spark.core.warehouse_layout import parse_number
from streamhouse_spark.log.actions import Append
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.log.record import Record, encode_record, read_record
from streamhouse_spark.log.state import fold
from streamhouse_spark.storage.memory import MemoryStorage


class GoldenFolder:
    """Its files by key, and what a reader of them has to see."""

    def __init__(self, folder: Path) -> None:
        root = folder / "warehouse"
        self.files = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        self.expected: dict[str, Any] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        self.commits = [key for key in self.files if "/commits/" in key]

    def store(self) -> MemoryStorage:
        """A new storage with these files."""
        store = MemoryStorage(sim_world(3))
        for key, data in self.files.items():
            store.put(key, data)
        return store


def check_checkpoint(folder: GoldenFolder) -> None:
    """Raise `AssertionError` unless the checkpoint is the fold of the records, and is written to the same bytes."""
    golden = folder.store()
    (key,) = (k for k in folder.files if "/checkpoints/0" in k)
    uuid, number = key.split("/")[1], parse_number(key)
    state = read_checkpoint(golden, uuid, number)
    folded = None
    for n in range(1, number + 1):
        folded = fold(folded, read_record(golden, uuid, n)[0])
    assert state == replace(folded, anchors=state.anchors), "which it knows none of: there were none"
    store = MemoryStorage(sim_world(0))
    write_checkpoint(store, state)
    checkpoints = {k: d for k, d in folder.files.items() if "/checkpoints/" in k}
    assert {info.key: store.read(info.key) for info in store.list("")} == checkpoints


def written_again(store: MemoryStorage, key: str) -> bytes:
    """A record that was read, as it is written today."""
    record, payload = read_record(store, key.split("/")[1], parse_number(key))
    actions = tuple(
        Append(a.segments, tuple(s.inline and bytes(payload[slice(*s.inline)]) for s in a.segments))
        if isinstance(a, Append)
        else a
        for a in record.actions
    )
    again = Record(
        record.number,
        record.table_uuid,
        record.attempt,
        record.time_ms,
        actions,
        record.transaction,
        after=record.after,
    )
    return encode_record(again, "").data
