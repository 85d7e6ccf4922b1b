"""Format version 1 of a table that was copied: read for ever, and by no version that would take it for the original."""

from __future__ import annotations

import pytest

from faults.sim import sim_world
from faults.test_relocation_calls import at, filled, opened
from golden.folder import GoldenFolder
from golden.make import COPIED
from streamhouse_spark import FormatVersionError, Transaction, Warehouse, relocate
from streamhouse_spark.core.warehouse_layout import checkpoint_key, commit_key
from streamhouse_spark.log import actions, commit_log
from streamhouse_spark.log.checkpoint import PAST_VERSION, list_checkpoints
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.framing import decode_frame

pytestmark = pytest.mark.always


@pytest.fixture
def folder() -> GoldenFolder:
    return GoldenFolder(COPIED)


def test_a_copy_is_read_alike_without_any_checkpoint(golden, folder, wh):
    found = wh.table("copied").to_arrow()
    assert len(wh.table("copied").state.former_uuids) == 2
    for key in [key for key in folder.files if "/checkpoints/" in key]:
        golden.delete(key)
    again = Warehouse("golden", storage=golden, world=sim_world(5)).table("copied")
    assert again.to_arrow().equals(found)
    assert again.state == wh.table("copied").state


def test_a_copy_is_written_on(wh):
    table = wh.table("copied")
    table.append([{"id": 20}])
    assert table.append([{"id": 99}], transaction=Transaction("app", 3, "owner")) == {}, "a past writer's version"
    assert sorted(table.to_arrow()["id"].to_pylist()) == [2, 10, 11, 20], "the first row was trimmed"


class TestOlderVersions:
    """They would take the lake's files of before the copy for another engine's, with rows that have no offsets."""

    @pytest.fixture
    def copied(self):
        storage = at(filled("iceberg", keyed=False), "second")
        log = opened(storage, 3).table("t").log
        log.checkpoint(log.refresh())
        opened(storage, 3).table("t").append([{"id": 9, "p": "z"}])
        relocate(opened(storage, 3), copy=True)
        table = opened(storage, 4).table("t")
        table.log.checkpoint(table.refresh())
        return table

    def test_read_none_of_its_checkpoints(self, copied):
        numbers = list_checkpoints(copied.storage, copied.uuid)
        assert len(numbers) == 2
        for number in numbers:
            data = copied.storage.read(checkpoint_key(copied.uuid, number))
            with pytest.raises(FormatVersionError):
                decode_frame("checkpoint", data, "here", newest=PAST_VERSION)

    def test_do_not_read_its_first_record(self, copied):
        data = copied.storage.read(commit_key(copied.uuid, 1))
        (action,) = decode_frame("commit", data, "here").header["actions"]
        assert action["type"] == actions.COPY != "create"

    def test_are_told_to_upgrade(self, copied, monkeypatch):
        """With what such a version knows: no such checkpoint, no such action."""
        newer = actions.action_from_json
        monkeypatch.setattr("streamhouse_spark.log.checkpoint.NEWEST_VERSION", PAST_VERSION)
        monkeypatch.setattr(
            "streamhouse_spark.log.record.action_from_json",
            lambda data, payload: newer({**data, "type": data["type"].replace("copy", "c0py")}, payload),
        )
        before = {info.key for info in copied.storage.list("")}
        for ask in (CommitLog.refresh, lambda log: log.commit(lambda *_: ())):
            with pytest.raises(FormatVersionError, match="upgrade"):
                ask(commit_log.CommitLog(copied.storage, copied.uuid, sim_world(5)))
        assert {info.key for info in copied.storage.list("")} == before

    def test_checkpoints_of_the_original_stay_readable_there(self, copied):
        del copied
        table = opened(filled("iceberg", keyed=False), 3).table("t")
        table.log.checkpoint(table.refresh())
        decode_frame("checkpoint", table.storage.read(checkpoint_key(table.uuid, table.state.version)), "here")


def test_a_damaged_older_checkpoint_does_not_stop_the_copy():
    made = at(filled("iceberg", keyed=False), "first")
    table = opened(made, 3).table("t")
    table.log.checkpoint(table.refresh())
    made.put(checkpoint_key(table.uuid, table.state.version), b"x")
    table.append([{"id": 9, "p": "z"}])
    storage = at(made, "second")
    relocate(opened(storage, 3), copy=True)
    assert len(opened(storage, 4).table("t").to_arrow()) == 10
