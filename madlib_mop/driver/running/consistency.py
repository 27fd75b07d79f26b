"""Checks that a run's data and versions have not changed since its start; called by ``segment_sessions.py``."""

from mop_backend.frames import Header
from mop_backend.keras_backends import BackendName
from mop_backend.messages import LoadedRows, ShardName

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.of_run import SAMPLE
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.errors import InvalidParameter, NotReady

_VERSIONS = ("python", *BackendName, "keras", "numpy")


class RunConsistency:
    """The recorded data and versions of a run.

    Parameters
    ----------
    record : Record
    run : RunRow
    progress : ProgressReporter
        Notified of changed versions.
    """

    def __init__(self, record: Record, run: RunRow, progress: ProgressReporter):
        self._record = record
        self._n_rows = {
            (data_set, shard.segment_id): (packed.table, shard.n_rows)
            for data_set, packed in run.plan.data_sets.items()
            for shard in packed.segments
        }
        if (sample := run.plan.sample) is not None:
            table, _ = self._n_rows[sample.data_set, sample.segment_id]
            self._n_rows[SAMPLE, sample.segment_id] = table, sample.n_rows
        self._versions = run.versions
        self._run_id = run.run_id
        self._progress = progress
        self._fingerprints = {(s.data_set, s.segment_id): s.fingerprint for s in record.segments(self._run_id)}

    def check_shard(self, shard: ShardName, loaded: LoadedRows) -> None:
        """Check the rows that a trainer has loaded against those that the caller could see and those of earlier visits.

        Called before anything is trained or evaluated on it.

        Raises
        ------
        NotReady, InvalidParameter
        """
        key = (shard.data_set, shard.segment_id)
        table, planned = self._n_rows[key]
        if loaded.n_rows != planned:
            raise NotReady(
                f"{table}: the worker of segment {shard.segment_id} can see {loaded.n_rows} rows, but the caller could "
                f"see {planned}",
                hint="Commit the transaction that packed the table, and do not change the table while a run uses"
                " it. If a row policy reads a setting with a function, set it with ALTER ROLE, so that it applies to "
                "other sessions too.",
            )
        known = self._fingerprints.get(key)
        if known is None:
            self._record.set_segment(self._run_id, *key, fingerprint=loaded.fingerprint, n_bytes=loaded.n_bytes)
            self._fingerprints[key] = loaded.fingerprint
        elif known != loaded.fingerprint:
            raise InvalidParameter(
                f"{table}: the rows of segment {shard.segment_id} differ from the rows that the run was trained on",
                hint="Restore the packed table, or start a new run.",
            )

    def check_versions(self, answer: Header) -> None:
        """Record the versions of the run's training; warn if they have changed since its start."""
        versions = {str(name): answer[name] for name in _VERSIONS if name in answer}
        if versions == self._versions:
            return
        if self._versions:
            self._progress.versions_changed(self._versions, versions)
        self._versions = versions
        self._record.set_run(self._run_id, versions=versions)
