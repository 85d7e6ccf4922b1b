"""A lake or a log that is put back to an older copy, and the other is not: nothing is wrong in silence, and a way out.

The lake lies in a catalog outside, or in the warehouse in either format.
"""

from __future__ import annotations

import shutil
import time

import pytest

from kit.tables import tier
from streamhouse_spark import (
    CorruptDataError,
    DifferentHistoryError,
    LakeRolledBackError,
    OffsetsTrimmedError,
    StreamhouseError,
    Warehouse,
)
from streamhouse_spark.cli.fsck import Verification, open_lake_plan, verify_lake, verify_log
from streamhouse_spark.kv.tablet import close_tablets

pytestmark = pytest.mark.usefixtures("own_cache")

KINDS = ["iceberg", "paimon", pytest.param("outside", marks=pytest.mark.long)]
ANYWHERE = pytest.mark.parametrize("kind", KINDS)
BY_KEY = pytest.mark.parametrize("by_key", [False, True], ids=["log", "keyed"])


class Place:
    """A table whose log and lake can be put back apart from each other."""

    def __init__(self, folder, kind, *, by_key=False):
        self.folder, self.by_key = folder, by_key
        self.lake_paths = [folder / "wh" / "lake"]
        self.settings = {}
        if kind == "outside":
            self.lake_paths = [folder / "catalog.db", folder / "elsewhere"]
            (folder / "elsewhere").mkdir()
            catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "elsewhere")}
            self.settings = {f"lake.iceberg.catalog.{key}": value for key, value in catalog.items()}
        properties = {"table.datalake.format": "paimon" if kind == "paimon" else "iceberg", "table.log.ttl": "1ms"}
        keys = {"primary_key": ["id", "p"]} if by_key else {}
        made = Warehouse(str(folder / "wh"), self.settings).create_table(
            "d.t", "id BIGINT NOT NULL, p STRING NOT NULL", partition_by=["p"], properties=properties, **keys
        )
        self.log_paths = [folder / "wh" / "tables" / made.uuid]

    def table(self):
        return Warehouse(str(self.folder / "wh"), self.settings).table("d.t")

    def add(self, *ids, p="a"):
        table = self.table()
        (table.upsert if self.by_key else table.append)([{"id": i, "p": p} for i in ids])

    def tier(self):
        tier(self.table())

    def back_up(self, paths, name):
        for path in paths:
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, self.folder / f"{name}-{path.name}")

    def put_back(self, paths, name):
        close_tablets()
        for path in paths:
            saved = self.folder / f"{name}-{path.name}"
            if path.is_dir():
                shutil.rmtree(path)
            (shutil.copytree if saved.is_dir() else shutil.copyfile)(saved, path)

    def ids(self):
        return sorted(self.table().to_arrow()["id"].to_pylist())

    def lake_ids(self):
        return sorted(self.table().lake.to_arrow()["id"].to_pylist())

    def problems(self):
        table = self.table()
        result = Verification(table.name)
        verify_log(table, table.refresh(), result, lambda _: None)
        plan = open_lake_plan(table, table.state, result)
        if plan is not None:
            verify_lake(table, table.state, plan, result, lambda _: None)
        return result.problems

    def bytes_of(self, paths):
        files = [path for root in paths for path in ([root] if root.is_file() else root.rglob("*")) if path.is_file()]
        return {path: path.read_bytes() for path in files}

    def require_healthy(self, *ids):
        self.add(100, p="z")
        self.tier()
        self.table().maintain()
        assert self.ids() == self.lake_ids() == [*ids, 100]
        assert self.problems() == []


@pytest.fixture
def by_key():
    """Where a test does not say it."""
    return False


@pytest.fixture
def place(tmp_path, kind, by_key):
    return Place(tmp_path, kind, by_key=by_key)


def refused(place, error, says, *verbs):
    """Each verb says it, ``verify`` finds it, and no byte of the lake is another."""
    before = place.bytes_of(place.lake_paths)
    for verb in verbs:
        with pytest.raises(error, match=says):
            verb()
    found = place.problems()
    assert len(found) == 1
    assert found[0].startswith(str(error("")))
    assert place.bytes_of(place.lake_paths) == before


@ANYWHERE
@BY_KEY
@pytest.mark.parametrize("is_recorded", [True, False], ids=["rounds", "none"])
@pytest.mark.parametrize("more", [0, 9])
def test_a_log_from_before_a_round_is_an_error_until_the_lake_is_rebuilt(place, is_recorded, more):
    place.add(1, 2)
    if is_recorded:
        place.tier()
    place.back_up(place.log_paths, "log")
    place.add(3, 4)
    place.tier()
    place.put_back(place.log_paths, "log")
    left = [1, 2, *range(20, 20 + more)]
    for number in left[2:]:
        place.add(number)
    lake = place.table().lake
    verbs = [place.tier, lake.compact, lambda: lake.expire_snapshots(retain_last=1, older_than_ms=1)]
    refused(place, DifferentHistoryError, r"without the lake.*streamhouse retier", *verbs)
    if is_recorded:
        with pytest.raises(DifferentHistoryError):
            place.table().maintain()
    if not place.by_key:
        with pytest.raises(DifferentHistoryError):
            place.table().drop_partition({"p": "a"})
    assert place.ids() == left, "the log, and the snapshot that it names, are right"
    place.table().retier()
    place.require_healthy(*left)


