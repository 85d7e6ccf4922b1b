"""Builds the jar of the Spark catalog from its Java sources in `jvm/`, the same bytes each time.

    python tools/build_jar.py            writes the jar into the Python package
    python tools/build_jar.py --check    builds it again and compares, writes nothing

Needs a JDK (javac) and an installed PySpark, whose jars are the class path.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "jvm" / "src" / "main" / "java"
RESOURCES = ROOT / "jvm" / "src" / "main" / "resources"
"""Files that the jar has as they are, such as the list of services."""
JAR = ROOT / "src" / "streamhouse_spark" / "datasource" / "catalog" / "streamhouse-spark.jar"
RELEASE = "17"
"""The oldest Java that Spark 4 runs on."""
FLAGS = ["-nowarn", "-encoding", "UTF-8", "-g:source,lines", "-XDstringConcat=inline"]
"""The last makes the jar smaller: texts are joined without a bootstrap method each."""
EPOCH = (1980, 1, 1, 0, 0, 0)


def built_entries() -> dict[str, bytes]:
    """Name → bytes of every entry of the jar. Raises `subprocess.CalledProcessError` where javac refuses a source."""
    with tempfile.TemporaryDirectory() as folder:
        command = [javac(), "--release", RELEASE, *FLAGS, "-d", folder]
        subprocess.run([*command, "-cp", pyspark_jars(), *map(str, sources())], check=True)
        classes = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*.class"))}
    copied = {path.relative_to(RESOURCES).as_posix(): path.read_bytes() for path in resources()}
    built = {name.replace(os.sep, "/"): data for name, data in classes.items()}
    return {"META-INF/MANIFEST.MF": manifest(), **copied, **built}


def manifest() -> bytes:
    lines = ["Manifest-Version: 1.0", f"Source-SHA-256: {source_hash()}", "", ""]
    return "\r\n".join(lines).encode()


def sources() -> list[Path]:
    return sorted(SOURCES.rglob("*.java"))


def resources() -> list[Path]:
    return sorted(path for path in RESOURCES.rglob("*") if path.is_file())


def source_hash() -> str:
    """Of the names and texts of all sources and resources."""
    digest = hashlib.sha256()
    for folder, paths in ((SOURCES, sources()), (RESOURCES, resources())):
        for path in paths:
            data = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def javac() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=f"{home}/bin" if home else None)
    if found is None:
        sys.exit("javac was not found: install a JDK of 17 or newer (Debian, Ubuntu: openjdk-17-jdk-headless)")
    return found


def pyspark_jars() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "jars" / "*")


def write_jar(entries: dict[str, bytes]) -> None:
    """Replace the jar. A JVM that has the old one open goes on reading that."""
    partial = JAR.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name, date_time=EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            jar.writestr(info, data, compresslevel=9)
    partial.replace(JAR)


def stored_entries() -> dict[str, bytes]:
    with zipfile.ZipFile(JAR) as jar:
        return {name: jar.read(name) for name in jar.namelist()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the jar of the Spark catalog.")
    parser.add_argument("--check", action="store_true", help="build and compare with the jar that is there")
    entries = built_entries()
    if not parser.parse_args().check:
        write_jar(entries)
        sys.stdout.write(f"{JAR.name}: {len(entries)} entries, {JAR.stat().st_size:,} bytes\n")
    elif stored_entries() != entries:
        sys.exit(f"{JAR.name} was not built from the sources in {SOURCES} as they are: run make jar")


if __name__ == "__main__":
    main()
