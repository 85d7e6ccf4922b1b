"""A Spark configuration folder that starts Python workers quickly and waits minutes for them instead of seconds."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

_CLASS = "org/apache/spark/api/python/PythonWorkerFactory.class"
_CONSTANT_LONG = b"\x05"


def _constant(value: int) -> bytes:
    """Encode a number as a LONG constant of a class file."""
    return _CONSTANT_LONG + value.to_bytes(8, "big")


def fill_conf_folder(folder: Path) -> None:
    """Write Spark options, an environment script and one patched class into `folder`, the future `SPARK_CONF_DIR`.

    Planning and streaming workers have 10 s to start before their query fails, a literal of that class. On a busy
    machine their imports alone may take longer. Spark puts the folder first on the class path.
    """
    (folder / "spark-defaults.conf").write_text("spark.python.authenticate.socketTimeout 600s\n")
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return
    spark = Path(spec.origin).parent
    _compile_workers(folder, spark)
    for jar in (spark / "jars").glob("spark-core_*.jar"):
        with zipfile.ZipFile(jar) as archive:
            code = archive.read(_CLASS)
        if code.count(_constant(10_000)) == 1:
            (folder / _CLASS).parent.mkdir(parents=True)
            (folder / _CLASS).write_bytes(code.replace(_constant(10_000), _constant(240_000)))


def _compile_workers(folder: Path, spark: Path) -> None:
    """Give the JVM a `SPARK_HOME` without `python/lib/pyspark.zip`.

    Workers import PySpark from that archive first and compile its sources in each process, which takes longer than
    most of their work. Without the archive they import the installed package and its bytecode.
    """
    home = folder / "home"
    home.mkdir()
    for path in spark.iterdir():
        if path.name != "python":
            (home / path.name).symlink_to(path)
    (folder / "spark-env.sh").write_text(f"if [ \"$SPARK_HOME\" -ef '{spark}' ]; then SPARK_HOME='{home}'; fi\n")
