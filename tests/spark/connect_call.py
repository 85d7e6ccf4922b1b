"""A CALL through Spark Connect, in a process of its own.

``connect_call.py WAREHOUSE STATEMENT`` makes the call, and interrupts it when it gets a line; another line makes it
once more. Tells the error of the first, and the row of the second.
"""

from __future__ import annotations

import sys
import threading
import warnings


def main(warehouse: str, statement: str) -> None:
    from pyspark.sql import SparkSession

    import streamhouse_spark

    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = streamhouse_spark.configure(builder, warehouse=warehouse).getOrCreate()

    def call() -> None:
        try:
            tell("row", spark.sql(statement).collect()[0].asDict())
        except Exception as error:  # noqa: BLE001 - it is told
            tell("error", " ".join(str(error).split()))

    thread = threading.Thread(target=call)
    thread.start()
    sys.stdin.readline()
    tell("interrupted", len(spark.interruptAll()))
    thread.join()
    sys.stdin.readline()
    call()
    spark.stop()


def tell(word: str, said: object) -> None:
    sys.stdout.write(f"{word} {said}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
