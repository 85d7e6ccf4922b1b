"""Schedule of maintenance in the tiering service, by rounds and by time.

Rounds create small files, so the service compacts after every `ROUNDS_TO_COMPACT` of them and expires snapshots after
every `ROUNDS_TO_EXPIRE`, unless the table's properties disable it. Everything else, including the log, is maintained
every ten minutes. Orphan files, whose search reads the metadata of all snapshots, are removed once an hour. All of it
runs in this process; a table without new rows costs only one check of its log every ten minutes.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from streamhouse_spark.config.properties import TableProperties
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.lifecycle.garbage_collection import GRACE_MS
from streamhouse_spark.table.lake_maintenance import LakeMaintainReport, LakeStep, maintain_lake
from streamhouse_spark.table.log_maintenance import maintain
from streamhouse_spark.table.table import Table

logger = logging.getLogger(__name__)

ROUNDS_TO_COMPACT = 10
ROUNDS_TO_EXPIRE = 50
MAINTENANCE_MS = 10 * 60_000
ORPHANS_MS = 60 * 60_000


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """Maintenance of one table since the service's start."""

    compactions: int = 0
    """New lake snapshots with fewer or cleaner files."""
    compacted_files: int = 0
    """Lake files that compaction replaced."""
    expired_snapshots: int = 0
    deleted_files: int = 0
    """Lake files deleted with snapshots or as orphans."""
    conflicts: int = 0
    """Steps that lost a commit race and are deferred to the next run."""
    error: str | None = None
    """First line of the last maintenance error; None after a success. Tiering continues meanwhile."""
    failures: int = 0
    """Maintenance errors since its last success."""

    def after(self, report: LakeMaintainReport) -> MaintenanceStatus:
        return replace(
            self,
            compactions=self.compactions + (report.compacted.snapshot is not None),
            compacted_files=self.compacted_files + report.compacted.files_removed,
            expired_snapshots=self.expired_snapshots + len(report.expired.snapshots),
            deleted_files=self.deleted_files + len(report.expired.files) + len(report.orphans),
            conflicts=self.conflicts + len(report.conflicts),
        )


@dataclass(slots=True)
class MaintenanceRunner:
    """Schedule of one table, used by the worker that has the table. Other threads may call only `is_due`."""

    began_ms: int
    """Boot time of the start. Nothing is due at once, because services that start together would all do it."""
    maintenance_ms: int = MAINTENANCE_MS
    maintained_ms: int | None = None
    orphans_ms: int | None = None
    uncompacted_rounds: int = 0
    unexpired_rounds: int = 0

    def is_due(self, now_ms: int) -> bool:
        """Return whether maintenance is due by time, regardless of rounds."""
        return now_ms - (self.began_ms if self.maintained_ms is None else self.maintained_ms) >= self.maintenance_ms

    def add_rounds(self, num_rounds: int) -> None:
        self.uncompacted_rounds += num_rounds
        self.unexpired_rounds += num_rounds

    def run(self, table: Table, now_ms: int) -> LakeMaintainReport | None:
        """Run the maintenance that is due; None if nothing is. Steps are not due again at once, even if they fail.

        Raises the errors of maintenance.
        """
        if self.is_due(now_ms):
            steps = self._all_steps(now_ms)
            return maintain(table, grace_ms=GRACE_MS, dry_run=False, lake_steps=steps).lake
        steps = self._steps_after_rounds(table.properties)
        return maintain_lake(table, table.open_lake(), GRACE_MS, steps=steps) if steps else None

    def _all_steps(self, now_ms: int) -> tuple[LakeStep, ...]:
        self.maintained_ms = now_ms
        self.uncompacted_rounds = self.unexpired_rounds = 0
        if now_ms - (self.began_ms if self.orphans_ms is None else self.orphans_ms) < ORPHANS_MS:
            return ("compact", "expire", "metadata")
        self.orphans_ms = now_ms
        return ("compact", "expire", "orphans", "metadata")

    def _steps_after_rounds(self, properties: TableProperties) -> tuple[LakeStep, ...]:
        steps: list[LakeStep] = []
        if self.uncompacted_rounds >= ROUNDS_TO_COMPACT:
            self.uncompacted_rounds = 0
            steps += ["compact"] if properties.datalake_auto_compaction else []
        if self.unexpired_rounds >= ROUNDS_TO_EXPIRE:
            self.unexpired_rounds = 0
            steps += ["expire"] if properties.datalake_auto_expire_snapshot else []
        return tuple(steps)
