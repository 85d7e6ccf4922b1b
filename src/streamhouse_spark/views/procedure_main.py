"""Subprocess for a ``CALL`` that needs the statement's session. It reads a request and writes a reply, each a JSON
line.

The request contains the address of the session. The process exits when its parent exits.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from streamhouse_spark.datasource.session import connect_catalog
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.views.create import MaterializedTable, create_view_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INSTANTIATED_SESSION: Final = "_instantiatedSession"
"""PySpark's attribute for the session of a process."""


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # only the reply may be written to standard output
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    replies.write(json.dumps(_reply(request)) + "\n")
    replies.flush()
    os._exit(0)  # skips PySpark's exit handlers, because the session must stay open


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _reply(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"row": _run_procedure(request)}
    except StreamhouseError as error:
        return {"error": {"condition": error.condition, "message": str(error)}}
    except PySparkException as error:
        return {"error": {"condition": error.getCondition() or "SPARK_FAILED", "message": str(error)}}
    except Py4JJavaError as error:
        return {"error": {"condition": "SPARK_FAILED", "message": _root_cause(error.java_exception)}}


def _root_cause(thrown: Any) -> str:
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return str(thrown.getMessage() or thrown.toString())


def _run_procedure(request: Mapping[str, Any]) -> list[Any]:
    spark = connect_session(request["session"])
    name, arguments = request["table"], request["arguments"]
    connection = connect_catalog(spark)
    if connection.location != request["warehouse"]:
        raise InvalidOptionError(
            f"{request['verb']} {name}: materialized tables read the session's catalog streamhouse, which has another "
            "warehouse; call the procedure of the catalog streamhouse"
        )
    if request["verb"] == "materialize":
        view = create_view_table(
            spark,
            connection,
            name,
            arguments["query"],
            arguments["freshness"],
            arguments["mode"],
            {},
            arguments["step_rows"],
        )
    else:
        view = MaterializedTable(spark, connection, name)
    report = view.refresh()
    return [name, report.changed, report.rows_written, report.rows_deleted, report.whole_because]


def connect_session(address: Mapping[str, Any]) -> SparkSession:
    """Return the session of a running driver. This process must not stop the session.

    PySpark would replace the driver's default session, unless its attribute for an existing session is set.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(address["port"]), address["secret"]
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    java_session = gateway.jvm.io.streamhouse.spark.procedure.SessionGateway.session(address["token"])
    if java_session is None:
        raise StreamhouseError("the statement has ended", condition="JOB_ENDED")
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(java_session.sparkContext())
    context = SparkContext(conf=SparkConf(_jconf=java.getConf()), gateway=gateway, jsc=java)
    setattr(SparkSession, _INSTANTIATED_SESSION, SimpleNamespace(_sc=context))
    session = SparkSession(context, java_session)
    setattr(SparkSession, _INSTANTIATED_SESSION, session)
    return session


if __name__ == "__main__":
    main()
