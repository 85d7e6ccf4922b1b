"""Bronze keeps each event as it came, silver the newest state of each order."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

spark = SparkSession.active()


@dp.table(comment="every event as it came", table_properties={"bucket.num": "2", "bucket.key": "order_id"})
def bronze() -> DataFrame:
    return spark.readStream.table("streamhouse.shop.events")


dp.create_streaming_table("silver", table_properties={"primary.key": "order_id", "bucket.num": "2"})
dp.create_auto_cdc_flow(
    target="silver",
    source="bronze",
    keys=["order_id"],
    sequence_by=col("seq"),
    apply_as_deletes=expr("op = 'cancel'"),
    except_column_list=["op", "seq"],
    stored_as_scd_type=1,
)
