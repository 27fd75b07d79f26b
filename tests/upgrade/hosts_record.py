"""The content of a coordinator and a host of a released version, for the tests of updates; see `record`.

The packed tables have one segment on the host and one on the coordinator.
"""

import os

from tests.conftest import PASSWORD
from tests.helpers.dumps import keep, restore
from tests.helpers.hosts import ANALYST, Hosts
from tests.helpers.training import ADAM, fit, load_architectures, load_digits, script
from tests.upgrade.record import SEED, interrupt

SERVER = "alpha"
COORDINATOR, HOST = "hosts/{}.coordinator", "hosts/{}.host"
N_ITERATIONS = 3  # of the run that is interrupted
#: Tables that pg_dump omits and that an update in place keeps.
PAIRING = ("host", "host_shard")
PAIRING_AT_HOST = ("coordinator",)


def fill(ours: Hosts) -> None:
    """Pack to a host and train there, as a user: a finished run, an interrupted one, and an uninterrupted copy of it.

    Both models have the same architecture, which each trainer compiles once: the tests start many trainers.
    """
    db = ours.db
    script(db, f"SELECT madlib_mop.remove_host('{SERVER}')", f"SELECT madlib_mop.add_host('{SERVER}', 1)")
    load_digits(db, 120, 40)
    load_architectures(db)
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ANALYST}; GRANT CREATE ON SCHEMA public TO {ANALYST}")
    script(
        db,
        f"SET madlib_mop.hosts = '{SERVER}, here'",
        "SET madlib_mop.segments = 2",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', 37, 16.0, seed := 5)",
        "SELECT madlib.validation_preprocessor_dl('valid_rows', 'valid', 'y', 'x', 'train', 37)",
        role=ANALYST,
    )
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', '{1}', %s::varchar[], %s::varchar[])",
        [[ADAM], ["batch_size=16, epochs=1", "batch_size=8, epochs=1"]], ANALYST,
    )  # fmt: skip
    fit(db, "models", "mst", 1, seed=SEED, validation_table="valid", schedule="rotation", role=ANALYST)
    fit(db, "twin", "mst", N_ITERATIONS, seed=SEED, schedule="rotation", role=ANALYST)
    interrupt(db, ANALYST, N_ITERATIONS)


def keep_both(ours: Hosts, version: str) -> None:
    """Write the dumps of both databases."""
    keep(ours.db, COORDINATOR.format(version), *PAIRING)
    keep(ours.at[SERVER], HOST.format(version), *PAIRING_AT_HOST)


def restore_both(cluster, host_cluster, version: str) -> Hosts:
    """Restore both databases; server, user mapping and keys connect one to the other."""
    cluster.create_role(ANALYST)
    ours = Hosts(restore(cluster, COORDINATOR.format(version), version))
    at = ours.at[SERVER] = restore(host_cluster, HOST.format(version), version)
    ours.move(SERVER)
    ours.db.rows(f"ALTER SERVER {SERVER} OPTIONS (SET dbname '{at.name}')")
    for role in (f'"{cluster.superuser}"', ANALYST):
        ours.db.rows(f"ALTER USER MAPPING FOR {role} SERVER {SERVER} OPTIONS (SET password '{PASSWORD}')")
    key = os.urandom(32)
    for database, table in ((ours.db, "host"), (at, "coordinator")):
        database.rows(f"UPDATE madlib_mop.{table} SET key = %s", [key])
    ours.db.rows(  # oids and transaction numbers differ between servers
        "UPDATE madlib_mop.host_shard h SET xid = pg_current_xact_id(), packed_oid = ftrelid FROM pg_foreign_table"
        " WHERE ftoptions @> ARRAY['schema_name=' || h.table_schema, 'table_name=' || h.table_name]"
    )
    return ours
