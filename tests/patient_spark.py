"""A configuration folder for Spark that gives Python processes minutes where Spark gives them seconds."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

_CLASS = "org/apache/spark/api/python/PythonWorkerFactory.class"
_CONSTANT_LONG = b"\x05"


def _constant(value: int) -> bytes:
    """Encode a number as the constants of a class file have it."""
    return _CONSTANT_LONG + value.to_bytes(8, "big")


def fill_conf_folder(folder: Path) -> None:
    """Write options and a class of Spark's into ``folder``, which is to be its ``SPARK_CONF_DIR``.

    A worker that plans or streams has 10 s to start before its query fails, which is a literal of that class: on a
    busy machine its imports alone may take that long. The folder comes first on the class path.
    """
    (folder / "spark-defaults.conf").write_text("spark.python.authenticate.socketTimeout 600s\n")
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return
    for jar in Path(spec.origin).with_name("jars").glob("spark-core_*.jar"):
        with zipfile.ZipFile(jar) as archive:
            code = archive.read(_CLASS)
        if code.count(_constant(10_000)) == 1:
            (folder / _CLASS).parent.mkdir(parents=True)
            (folder / _CLASS).write_bytes(code.replace(_constant(10_000), _constant(240_000)))
