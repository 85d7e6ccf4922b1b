"""A store that refuses writes for good says so plainly: no "may have happened", no "try again", nothing was changed."""

from __future__ import annotations

import errno
import os

import pytest
from botocore.exceptions import ClientError

from kit.tables import tier
from streamhouse_spark import CommitStateUnknownError, ErrorKind, StorageError, Warehouse
from streamhouse_spark.errors import StorageRefusedError
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.s3.errors import storage_error

TEXTS = {errno.EROFS: "read-only", errno.EACCES: "permission denied", errno.EPERM: "not permitted"}


class Mount(LocalStorage):
    """A directory that can be remounted: then each write fails with an error number of the system."""

    refuses: int | None = None

    def _open_temporary(self, path):
        if self.refuses is not None:
            raise OSError(self.refuses, os.strerror(self.refuses))
        return super()._open_temporary(path)

    def delete(self, key):
        if self.refuses is not None:
            raise self._translate_error(OSError(self.refuses, ""), key, "delete")
        super().delete(key)


WORK = {
    "append": lambda wh: wh.table("t").append([{"id": 2}]),
    "tier first": lambda wh: tier(wh.table("t")),
    "tier more": lambda wh: tier(wh.table("tiered")),
    "alter": lambda wh: wh.table("t").alter(set_properties={"table.log.ttl": "3d"}),
    "create": lambda wh: wh.create_table("new", "id BIGINT"),
    "drop": lambda wh: wh.drop_table("t"),
    "rename": lambda wh: wh.rename_table("t", "u"),
    "expire": lambda wh: wh.table("tiered").lake.compact(),
    "truncate": lambda wh: wh.table("tiered").truncate(),
}


@pytest.mark.parametrize("number", TEXTS)
@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
@pytest.mark.parametrize("work", WORK)
def test_every_writer_says_it(tmp_path, work, lake, number):
    mount = Mount(str(tmp_path / "wh"), fsync=False)
    warehouse = Warehouse(mount.url, storage=mount)
    for name in ("t", "tiered"):
        table = warehouse.create_table(name, "id BIGINT", properties={"table.datalake.format": lake})
        for _ in range(6):
            table.append([{"id": 1}])
            if name == "tiered":
                tier(table)
    warehouse.table("tiered").append([{"id": 2}])
    before = sorted(info.key for info in mount.list(""))
    mount.refuses = number
    with pytest.raises(StorageRefusedError, match=TEXTS[number]) as found:
        WORK[work](Warehouse(mount.url, storage=mount))
    assert "may have" not in str(found.value)
    assert "try again" not in str(found.value)
    assert found.value.kind is ErrorKind.INVALID
    assert sorted(info.key for info in mount.list("")) == before
    assert Warehouse(mount.url, storage=mount).table("tiered").to_arrow().num_rows == 7, "what is there can be read"
    mount.refuses = None
    WORK[work](Warehouse(mount.url, storage=mount))


def test_the_kind_of_error_does_not_decide_what_happened(tmp_path):
    """The record is stored and the store says "denied": it is there, so it is committed."""

    class Liar(LocalStorage):
        def put_if_absent(self, key, data):
            super().put_if_absent(key, data)
            if "/commits/" in key:
                raise StorageRefusedError("denied")

    storage = Liar(str(tmp_path / "wh"), fsync=False)
    table = Warehouse(tmp_path / "wh").create_table("t", "id BIGINT")
    Warehouse(storage.url, storage=storage).table("t").append([{"id": 1}])
    assert table.to_arrow()["id"].to_pylist() == [1]


def test_a_refusal_after_another_failure_is_no_answer_on_a_remote_store(memory, world):
    """A request that was given up may still land: only refusals from the first on say that nothing will."""

    class Remote:
        def __init__(self):
            self.calls = 0

        def __getattr__(self, name):
            return getattr(memory, name)

        def put_if_absent(self, key, data):
            if "/commits/" not in key:
                return memory.put_if_absent(key, data)
            self.calls += 1
            raise StorageError("lost") if self.calls == 1 else StorageRefusedError("denied")

    Warehouse("wh", storage=memory, world=world).create_table("t", "id BIGINT")
    with pytest.raises(CommitStateUnknownError):
        Warehouse("wh", storage=Remote(), world=world).table("t").append([{"id": 1}])


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId"])
def test_a_write_that_s3_denies_is_refused_for_good(code):
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    error = storage_error(ClientError(answer, "PutObject"), "write", "s3://b/k", ())
    assert isinstance(error, StorageRefusedError)
    assert "try again" not in str(error)
    assert error.condition == "STORAGE_REFUSED"
    later = {"Error": {"Code": "RequestTimeTooSkewed"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    assert not isinstance(storage_error(ClientError(later, "PutObject"), "write", "k", ()), StorageRefusedError)
