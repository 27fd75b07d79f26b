"""The driver's own session: over the local socket as the operating system user that owns the cluster (peer)."""

import psycopg2
from psycopg2.extensions import connection
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import StaticPool

from madlib_mop.errors import NotReady


def connect_catalog(sockets: str, port: str, database: str) -> tuple[Engine, connection]:
    """Open the catalog session: it touches the extension's tables and no user's relation.

    Parameters
    ----------
    sockets, port : str
        The server's ``unix_socket_directories`` and ``port``.
    database : str
        The database that the extension lives in.

    Returns
    -------
    tuple of (sqlalchemy.Engine, psycopg2 connection)
        An engine over the one connection, which is in autocommit (see `Record.transaction`), and that connection, for
        LISTEN, advisory locks and DDL.

    Raises
    ------
    NotReady
        If the server does not let its own owner in by peer authentication.
    """
    directory = sockets.split(",")[0].strip()
    try:
        raw = psycopg2.connect(
            host=directory,
            port=port,
            dbname=database,
            application_name="madlib_mop driver",
            connect_timeout=10,
            options="-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
            " -c search_path=pg_catalog -c client_min_messages=warning",
        )
    except psycopg2.OperationalError as error:
        raise NotReady(
            "the driver cannot open its catalog session as the server's own operating system user",
            detail=str(error).strip(),
            hint="pg_hba.conf needs a line `local all all peer` that lets that user in; `madlib-mop doctor` checks it.",
        ) from None
    raw.autocommit = True
    engine = create_engine(
        "postgresql+psycopg2://", creator=lambda: raw, poolclass=StaticPool, pool_reset_on_return=None
    )
    return engine, raw
