"""``jar``: prints the path of the SQL catalog's jar, for ``spark-submit``, ``spark-sql`` and Connect servers."""

from __future__ import annotations

import click

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.datasource.catalog.jar import catalog_class, jar_path, require_catalog_name


@click.command(
    "jar",
    cls=Command,
    examples="""
streamhouse jar
streamhouse -w /data/warehouse jar --options
streamhouse -w s3://bucket/warehouse jar --options --catalog lakehouse
""",
)
@click.option("--options", "as_options", is_flag=True, help="The --jars and --conf options of the catalog as a whole.")
@click.option("--catalog", default="streamhouse", show_default=True, help="The catalog's name in SQL.")
@click.pass_obj
def jar(session: Session, *, as_options: bool, catalog: str) -> None:
    """Print the path of the SQL catalog's jar.

    With --options, print everything that a session needs: the jar, the catalog class, and the warehouse if one is
    given. Use it in $(…) after spark-sql, spark-submit or start-connect-server.sh.
    """
    require_catalog_name(catalog)
    path = jar_path()
    if not as_options:
        click.echo(str(path))
        return
    key = f"spark.sql.catalog.{catalog}"
    words = ["--jars", str(path), "--conf", f"{key}={catalog_class()}"]
    if session.location is not None:
        words += ["--conf", f"{key}.warehouse={session.location}"]
    click.echo(" ".join(words))
