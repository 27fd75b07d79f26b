"""Sessions on hosts: only the coordinator can use a trainer there, which has its share of the host's memory.

The guarantees of runs on hosts are tested in tests/engines/test_hosts.py.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import struct
import threading
from pathlib import Path

import psycopg2
import pytest
from mop_backend.memory import share_of_memory

from tests.helpers.faults import BackgroundFit, wait_for
from tests.helpers.hosts import ANALYST, relay_to
from tests.helpers.remote import assert_gone, processes, trainers_at
from tests.helpers.security.attacks import SOFTMAX, user
from tests.helpers.training import MIXED, load_architectures, load_digits, script, select_configurations


def refused(connection, statement: str, *values) -> psycopg2.Error:
    """Return the error of a statement that must fail."""
    with connection, connection.cursor() as cursor, pytest.raises(psycopg2.Error) as caught:
        cursor.execute(statement, values)
    return caught.value


def test_users_at_the_host_can_do_nothing_by_hand(hosts):
    """A role that may use the extension on a host and knows the coordinator's name cannot use a trainer."""
    at = hosts.at["alpha"]
    coordinator = hosts.db.value("SELECT coordinator FROM madlib_mop.host WHERE server = 'alpha'")
    connection = at.connect(ANALYST)
    calls = {
        "SELECT madlib_mop_calls.segment_put('x')": (),
        "SELECT madlib_mop_calls.segment_send(%s, '', true)": ('{"op": "start"}',),
        "SELECT madlib_mop_calls.segment_get(0)": (),
        "SELECT madlib_mop_calls.segment_open(%s)": ("a coordinator that there is not",),
        "SELECT madlib_mop_calls.segment_open(NULL)": (),
    }
    for statement, values in calls.items():
        assert refused(connection, statement, *values).pgcode == "42501"
    for table in ("coordinator", "host"):
        assert refused(connection, f"SELECT * FROM madlib_mop.{table}").pgcode == "42501"
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop_calls.segment_open(%s)", [coordinator])
        nonce = cursor.fetchone()[0]
    header = json.dumps({"op": "start", "threads": 1, "shard_cache_bytes": 1 << 20, "number": 1, "blobs": []})
    for signature in ("", "0" * 64, hmac.new(nonce.encode(), header.encode(), "sha256").hexdigest(), None, "é"):
        error = refused(connection, "SELECT madlib_mop_calls.segment_send(%s, %s, true)", header, signature)
        assert (error.pgcode, "does not come from the coordinator" in error.diag.message_primary) == ("42501", True)
    assert refused(connection, "SELECT madlib_mop_calls.segment_open(%s)", coordinator).pgcode == "42501"
    connection.close()


def opened(hosts, name: str = "alpha"):
    """Open a session on a host as the coordinator does; return it, and a function that signs a header for it."""
    coordinator, key = hosts.db.rows("SELECT coordinator, key FROM madlib_mop.host WHERE server = %s", [name])[0]
    connection = hosts.at[name].connect(ANALYST)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop_calls.segment_open(%s)", [coordinator])
        nonce = cursor.fetchone()[0]
    own_key = hmac.digest(bytes(key), nonce.encode(), "sha256")
    return connection, lambda header: hmac.new(own_key, header.encode(), hashlib.sha256).hexdigest()


def answer_in(sealed: str) -> dict:
    """Return the answer without its signature."""
    return json.loads(sealed[64:])


SEND = "SELECT madlib_mop_calls.segment_send(%s, %s, true)"


def test_a_message_is_done_once_and_in_its_own_session(hosts):
    """A signed message is accepted only once, and only in its own session."""
    header = json.dumps({"op": "stats", "number": 1, "blobs": []})
    (ours, sign), (other, _) = opened(hosts), opened(hosts)
    signature = sign(header)
    assert refused(other, SEND, header, signature).pgcode == "42501"
    with ours, ours.cursor() as cursor:
        cursor.execute(SEND, [header, signature])
        assert "died" in answer_in(cursor.fetchone()[0])  # accepted, but there is no trainer yet
    assert refused(ours, SEND, header, signature).pgcode == "42501"
    for connection in (ours, other):
        connection.close()


def test_blobs_are_those_that_the_message_names(hosts):
    """Users' code in the session could replace the coordinator's state."""
    connection, sign = opened(hosts)
    header = json.dumps({"op": "stats", "number": 1, "blobs": [hashlib.sha256(b"ours").hexdigest()]})
    for blobs in ([b"forged"], [], [b"ours", b"ours"]):
        for blob in blobs:
            with connection, connection.cursor() as cursor:
                cursor.execute("SELECT madlib_mop_calls.segment_put(%s)", [blob])
        assert refused(connection, SEND, header, sign(header)).pgcode == "42501"
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop_calls.segment_put(%s)", [b"ours"])
        cursor.execute(SEND, [header, sign(header)])
        assert "died" in answer_in(cursor.fetchone()[0])
    connection.close()


def test_a_host_decides_what_code_runs_there(hosts):
    """The host's superusers decide, not the coordinator: the sandbox, and the functions that are accepted."""
    connection, sign = opened(hosts)
    n_sent = 0

    def send(message: dict) -> dict:
        nonlocal n_sent
        n_sent += 1
        header = json.dumps({**message, "number": n_sent, "blobs": []})
        with connection, connection.cursor() as cursor:
            cursor.execute(SEND, [header, sign(header)])
            return answer_in(cursor.fetchone()[0])

    started = send({"op": "start", "threads": 1, "shard_cache_bytes": 1 << 20, "sandbox": False})
    assert started["seccomp"] is True
    source = base64.b64encode(b"def f(a, b): return a").decode()
    custom = {"functions": {"f": source}, "pickles": True}
    for message in ({"model": {"custom": custom}}, {"members": [None, {"model": {"custom": custom}}]}):
        error = send({"op": "train", **message})["error"]
        assert error["sqlstate"] == "42501" and "does not accept custom function 'f'" in error["message"]
        assert hashlib.sha256(b"def f(a, b): return a").hexdigest() in error["hint"]
    connection.close()


