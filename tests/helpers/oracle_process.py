"""The oracle of promise 1 on another backend of Keras, in a process of its own, which can have one backend only.

``python -m tests.helpers.oracle_process BACKEND DSN RUN_ID TABLE CONFIGURATIONS PARENT`` ends with an error if weights
differ; PARENT is null, or the run whose states this one continued with.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import psycopg2
from mop_backend.keras_backends import BackendName

from madlib_mop.trainer.backends import choice


@dataclass
class _Rows:
    """A database, as far as the oracle needs it."""

    connection: "psycopg2.extensions.connection"

    def rows(self, statement: str, values=None) -> list[tuple]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()


def assert_exact_on(backend: BackendName, db, run_id: int, table: str, configurations, parent=None) -> None:
    """Assert that every model's weights equal those of plain Keras on a backend."""
    words = [backend, db.connect().dsn, str(run_id), table, json.dumps(configurations), json.dumps(parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", __name__, *words]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def main(name: str, dsn: str, run_id: str, table: str, configurations: str, parent: str) -> None:
    """Compare all models of a run."""
    os.environ.update(choice.environment_of(BackendName(name)))
    backend = choice.load()
    backend.set_threads(1)
    backend.start_threads()
    from tests.helpers.oracle import assert_exact

    rows = _Rows(psycopg2.connect(dsn))
    assert_exact(rows, int(run_id), table, json.loads(configurations), json.loads(parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
