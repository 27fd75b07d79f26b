"""States stay at the host where they were trained, and hop from there to the host that trains next."""

import contextlib
import hashlib
import json
import secrets
import threading

import pytest
from mop_backend.messages import (
    EvaluateRequest,
    Hopped,
    ModelStart,
    StatesOffered,
    TrainRequest,
    as_request,
    of_answer,
)

from tests.helpers.hosts import ANALYST, relay_to, serving_tls
from tests.helpers.security.attacks import SOFTMAX
from tests.hosts.test_segments import refused

ROWS = """
SELECT pg_catalog.decode(pg_catalog.repeat('0000803f00000040', 32 * 4), 'hex') AS b0, '{4,8,8,1}'::int[] AS s0,
       pg_catalog.decode(pg_catalog.repeat('0000803f' || pg_catalog.repeat('00', 36), 4), 'hex') AS b1,
       '{4,10}'::int[] AS s1
WHERE $1 IS NOT NULL
"""
SHARD = {"shard": "training:0", "key": 0, "n_x": 1, "n_y": 1, "normalizing_const": 1.0}
LOAD = {"op": "shard_load", "query": ROWS, **SHARD}
START = {"op": "start", "threads": 1, "shard_cache_bytes": 1 << 20}
MODEL = {
    "arch": json.loads(SOFTMAX), "compile_params": "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)'",
    "fit_params": "batch_size=4, epochs=1", "seed": 5, "mst_key": 1, "custom": None,
}  # fmt: skip
RUN = 7


@pytest.fixture
def connect(hosts):
    """The function that returns a relay to a host; with ``trains``, with a trainer that has the rows."""
    with contextlib.ExitStack() as stack:

        def connected(name, trains=True, **changes):
            relay = relay_to(hosts, name, **changes)
            stack.callback(relay.close)
            if trains:
                assert "error" not in relay.do(START, [])[0]
                assert relay.do(LOAD, [])[0]["n_rows"] == 4
            return relay

        yield connected
    for at in hosts.at.values():
        at.rows("UPDATE madlib_mop.held_state SET coordinator = NULL")


def train(relay, epoch=1, version=1, state=None, n_blobs=0, blobs=(), pulls=(), task=None, **hop):
    """Make a visit whose new state is held at the relay's host; return what the session answers."""
    start = ModelStart(MODEL, n_blobs=n_blobs, has_state=bool(n_blobs), digest=None if state is None else state[3])
    header = as_request(TrainRequest((start,), "training:0", epoch, 0))
    task = task or hashlib.sha256(json.dumps(header).encode()).hexdigest()
    hop = {"run_id": RUN, "sources": [None], "pulls": list(pulls), "task": task, "versions": [[1, version]], **hop}
    answer, sent = relay.do({**header, "hop": hop}, list(blobs))
    assert not sent
    return of_answer(Hopped, answer)


def figures_of(hopped):
    return hopped.answer["members"][0]["figures"]


def named(hopped, version=1):
    """Return the name of the state of an answer."""
    return [RUN, 1, version, figures_of(hopped)["digest_out"]]


def parts_of(relay, name):
    """Return the parts of a held state."""
    parts = []
    while True:
        answer, blobs = relay.do({"op": "held_part", "run_id": RUN, "state": name, "part": len(parts)}, [])
        parts += blobs
        if len(parts) == answer["n_parts"]:
            return parts


def is_held(relay, name):
    return relay.do({"op": "held_part", "run_id": RUN, "state": name, "part": 0}, [])[0] != {}


def keep_only(relay, names, runs):
    assert relay.do({"op": "keep_only", "run_id": RUN, "states": names, "runs": runs}, [])[0] == {}


def offer(relay, name, ticket, n_parts=None):
    states = [{"name": name, "n_parts": n_parts}]
    return of_answer(
        StatesOffered, relay.do({"op": "offer", "run_id": RUN, "states": states, "ticket": ticket.hex()}, [])[0]
    )