def memory_limit(pid: int) -> int | None:
    """Return the memory limit of a process in bytes, if there is one."""
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    soft = next(line for line in limits if line.startswith("Max data size")).split()[3]
    return None if soft == "unlimited" else int(soft)


@pytest.mark.slow
def test_each_host_deals_out_its_own_memory(hosts):
    """Two segments on alpha and one on beta: each of the two has half of alpha's memory, the other all of beta's."""
    db = hosts.db
    load_digits(db, 90, 30)
    load_architectures(db)
    select_configurations(db, "mst", MIXED[:2])
    script(
        db,
        "SET madlib_mop.hosts = 'alpha, beta'",
        "SET madlib_mop.segments = 3",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', 37, 16.0, seed := 5)",
    )
    call = BackgroundFit(db, "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models', 'mst', 2)")
    expected = {"alpha": [share_of_memory(2)] * 2, "beta": [share_of_memory(1)]}

    def limits():
        found = {name: [memory_limit(pid) for pid in trainers_at(hosts.at[name])] for name in expected}
        ready = all(len(of) == len(expected[name]) and None not in of for name, of in found.items())
        return found if ready else None

    found = wait_for(lambda: call.error or limits(), what="trainers that have limits")
    assert call.error is None, call.error
    seen = processes(hosts)
    call.succeed()
    # each trainer may use its share in addition to the memory that it had when the limit was set
    for name, shares in expected.items():
        assert all(share <= limit < share + (2 << 30) for share, limit in zip(shares, found[name], strict=True)), found
    assert_gone(hosts, seen, within_s=5.0)


class Middleman:
    """Somebody between the two servers who replaces texts of the same length in what the host sends, without TLS."""

    def __init__(self, port: int):
        self.replaced: dict[bytes, bytes] = {}
        self.n_replaced = 0
        self._host_port = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                host = socket.create_connection(("127.0.0.1", self._host_port))
                for source, target in ((client, host), (host, client)):
                    threading.Thread(target=self._pump, args=(source, target, source is host), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_from_host: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                for old, new in self.replaced.items() if is_from_host else ():
                    self.n_replaced += data.count(old)
                    data = data.replace(old, new)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Accept no more connections."""
        self._socket.close()


WEIGHTS = {"op": "describe_model", "arch": json.loads(SOFTMAX), "seed": 5}


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ((b'"shard_bytes": 0', b'"shard_bytes": 7'), {"op": "stats"}),
        ((b'"number": 2', b'"number": 3'), {"op": "stats"}),
        ((struct.pack("<f", 0.0) * 10, struct.pack("<f", 9.0) * 10), WEIGHTS),
    ],
    ids=["answer", "answer to another message", "weights"],
)
def test_who_is_between_the_servers_can_change_no_answer(hosts, replaced, message):
    with contextlib.closing(Middleman(hosts.at["alpha"].cluster.port)) as middleman:
        relay = relay_to(hosts, port=str(middleman.port), sslmode="disable")
        try:
            assert relay.do({"op": "start", "threads": 1, "shard_cache_bytes": 1 << 20}, [])[0]["seccomp"] is True
            middleman.replaced = dict([replaced])
            answer, blobs = relay.do(message, [])
        finally:
            relay.close()
    assert middleman.n_replaced, "the test has changed the answer"
    assert "does not come from this host" in answer["host_refused"]["message"] and not blobs
    assert answer["host_refused"]["sqlstate"] == "42501" and "verify-full" in answer["host_refused"]["hint"]


_REPLACE = """
CREATE FUNCTION mallory.forge(header text, signature text, wait boolean) RETURNS text LANGUAGE sql AS
    $$ SELECT '{"forged": true, "n_blobs": 0}' $$;
CREATE FUNCTION mallory.rows() RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    prepared record;
BEGIN
    FOR prepared IN SELECT name FROM pg_prepared_statements WHERE statement LIKE '%segment_send%' LOOP
        EXECUTE format('DEALLOCATE %I', prepared.name);
        EXECUTE format('PREPARE %I (text, text, boolean) AS SELECT mallory.forge($1, $2, $3)', prepared.name);
    END LOOP;
    RETURN 'abcd';
END $$;
"""


def test_code_of_users_at_a_host_answers_for_no_trainer(hosts):
    """Code of an index or a view there runs in the relay's session, where it could replace a prepared statement."""
    at = hosts.at["alpha"]
    user(at, "mallory")
    script(at, _REPLACE, f"GRANT USAGE ON SCHEMA mallory TO {ANALYST}", role="mallory")
    relay = relay_to(hosts)
    try:
        assert relay.do({"op": "start", "threads": 1, "shard_cache_bytes": 1 << 20}, [])[0]["seccomp"] is True
        load = {"op": "shard_load", "shard": "training:0", "key": 0, "n_x": 1, "n_y": 1, "normalizing_const": 1.0}
        columns = "mallory.rows() AS b0, '{1,1}'::int[] AS s0, 'abcd'::bytea AS b1, '{1,1}'::int[] AS s1"
        loaded, _ = relay.do({**load, "query": f"SELECT {columns} WHERE $1 IS NOT NULL"}, [])
        assert "forged" not in loaded
        answer, _ = relay.do({"op": "stats"}, [])
        assert "forged" not in answer and "host_refused" not in answer, answer
    finally:
        relay.close()
