"""VARIANT columns beside Paimon's own reader and writer, which know nothing of us."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory
from pypaimon.data.generic_variant import GenericVariant

from kit.tables import tier
from streamhouse_spark import LakeMismatchError, Warehouse
from streamhouse_spark.storage.local import LocalStorage
from unit.table.test_variant_columns import PAIMON, VALUES, found, numbered


@pytest.fixture
def table(wh):
    return wh.create_table("sales.events", "id bigint not null, v variant", properties=PAIMON)


class TestPypaimon:
    """Its own reader and writer, which know nothing of us."""

    @pytest.fixture
    def wh(self, tmp_path):
        return Warehouse("wh", storage=LocalStorage(str(tmp_path), fsync=False))

    @staticmethod
    def stock(table):
        catalog = CatalogFactory.create({"warehouse": f"{table.storage.url}/lake"})
        return catalog.get_table(table.name)

    def test_pypaimon_reads_our_variants(self, table):
        table.append(numbered(VALUES))
        tier(table)
        builder = self.stock(table).new_read_builder()
        rows = builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist()
        values = {
            r["id"]: None if r["v"] is None else GenericVariant.from_arrow_struct(r["v"]).to_python() for r in rows
        }
        assert values == dict(enumerate(VALUES))
        schema = json.loads(table.storage.read(f"{table.state.lake_location}/schema/schema-0"))
        assert [field["type"] for field in schema["fields"]] == ["BIGINT NOT NULL", "VARIANT"]

    def test_variants_of_pypaimon_are_read(self, table):
        table.append(numbered([1]))
        tier(table)
        self._append(table, [{"a": 2}, None])
        assert found(table.lake.to_arrow()) == {0: 1, 100: {"a": 2}, 101: None}
        table.rename_column("v", "w")
        table.append([{"id": 5, "w": 5}])
        tier(table)
        assert found(table.lake.to_arrow(), "w") == {0: 1, 5: 5, 100: {"a": 2}, 101: None}

    def test_a_table_that_it_made_is_adopted(self, wh, table):
        table.append(numbered([1]))
        tier(table)
        wh.drop_table("sales.events")
        wh.adopt_table("sales.events")
        again = wh.table("sales.events")
        assert again.state.schema.ddl() == "id BIGINT NOT NULL, v VARIANT"
        again.append(numbered(["new"], 7))
        tier(again)
        assert found(again.to_arrow()) == {0: 1, 7: "new"}

    def test_a_value_in_columns_of_its_own_is_refused(self, table):
        table.append(numbered([{"a": 1}]))
        tier(table)
        shredded = {"type": "ROW", "fields": [{"id": 0, "name": "v", "type": {"type": "ROW", "fields": [
            {"id": 1, "name": "a", "type": "BIGINT"}]}}]}  # fmt: skip
        self._append(table, [{"a": 2}], **{"variant.shreddingSchema": json.dumps(shredded)})
        with pytest.raises(LakeMismatchError, match="shredded"):
            table.lake.to_arrow()
        builder = self.stock(table).new_read_builder()
        rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        self._commit(self.stock(table).new_batch_write_builder().overwrite(), rows)
        assert found(table.lake.to_arrow()) == {0: {"a": 1}, 100: {"a": 2}}

    @staticmethod
    def _commit(builder, rows: pa.Table) -> None:
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(rows)
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def _append(self, table, values: list, **options: str) -> None:
        stock = self.stock(table)
        variants = GenericVariant.to_arrow_array([None if v is None else GenericVariant.from_python(v) for v in values])
        ids = pa.array(range(100, 100 + len(values)), pa.int64())
        fields = [pa.field("id", pa.int64(), nullable=False), pa.field("v", variants.type)]
        rows = pa.Table.from_arrays([ids, variants], schema=pa.schema(fields))
        self._commit((stock.copy(options) if options else stock).new_batch_write_builder(), rows)
