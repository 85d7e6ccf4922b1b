"""Runs the JUnit tests of `jvm/`, without Maven and without a Spark session.

    python tools/java_tests.py            compiles sources and tests, and runs them
    python tools/java_tests.py --fetch    puts JUnit into `build/` first (needs Maven)

Needs a JDK (javac), an installed PySpark, whose jars are the class path, and JUnit's console launcher.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build_jar import RELEASE, RESOURCES, ROOT, SOURCES, javac, pyspark_jars, sources

TESTS = ROOT / "jvm" / "src" / "test" / "java"
PROTOCOL = ROOT / "jvm" / "protocol.json"
GOLDEN = ROOT / "tests" / "golden"
BUILD = ROOT / "build"
GROUP, ARTIFACT, VERSION = "org.junit.platform", "junit-platform-console-standalone", "1.11.4"
SHA_256 = "b016ef6b1c3454d6d7c2c88ce081dabf289699686af6622d6e4e2e1b54b4a2fc"
OPENED = ("java.base/java.nio=ALL-UNNAMED", "java.base/sun.nio.ch=ALL-UNNAMED", "java.base/java.lang=ALL-UNNAMED")
"""Packages of the JDK that Arrow and Spark look into, as Spark itself opens them."""


def junit_jar() -> Path | None:
    """The launcher, as fetched or as Maven keeps it; None where there is none. Exits where it is not the pinned one."""
    name = f"{ARTIFACT}-{VERSION}.jar"
    kept = Path.home() / ".m2" / "repository" / Path(*GROUP.split(".")) / ARTIFACT / VERSION / name
    found = next((path for path in (BUILD / name, kept) if path.is_file()), None)
    if found is not None and hashlib.sha256(found.read_bytes()).hexdigest() != SHA_256:
        sys.exit(f"{found} is not the JUnit that was pinned: delete it and run make test-java")
    return found


def fetch_junit() -> None:
    """By Maven, which knows the machine's registries."""
    maven = shutil.which("mvn")
    if maven is None:
        sys.exit("mvn was not found, which fetches JUnit: install Maven (Debian, Ubuntu: maven)")
    artifact = f"-Dartifact={GROUP}:{ARTIFACT}:{VERSION}"
    subprocess.run([maven, "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={BUILD}"], cwd=ROOT, check=True)


def run_tests(junit: Path) -> int:
    """The launcher's exit code: 0 where at least one test ran and none failed."""
    with tempfile.TemporaryDirectory() as folder:
        classes = os.pathsep.join([folder, str(RESOURCES), str(junit), pyspark_jars()])
        tests = sorted(str(path) for path in TESTS.rglob("*.java"))
        command = [javac(), "--release", RELEASE, "-nowarn", "-encoding", "UTF-8", "-d", folder, "-cp", classes]
        subprocess.run([*command, *map(str, sources()), *tests], check=True)
        java = Path(javac()).with_name("java")
        opened = [word for package in OPENED for word in ("--add-opens", package)]
        properties = [f"-Dstreamhouse.protocol={PROTOCOL}", f"-Dstreamhouse.sources={SOURCES}"]
        properties.append(f"-Dstreamhouse.golden={GOLDEN}")
        launcher = [str(java), "-Xmx512m", *opened, *properties, "-cp", classes]
        launcher += ["org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner"]
        options = ["--fail-if-no-tests", "--details", "tree", "--disable-ansi-colors", "--scan-class-path", folder]
        return subprocess.run([*launcher, *options], check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the Java tests.")
    parser.add_argument("--fetch", action="store_true", help="fetch JUnit where it is not there")
    if parser.parse_args().fetch and junit_jar() is None:
        fetch_junit()
    junit = junit_jar()
    if junit is None:
        sys.exit("JUnit is not there: run make test-java, which fetches it")
    sys.exit(run_tests(junit))


if __name__ == "__main__":
    main()
