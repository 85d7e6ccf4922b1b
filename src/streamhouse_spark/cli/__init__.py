"""The command line, ``streamhouse``. One module per group of commands; `main` is the entry point."""

from streamhouse_spark.cli.app import main

__all__ = ["main"]
