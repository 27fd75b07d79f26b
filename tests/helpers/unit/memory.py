"""The record of a run in memory, for tests of a run without a server: a process may end after any write.

Slots of states and progress are doubles that do nothing.
"""

import math
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

from madlib_mop.catalog.rows.states import CommandState

PARENT = 9  # the run that a replay repeats


class Killed(Exception):
    """The end of the driver's process."""


class MemoryRecord:
    """The tables of one run, with transactions; the process may end after any write."""

    def __init__(self, parent=None):
        self.parent = parent  # the record of the run that this one repeats
        self.paused_by = None
        self.tables = {"models": {}, "events": [], "changes": [], "metrics": [], "visits": [], "copies": []}
        self.writes_left = math.inf
        self._in_transaction = False

    @contextmanager
    def transaction(self):
        """Commit all writes, or none."""
        before = {name: list(rows) for name, rows in self.tables.items() if name != "models"}
        before["models"] = dict(self.tables["models"])
        paused_by = self.paused_by
        self._in_transaction = True
        try:
            yield
            self._in_transaction = False
            self._count()
        except BaseException:
            self.tables, self.paused_by, self._in_transaction = before, paused_by, False
            raise

    def set_run(self, run_id, paused_by):
        """Note who has paused the run."""
        self.paused_by = paused_by
        self._count()

    def issue(self, command):
        """Record a command; return its number. It is another process that writes."""
        number = len(self.tables["changes"]) + 1
        self.tables["changes"].append(replace(command, change_id=number))
        return number

    def commands(self, run_id, state):
        """Return the commands in one state."""
        return [row for row in self.tables["changes"] if row.command is not None and row.state is state]

    def lock_command(self, command):
        """Return whether a command is pending."""
        return self.tables["changes"][command.change_id - 1].state is CommandState.PENDING

    def record_outcome(self, command, outcome):
        """Settle a pending command."""
        if not self.lock_command(command):
            return False
        ordinal = len(self.commands(1, CommandState.OBEYED)) if outcome.state is CommandState.OBEYED else None
        changes = list(self.tables["changes"])
        changes[command.change_id - 1] = replace(
            command, state=outcome.state, detail=outcome.detail, mst_keys=outcome.mst_keys,
            visits=outcome.visits, ordinal=ordinal,
        )
        self.tables["changes"] = changes
        self._count()
        return True

    def has_same_start_weights(self, run_id, origin, other):
        """Return whether two origins are the same."""
        return origin == other

    def _count(self):
        if not self._in_transaction:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise Killed

    def custom_functions(self, run_id):
        """There are none."""
        return {}

    def visits(self, run_id):
        """Return the visits."""
        names = ("mst_key", "epoch", "segment_id", "position")
        return [SimpleNamespace(**dict(zip(names, visit, strict=True))) for visit in self.tables["visits"]]

    def models(self, run_id):
        """Return the models."""
        if run_id == PARENT:
            return self.parent.models(1)
        return list(self.tables["models"].values())

    def lock_model(self, run_id, mst_key):
        """Return a model."""
        return self.tables["models"][mst_key]

    def add_models(self, run_id, models):
        """Add models, whose states are empty."""
        for model in models:
            self.tables["models"][model.mst_key] = replace(model, run_id=run_id, state_bytes=0)

    def set_model(self, run_id, mst_key, **values):
        """Change a row."""
        self._change(mst_key, values)
        self._count()

    def copy_state(self, run_id, mst_key, slot, source, version=0):
        """Copy a state: here its digest."""
        self.tables["copies"].append((mst_key, source.mst_key, source.epoch))
        self._change(mst_key, {"digest": source.digest, "state_version": version})

    def _change(self, mst_key, values):
        self.tables["models"][mst_key] = replace(self.tables["models"][mst_key], **values)

    def delete_state(self, model):
        """Nothing to delete."""

    def search_events(self, run_id):
        """Return the events."""
        return list(self.tables["events"])

    def add_search_event(self, event):
        """Add an event."""
        self.tables["events"].append(event)

    def add_changes(self, rows):
        """Add changes."""
        self.tables["changes"] += rows
        self._count()

    def metrics(self, run_id):
        """Return the metrics."""
        return list(self.tables["metrics"])

    def add_metrics(self, rows, evaluations):
        """Add metrics."""
        self.tables["metrics"] += rows
        self._count()


class Slots:
    """Slots of states, which are not stored."""

    def add_models(self, n):
        """Do nothing."""

    def begin_write(self, key):
        """Return a slot."""
        return 0

    def end_write(self, slot, key, n_bytes=None):
        """Do nothing."""


class Quiet:
    """Progress without messages; the test controls its clock."""

    elapsed_s = 0.0

    def __getattr__(self, name):
        return lambda *a, **k: None
