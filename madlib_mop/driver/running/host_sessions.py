"""Sessions of a run's driver at hosts: they fetch states that are needed here, and tell hosts which ones to hold.

Called by `segment_sessions`. Writers have relays to hosts for visits; what a driver asks for is rare.
"""

from collections.abc import Sequence
from contextlib import closing, suppress

import psycopg
from mop_backend.messages import StateAway, StateGone
from mop_backend.seals import digest_of_all

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow, StateCopyRow
from madlib_mop.engines.hosts.login import NotLetIn
from madlib_mop.engines.hosts.relay import HostSession, NotSealed
from madlib_mop.engines.sessions.reasons import plain_reason

_ACCESS = "SELECT madlib_mop_internal.host_access(%s, %s)"
_FAILURES = (psycopg.Error, NotLetIn, NotSealed)  # they may pass


def fetch_state(record: Record, run_id: int, model: ModelRow) -> list[bytes] | StateAway | StateGone:
    """Return the parts of a model's newest state, which a host holds, or why that is not possible now."""
    server = model.state_server
    assert server is not None, "a host holds it"
    name = [model.run_id, model.mst_key, model.state_version, model.digest]
    parts: list[bytes] = []
    try:
        with closing(_session(record, run_id, server)) as host:
            while True:
                request = {"op": "held_part", "run_id": run_id, "state": name, "part": len(parts)}
                answer, blobs = host.ask(request, [], True)
                parts += map(bytes, blobs)
                is_whole = len(parts) >= answer.get("n_parts", 0)
                if not blobs or is_whole or sum(map(len, parts)) > (model.state_bytes or 0):
                    break
    except _FAILURES as error:
        return StateAway(server, _reason_of(error))
    return parts if digest_of_all(parts) == model.digest else StateGone(server, (model.mst_key,))


def sweep_host(record: Record, run_id: int, server: str, copies: Sequence[StateCopyRow]) -> None:
    """Let a host let go of all states of a run but these, and of those of runs that are over.

    If the host is not reached, this is left to the next sweep.
    """
    states = [[copy.run_id, copy.mst_key, copy.version, copy.digest] for copy in copies]
    runs = [run_id, *record.runs_at_hosts()]
    with suppress(*_FAILURES), closing(_session(record, run_id, server)) as host:
        host.ask({"op": "keep_only", "run_id": run_id, "states": states, "runs": runs}, [], True)


def _session(record: Record, run_id: int, server: str) -> HostSession:
    """Open a session at a host, as the run's owner. Raises `_FAILURES`."""
    ((access,),) = record.execute(_ACCESS, [run_id, server])
    return HostSession({**access, "server": server, "run_id": run_id})


def _reason_of(error: Exception) -> str:
    if isinstance(error, psycopg.Error):
        return plain_reason(error)
    return error.message if isinstance(error, NotLetIn) else "an answer does not come from the host"