@ANYWHERE
@BY_KEY
def test_a_lake_from_before_a_round_is_an_error(place):
    place.add(1, 2)
    place.tier()
    place.back_up(place.lake_paths, "lake")
    place.add(3, 4)
    place.tier()
    place.put_back(place.lake_paths, "lake")
    place.add(5)
    says = r"an older copy was restored|was rolled back below the recorded offsets.*streamhouse retier"
    refused(place, LakeRolledBackError, says, place.tier, place.table().maintain)
    assert place.ids() == [1, 2, 3, 4, 5], "the log has what the lake lacks"
    place.table().retier()
    place.require_healthy(1, 2, 3, 4, 5)


@ANYWHERE
@pytest.mark.parametrize("way", ["brought back", "given up"])
def test_a_lake_of_before_rows_that_the_log_has_no_longer(place, way):
    place.add(1, 2)
    place.tier()
    place.back_up(place.lake_paths, "lake")
    place.add(3, 4)
    place.tier()
    time.sleep(0.05)
    assert place.table().maintain().trimmed_to == {0: 4}
    place.back_up(place.lake_paths, "newest")
    place.put_back(place.lake_paths, "lake")
    place.add(5)
    says = r"an older copy was restored|was rolled back below the recorded offsets"
    refused(place, LakeRolledBackError, says, place.ids, place.tier, place.table().maintain)
    with pytest.raises(OffsetsTrimmedError, match="4 rows were trimmed from the hot log"):
        place.table().retier()
    if way == "given up":
        place.table().retier(allow_loss=True)
        place.require_healthy(5)
    else:
        place.put_back(place.lake_paths, "newest")
        place.require_healthy(1, 2, 3, 4, 5)


@ANYWHERE
@pytest.mark.parametrize("way", ["brought back", "dropped again", "given up"])
def test_a_lake_of_before_partitions_were_dropped(place, way):
    """Offsets do not tell: a drop leaves them as they are."""
    place.add(1, 2, p="a")
    place.add(3, p="b")
    place.tier()
    place.back_up(place.lake_paths, "lake")
    assert place.table().drop_partition({"p": "a"}).rows == 2
    place.back_up(place.lake_paths, "newest")
    place.put_back(place.lake_paths, "lake")
    place.add(4, p="b")
    says = r"before partitions were dropped"
    refused(place, LakeRolledBackError, says, place.ids, place.tier, place.table().maintain)
    if way == "brought back":
        place.put_back(place.lake_paths, "newest")
        place.require_healthy(3, 4)
        return
    if way == "given up":
        place.table().retier(allow_loss=True)
    else:
        place.table().drop_partition({"p": "nothing"})
        refused(place, LakeRolledBackError, says, place.ids, place.tier)
    place.table().drop_partition({"p": "a"})
    place.require_healthy(3, 4)


@ANYWHERE
def test_a_lake_from_before_a_compaction_is_read_and_recorded(place):
    """It holds the same rows: reads find them, and the next round records where."""
    for number in range(6):
        place.add(number)
        place.tier()
    place.back_up(place.lake_paths, "lake")
    assert place.table().lake.compact().files_removed == 6
    place.tier()
    place.put_back(place.lake_paths, "lake")
    assert place.ids() == list(range(6))
    place.tier()
    assert place.problems() == []
    place.require_healthy(*range(6))


@pytest.mark.parametrize("kind", ["outside"])
@pytest.mark.parametrize("part", [0, 1], ids=["catalog", "files"])
def test_a_catalog_that_does_not_match_its_files_is_an_error(place, part):
    place.add(1)
    place.tier()
    if part == 1:
        place.back_up(place.lake_paths, "lake")
    place.add(2)
    place.tier()
    if part == 0:
        place.back_up(place.lake_paths, "lake")
        for number in range(3, 6):
            place.add(number)
            place.tier()
        for file in (place.folder / "elsewhere").rglob("*00002-*.metadata.json"):
            file.unlink()  # as engines that keep few versions do
    ids = [1, 2] if part else [1, 2, 3, 4, 5]
    place.put_back([place.lake_paths[part]], "lake")
    before = place.bytes_of(place.lake_paths)
    for verb in (place.ids, place.tier, place.table().maintain):
        with pytest.raises(StreamhouseError) as told:
            verb()
        assert isinstance(told.value, CorruptDataError)
        assert "metadata.json" in str(told.value)
        assert "streamhouse retier" in str(told.value)
    assert len(place.problems()) == 1
    assert place.bytes_of(place.lake_paths) == before
    place.table().retier()
    place.require_healthy(*ids)
