"""Alice trains on mallory's tables; all names need quotes. Used by test_users_runs."""

import base64
import hashlib
import hmac
import re
import threading
from pathlib import Path

import psycopg2
from psycopg2 import sql

from madlib_mop.catalog.names import quote
from tests.helpers.faults import children
from tests.helpers.security.attacks import SOFTMAX, record_run, user
from tests.helpers.training import load_digits, script

ALICE, MALLORY, CAROL = "alice", "mallory", "carol"
CAROLS_RUN = 77
X, Y = 'x"; DROP TABLE victim; --', "y's {0} %s é"
ARCH, SELECTION, OUTPUT = "arch'; %s", "mst {0}", 'out"; DROP TABLE victim; --'
COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"
# Settings that do not choose which code runs, or where.
SETTINGS = {
    "madlib_mop.worker_host": "10.0.0.1",
    "madlib_mop.sandbox": "off",
    "madlib_mop.library": "/tmp/evil",
    "madlib_mop.python": "/tmp/evil/python",
    "madlib_mop.dsn": "host=10.0.0.1",
    "madlib_mop.trainer_memory_mb": "2048",
}
_SECRET = re.compile(r"(?<![\w-])[\w-]{43}(?![\w-])")


def of(role: str, name: str) -> str:
    """Return a name in a role's schema, quoted."""
    return f"{role}.{quote(name)}"


def lay_out(db) -> None:
    """Create the roles, mallory's packed tables, alice's configurations and a run of carol's."""
    for role in (ALICE, MALLORY, CAROL):
        user(db, role)
    record_run(db, CAROLS_RUN, CAROL)
    db.rows("CREATE TABLE public.victim (a integer)")
    load_digits(db, 80, 40)
    for table in ("train", "valid"):
        db.rows(
            sql.SQL("CREATE TABLE mallory.{} AS SELECT id, x AS {}, y AS {} FROM {}").format(
                *map(sql.Identifier, (f"{table}_source", X, Y, f"{table}_rows"))
            )
        )
    db.rows("GRANT SELECT ON ALL TABLES IN SCHEMA mallory TO mallory")
    script(
        db,
        "SET search_path = mallory; SET madlib_mop.segments = 2",
        _call("training_preprocessor_dl", "train_source", "train", quote(Y), quote(X), 20, 16.0, seed=5),
        _call("validation_preprocessor_dl", "valid_source", "valid", quote(Y), quote(X), "train", 20),
        "GRANT USAGE ON SCHEMA mallory TO alice; GRANT SELECT ON ALL TABLES IN SCHEMA mallory TO alice",
        role=MALLORY,
    )
    arch, selection = of(ALICE, ARCH), of(ALICE, SELECTION)
    fit_params = ["batch_size=16, epochs=1", "batch_size=8, epochs=1"]
    script(
        db,
        _call("load_keras_model", arch, SOFTMAX),
        _call("load_model_selection_table", arch, selection, [1], [COMPILE], fit_params),
        role=ALICE,
    )


def _call(function: str, *arguments, **named) -> sql.Composed:
    slots = [sql.Literal(value) for value in arguments]
    slots += [sql.SQL("{} := {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in named.items()]
    return sql.SQL("SELECT madlib.{}({})").format(sql.Identifier(function), sql.SQL(", ").join(slots))


def lay_traps(db) -> None:
    """Run traps.sql as mallory."""
    columns = ", ".join(map(quote, ("__dist_key__", X, f"{X}_shape", Y, f"{Y}_shape")))
    text = (Path(__file__).resolve().parents[2] / "security" / "traps.sql").read_text()
    for slot, value in (
        ("{superuser}", quote(db.cluster.superuser)),
        ("{carols_run}", str(CAROLS_RUN)),
        ("{columns}", columns),
    ):
        text = text.replace(slot, value)
    script(db, text, role=MALLORY)


class Fit(threading.Thread):
    """Alice's call of fit, in progress in a session of its own."""

    def __init__(self, db, source: str, output: str, search_path: str = "alice"):
        super().__init__(daemon=True)
        self.db = db
        self.error: psycopg2.Error | None = None
        self._connection = db.connect(ALICE)
        self.pid = self._connection.info.backend_pid
        self._search_path = search_path
        self._statement = _call(
            "madlib_keras_fit_multiple_model", source, output, of(ALICE, SELECTION), 1,
            validation_table="mallory.valid", seed=7, schedule="rotation",
        )  # fmt: skip
        self.start()

    def run(self) -> None:
        """Call fit; store its exception."""
        try:
            with self._connection.cursor() as cursor:
                for name, value in (*SETTINGS.items(), ("search_path", self._search_path)):
                    cursor.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
                cursor.execute(self._statement)
        except psycopg2.Error as error:
            self.error = error
        finally:
            self._connection.close()

    @property
    def drivers(self) -> list[int]:
        """The driver's process, while it runs."""
        return children(self.pid, "madlib_mop.driver")

    def end(self) -> None:
        """Wait for the call to succeed."""
        self.join(150)
        assert not self.is_alive() and self.error is None, self.error


def processes(what: str) -> dict[int, str]:
    """Return the command line or the environment of every process that we may read."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            found[int(entry.name)] = (entry / what).read_bytes().decode(errors="replace")
        except (ValueError, OSError):
            continue
    return found


def opens(verifier: str, text: str) -> bool:
    """Return whether a text contains a password of our format that matches a SCRAM verifier (RFC 5802)."""
    iterations, salt, keys = re.fullmatch(r"SCRAM-SHA-256\$(\d+):([^$]+)\$(.+)", verifier).groups()
    stored = base64.b64decode(keys.split(":")[0])
    for candidate in set(_SECRET.findall(text)):
        salted = hashlib.pbkdf2_hmac("sha256", candidate.encode(), base64.b64decode(salt), int(iterations))
        client_key = hmac.new(salted, b"Client Key", "sha256").digest()
        if hashlib.sha256(client_key).digest() == stored:
            return True
    return False
