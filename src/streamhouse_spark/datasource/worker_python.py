"""The Python executable of local Spark workers: the one that creates the session, unless another was set.

By default Spark starts ``python3`` of the PATH, which differs if a script runs in a virtual environment that is not
activated. Spark reads the name from the environment of its JVM, so it must be set before the JVM starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

WORKER_VARIABLE: Final = "PYSPARK_PYTHON"
_WORKER_OPTION: Final = "spark.pyspark.python"
_LOCAL: Final = re.compile(r"local(\[.*\])?")
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set if spark-submit started this process, which has already chosen Python and master."""
_LINE: Final = re.compile(r"\s*(?P<name>[^\s=:#]+)\s*[\s=:]\s*(?P<value>.*?)\s*")


def use_python(executable: str, options: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Set the executable in the environment for a session with these options. Nothing changes if another Python was
    set, if the master is not local, or if spark-submit started this process.

    A master that is set on the builder later is not taken into account.
    """
    if WORKER_VARIABLE in environ or _SUBMITTED in environ:
        return
    settings = {**_defaults(environ), **options}
    if _WORKER_OPTION not in settings and _LOCAL.fullmatch(_master(settings, environ)):
        environ[WORKER_VARIABLE] = executable


def _master(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    remote = settings.get("spark.remote") or environ.get("SPARK_REMOTE")
    arguments = re.search(r"--master[\s=]+(\S+)", environ.get("PYSPARK_SUBMIT_ARGS", ""))
    submitted = arguments[1] if arguments else None
    return remote or settings.get("spark.master") or submitted or environ.get("MASTER") or "local[*]"


def _defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in Spark's defaults file, or none without such a file."""
    home = environ.get("SPARK_HOME")
    folder = environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if folder is None:
        return {}
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return {match["name"]: match["value"] for match in matches if match is not None}