@contextlib.contextmanager
def served(relay, name, n_parts=None):
    """Offer a state while the context is open; yield what another host needs to get it."""
    ticket = secrets.token_bytes(32)
    place = offer(relay, name, ticket, n_parts).place
    answers = []
    thread = threading.Thread(target=lambda: answers.append(relay.do({"op": "serve", "run_id": RUN}, [])[0]))
    thread.start()
    yield {"place": list(place), "ticket": ticket.hex(), "states": [[None if n_parts else name[3], 1 << 20]]}
    thread.join()
    assert answers == [{}]


def test_a_state_hops_to_another_host_with_the_bits_of_the_old_way(hosts, connect):
    logs = {name: len(hosts.at[name].cluster.log_tail(1 << 20)) for name in ("alpha", "beta")}
    alpha, beta, keeper = connect("alpha"), connect("beta"), connect("alpha", trains=False)
    first = train(alpha)
    assert (first.held, first.adopted) == (True, False)
    state = named(first)
    with served(keeper, state) as pull:
        source = {"pulled": [0, 0]}
        second = train(beta, epoch=2, version=2, state=state, pulls=[pull], sources=[source])
    assert second.held and figures_of(second)["digest_in"] == state[3]
    # the old way: the state goes through the coordinator
    parts = parts_of(keeper, state)
    assert hashlib.sha256(b"".join(parts)).hexdigest() == state[3]
    by_us = train(beta, epoch=2, version=2, state=state, n_blobs=len(parts), blobs=parts, task="another")
    assert named(by_us, 2) == named(second, 2)
    # and where it is
    third = train(alpha, epoch=2, version=2, state=state, sources=[{"held": state, "n_parts": None}])
    assert named(third, 2) == named(second, 2)
    for name, length in logs.items():
        assert "Traceback" not in hosts.at[name].cluster.log_tail(1 << 20)[length:]


def test_a_state_is_evaluated_elsewhere_and_nothing_stays_there(hosts, connect):
    alpha, beta, keeper = connect("alpha"), connect("beta"), connect("alpha", trains=False)
    state = named(train(alpha))
    n_held = hosts.at["beta"].value("SELECT count(*) FROM madlib_mop.held_state WHERE lengths IS NOT NULL")
    header = as_request(EvaluateRequest((ModelStart(MODEL, digest=state[3]),), "training:0"))

    def evaluated(relay, sources, pulls=()):
        hop = {"run_id": RUN, "sources": sources, "pulls": list(pulls), "task": None, "versions": None}
        return relay.do({**header, "hop": hop}, [])[0]["answer"]["members"][0]["loss"]

    here = evaluated(alpha, [{"held": state, "n_parts": None}])
    with served(keeper, state) as pull:
        there = evaluated(beta, [{"pulled": [0, 0], "keeps": state[3]}], [pull])
    assert here == there == evaluated(beta, [{"kept": state[3]}])
    assert hosts.at["beta"].value("SELECT count(*) FROM madlib_mop.held_state WHERE lengths IS NOT NULL") == n_held


def test_a_request_that_was_done_is_not_done_again(connect):
    """Its answer was lost: the state and the answer are adopted, in another session too."""
    first = train(connect("alpha"))
    again = train(connect("alpha"))
    assert again.adopted and again.held and again.answer == first.answer
    assert not train(connect("alpha"), epoch=2).adopted


@pytest.mark.parametrize("damage", ["UPDATE {} SET data = '\\x00' WHERE part = 0", "DELETE FROM {} WHERE part = 0"])
def test_a_damaged_state_is_made_again_and_not_adopted(hosts, connect, damage):
    alpha, at = connect("alpha"), hosts.at["alpha"]
    state = named(train(alpha))
    number = "SELECT number FROM madlib_mop.held_state WHERE coordinator IS NOT NULL"
    at.rows(damage.format(f"madlib_mop.held_part_{at.value(number)}"))
    again = train(alpha)
    assert not again.adopted and named(again) == state
    assert hashlib.sha256(b"".join(parts_of(alpha, state))).hexdigest() == state[3]


