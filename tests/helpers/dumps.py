"""Dumps of databases, and databases restored from them: of released versions for the tests of updates, where
`make_record` writes the dumps; and of a test's own database."""

import gzip
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import Cluster, Database, run

RECORDS = Path(__file__).resolve().parents[1] / "upgrade" / "records"
#: Tables that are compared before and after an update.
TABLES = tuple(
    f"madlib_mop.{table}"
    for table in (
        "run", "segment", "model", "model_state", "visit", "metric", "evaluation", "start_weights", "custom_function",
        "setting", "search_event",
    )
)  # fmt: skip
_OWNER = "postgres"  # the superuser's name in the dumps
_OWNED = re.compile(rb"^(ALTER .+ OWNER TO |CREATE USER MAPPING FOR )(\S+?)(;| SERVER )", re.MULTILINE)

#: The events of searches with their decisions, which were a column of the events in version 1.0.0.
_WITH_ACTIONS = """(
    SELECT e.*, (SELECT coalesce(jsonb_agg(jsonb_build_object('do', c.change) || c.work ORDER BY c.number), '[]')
                 FROM madlib_mop.change c WHERE (c.run_id, c.event) = (e.run_id, e.ordinal)) AS actions
    FROM madlib_mop.search_event e) e"""

Contents = dict[str, tuple[list[str], list[str]]]


def keep(db: Database, name: str, *tables: str) -> None:
    """Write the dump of a database.

    Parameters
    ----------
    db : Database
    name : str
        The file's, without its suffix.
    *tables : str
        Tables of schema ``madlib_mop`` whose rows pg_dump omits, to be included.
    """
    dump = subprocess.run([db.cluster.bindir / "pg_dump", "-d", db.dsn], capture_output=True, check=True).stdout
    for table in tables:
        rows = f"(SELECT json_agg(t)::text FROM madlib_mop.{table} t)"
        into = f"INSERT INTO madlib_mop.{table} SELECT * FROM json_populate_recordset(NULL::madlib_mop.{table}, %L);"
        dump += db.value(f"SELECT format('{into}', {rows})").encode() + b"\n"
    file = RECORDS / f"{name}.sql.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(file, "wb", mtime=0) as packed:
        packed.write(owned_by(dump, db.cluster.superuser, _OWNER))


def restore(cluster: Cluster, name: str, version: str) -> Database:
    """Create a database with the extension of a released version and the content of a dump."""
    database = Database(cluster, f"updated_{uuid.uuid4().hex[:8]}")
    run(cluster.connect(), f'CREATE DATABASE "{database.name}"')
    run(cluster.connect(database.name), f"CREATE EXTENSION madlib_mop VERSION '{version}' CASCADE")
    dump = gzip.decompress((RECORDS / f"{name}.sql.gz").read_bytes())
    done = subprocess.run(
        [cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", database.dsn],
        input=owned_by(dump, _OWNER, cluster.superuser), capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return database


@contextmanager
def restored_copy(db: Database) -> Iterator[Database]:
    """Yield a new database of the same cluster, restored from a dump; it is dropped in the end."""
    copy = Database(db.cluster, f"restored_{uuid.uuid4().hex[:8]}")
    dump = subprocess.run([db.cluster.bindir / "pg_dump", "-d", db.dsn], capture_output=True, text=True, check=True)
    run(db.cluster.connect(), f'CREATE DATABASE "{copy.name}"')
    try:
        done = subprocess.run(
            [db.cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", copy.dsn],
            input=dump.stdout, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        yield copy
    finally:
        db.cluster.drop(copy.name)


def contents(db: Database, before: Contents | None = None, tables: tuple[str, ...] = TABLES) -> Contents:
    """Return the columns of each table, and its rows as digests; after an update, of the columns before it."""
    return {table: _contents(db, table, (before or {}).get(table, ([], []))[0]) for table in tables}


def _contents(db: Database, table: str, columns: list[str]) -> tuple[list[str], list[str]]:
    if not columns:
        query = "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        columns = [name for (name,) in db.rows(f"{query} AND NOT attisdropped ORDER BY attnum", [table])]
    source = _WITH_ACTIONS if table == "madlib_mop.search_event" and is_moved(db) else table
    rows = db.rows(f"SELECT md5(t::text) FROM (SELECT {', '.join(columns)} FROM {source}) t ORDER BY 1")
    return columns, [digest for (digest,) in rows]


def is_moved(db: Database) -> bool:
    """Return whether the decisions of searches are rows of table change."""
    return bool(db.value("SELECT to_regclass('madlib_mop.change') IS NOT NULL"))


def owned_by(dump: bytes, old: str, new: str) -> bytes:
    """Return a dump whose superuser has a fixed name, independent of the machine that created it."""

    def renamed(match: re.Match[bytes]) -> bytes:
        owner = match[2]
        if owner.strip(b'"') == old.encode():
            owner = b'"%s"' % new.encode()
        return match[1] + owner + match[3]

    return _OWNED.sub(renamed, dump)