def test_default_privileges_give_nobody_rights_to_the_tables_of_states(hosts, connect):
    alpha, at = connect("alpha"), hosts.at["alpha"]
    at.rows("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC")
    at.rows(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {ANALYST}")
    try:
        count, epoch = "SELECT count(*) FROM madlib_mop.held_state", 1
        before = at.value(count)
        while at.value(count) == before:  # it uses empty ones first
            train(alpha, epoch=epoch, version=epoch)
            epoch += 1
    finally:
        at.rows(f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC, {ANALYST}")
    newest = at.value("SELECT max(number) FROM madlib_mop.held_state")
    table = f"'madlib_mop.held_part_{newest}'::regclass"
    others = f"SELECT count(*) FROM pg_class, aclexplode(relacl) a WHERE pg_class.oid = {table} AND grantee <> relowner"
    assert at.value(others) == 0


def test_a_state_that_is_let_go_takes_no_disk_and_its_table_is_used_again(hosts, connect):
    alpha, at = connect("alpha"), hosts.at["alpha"]
    keep_only(alpha, [], [RUN])
    first, second = named(train(alpha)), named(train(alpha, epoch=2, version=2), 2)
    n_tables = at.value("SELECT count(*) FROM madlib_mop.held_state")
    alpha.do({"op": "let_go", "run_id": RUN, "states": [[1, 1]]}, [])
    assert (is_held(alpha, first), is_held(alpha, second)) == (False, True)
    assert at.value("SELECT count(*) FROM madlib_mop.held_state WHERE lengths IS NULL") == n_tables - 1
    named(train(alpha, epoch=3, version=3), 3)
    assert at.value("SELECT count(*) FROM madlib_mop.held_state") == n_tables
    keep_only(connect("alpha", trains=False), [second], [RUN])
    held = at.rows("SELECT mst_key, version FROM madlib_mop.held_state WHERE coordinator IS NOT NULL")
    assert held == [(1, 2)]
    # members of the extension, so a dump leaves them out
    members = "SELECT objid FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'"
    tables = "SELECT oid FROM pg_class WHERE relname LIKE 'held_part_%' AND relkind = 'r'"
    assert at.value(f"SELECT count(*) FROM ({tables} EXCEPT {members}) AS t") == 0


@pytest.mark.parametrize("runs", [[RUN], []])
def test_a_sweep_that_arrives_late_lets_no_newer_state_go(connect, runs):
    """The driver does not wait long for it, and the run goes on meanwhile."""
    late, alpha = connect("alpha", trains=False), connect("alpha")
    state = named(train(alpha))
    keep_only(late, [], runs)
    assert is_held(alpha, state)
    keep_only(connect("alpha", trains=False), [], runs)
    assert not is_held(alpha, state)


def test_a_sweep_that_arrives_late_lets_no_adopted_state_go(connect):
    state = named(train(connect("alpha")))
    late = connect("alpha", trains=False)
    assert train(connect("alpha")).adopted
    keep_only(late, [], [RUN])
    assert is_held(late, state)


def test_a_state_that_a_session_reads_is_emptied_later(hosts, connect):
    alpha, at = connect("alpha"), hosts.at["alpha"]
    state = named(train(alpha))
    (number,) = at.rows("SELECT number FROM madlib_mop.held_state WHERE coordinator IS NOT NULL AND version = 1")[0]
    reader = at.connect()
    reader.cursor().execute(f"BEGIN; SELECT count(*) FROM madlib_mop.held_part_{number}")
    alpha.do({"op": "let_go", "run_id": RUN, "states": [[1, 1]]}, [])
    assert not is_held(alpha, state)
    assert at.value(f"SELECT count(*) > 0 FROM madlib_mop.held_part_{number}")
    reader.cursor().execute("ROLLBACK")
    alpha.do({"op": "let_go", "run_id": RUN, "states": []}, [])
    reader.close()
    assert at.value(f"SELECT count(*) FROM madlib_mop.held_part_{number}") == 0


def test_a_state_that_is_not_held_is_said_to_be_absent(connect):
    alpha = connect("alpha")
    state = [RUN, 1, 1, "0" * 64]
    assert offer(alpha, state, bytes(32)) == StatesOffered(absent=(0,))
    assert train(alpha, epoch=2, state=state, sources=[{"held": state, "n_parts": None}]) == Hopped(absent=(0,))
    assert alpha.do({"op": "serve", "run_id": RUN}, [])[0] == {"failed": "nothing is offered"}


@contextlib.contextmanager
def unreadable(at, sqlstate):
    """Have a state at a host that nobody can read: a view raises the error of a page that is damaged."""
    number = at.value("SELECT number FROM madlib_mop.held_state WHERE coordinator IS NOT NULL")
    table = f"madlib_mop.held_part_{number}"
    at.rows(
        "CREATE FUNCTION public.damaged() RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'invalid page'"
        f" USING ERRCODE = '{sqlstate}'; END $$"
    )
    at.rows(f"ALTER TABLE {table} RENAME TO held_part_away")
    at.rows(f"CREATE VIEW {table} AS SELECT part, public.damaged() AS data FROM madlib_mop.held_part_away")
    try:
        yield
    finally:
        at.rows(f"DROP VIEW {table}")
        at.rows(f"ALTER TABLE madlib_mop.held_part_away RENAME TO held_part_{number}")
        at.rows("DROP FUNCTION public.damaged()")


@pytest.mark.parametrize("sqlstate", ["XX000", "XX001", "42501", "58030"])
@pytest.mark.parametrize("way", ["sent", "fetched", "read"])
def test_a_state_that_cannot_be_read_is_lost(hosts, connect, way, sqlstate):
    """It is made again from the one before: no failure of the model."""
    alpha, beta, keeper = connect("alpha"), connect("beta"), connect("alpha", trains=False)
    state = named(train(alpha))
    with unreadable(hosts.at["alpha"], sqlstate):
        if way == "sent":
            ticket = secrets.token_bytes(32)
            place = list(offer(keeper, state, ticket).place)
            pull = {"place": place, "ticket": ticket.hex(), "states": [[state[3], 1 << 20]]}
            answers = []
            thread = threading.Thread(target=lambda: answers.append(keeper.do({"op": "serve", "run_id": RUN}, [])[0]))
            thread.start()
            assert train(beta, epoch=2, state=state, pulls=[pull], sources=[{"pulled": [0, 0]}]).failed
            thread.join()
            assert answers == [{"failed": "a state cannot be read"}]
        elif way == "fetched":
            assert not is_held(keeper, state)
        else:
            sources = [{"held": state, "n_parts": None}]
            assert train(alpha, epoch=2, state=state, sources=sources) == Hopped(absent=(0,))
        assert not is_held(keeper, state)
    again = train(alpha)
    assert not again.adopted and named(again) == state and is_held(keeper, state)


@pytest.mark.parametrize("sqlstate", ["57014", "57P01"])
def test_a_state_that_was_not_read_because_of_a_cancel_is_not_lost(hosts, connect, sqlstate):
    alpha, reader = connect("alpha"), connect("alpha", trains=False)
    state = named(train(alpha))
    with unreadable(hosts.at["alpha"], sqlstate):
        answer, _ = reader.do({"op": "held_part", "run_id": RUN, "state": state, "part": 0}, [])
        assert "host_lost" in answer
    assert is_held(connect("alpha", trains=False), state)


def test_a_host_that_cannot_be_reached_is_an_answer_and_the_trainer_works_on(connect):
    alpha, beta, keeper = connect("alpha"), connect("beta"), connect("alpha", trains=False)
    state = named(train(alpha))
    place = list(offer(keeper, state, bytes(32)).place)
    keeper.close()  # its session ends, and does not listen any more
    pull = {"place": place, "ticket": bytes(32).hex(), "states": [[state[3], 1 << 20]]}
    answer = train(beta, epoch=2, state=state, pulls=[pull], sources=[{"pulled": [0, 0]}])
    assert answer.pull == 0 and answer.failed
    assert train(beta).held


def test_hops_use_tls_where_the_server_does(hosts, connect):
    with serving_tls(hosts.at["alpha"].cluster):
        alpha, beta = connect("alpha", sslmode="require"), connect("beta")
        keeper = connect("alpha", trains=False, sslmode="require")
        state = named(train(alpha))
        with served(keeper, state) as pull:
            assert len(pull["place"][2]) == 64
            assert train(beta, epoch=2, state=state, pulls=[pull], sources=[{"pulled": [0, 0]}]).held


def test_tickets_are_in_no_log(hosts, connect):
    for name in ("alpha", "beta"):
        hosts.at[name].rows(f"ALTER ROLE {ANALYST} SET log_min_duration_statement = 0")
        hosts.at[name].rows("ALTER SYSTEM SET log_statement = 'all'")
        hosts.at[name].rows("SELECT pg_reload_conf()")
    try:
        alpha, beta, keeper = connect("alpha"), connect("beta"), connect("alpha", trains=False)
        state = named(train(alpha))
        with served(keeper, state) as pull:
            train(beta, epoch=2, state=state, pulls=[pull], sources=[{"pulled": [0, 0]}])
        logs = "".join(hosts.at[name].cluster.log_tail(100_000) for name in ("alpha", "beta"))
        assert '"op": "offer"' in logs.replace('""', '"') and pull["ticket"] not in logs
    finally:
        for name in ("alpha", "beta"):
            hosts.at[name].rows(f"ALTER ROLE {ANALYST} RESET log_min_duration_statement")
            hosts.at[name].rows("ALTER SYSTEM RESET log_statement")
            hosts.at[name].rows("SELECT pg_reload_conf()")


def test_users_of_the_host_reach_no_state(hosts, connect):
    train(connect("alpha"))
    connection = hosts.at["alpha"].connect(ANALYST)
    assert refused(connection, "SELECT madlib_mop_calls.segment_as_owner()").pgcode == "42501"
    tables = [name for (name,) in hosts.at["alpha"].rows("SELECT 'held_part_' || number FROM madlib_mop.held_state")]
    for table in ("held_state", *tables):
        assert refused(connection, f"SELECT * FROM madlib_mop.{table}").pgcode == "42501"
    connection.close()


def test_a_coordinator_sees_no_state_of_another(hosts, connect):
    state = named(train(connect("alpha")))
    hosts.at["alpha"].rows("INSERT INTO madlib_mop.coordinator (coordinator, key) VALUES ('another', sha256('key'))")
    hosts.at["alpha"].rows("UPDATE madlib_mop.held_state SET coordinator = 'another'")
    alpha = connect("alpha", trains=False)
    assert not is_held(alpha, state)
    alpha.do({"op": "let_go", "run_id": RUN, "states": [[1, 1]]}, [])
    keep_only(alpha, [], [])
    assert hosts.at["alpha"].value("SELECT count(*) FROM madlib_mop.held_state WHERE coordinator = 'another'") > 0
    # what it has there, nobody needs when it is no coordinator any more: the next session empties the tables
    hosts.at["alpha"].rows("DELETE FROM madlib_mop.coordinator WHERE coordinator = 'another'")
    alpha.do({"op": "let_go", "run_id": RUN, "states": []}, [])
    assert hosts.at["alpha"].value("SELECT count(*) FROM madlib_mop.held_state WHERE lengths IS NOT NULL") == 0
