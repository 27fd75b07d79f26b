"""Which states of a model hosts are to hold: what a visit commits, in the functions of sql/24-writer.sql."""

import itertools
import json

import psycopg2
import pytest

from madlib_mop.catalog.rows.plan import HopPlan
from tests.helpers.security.attacks import record_run, recorded_plan

pytestmark = pytest.mark.one_session

HOSTS = {"a": "alpha", "b": "beta", "c": "gamma", "-": None}
RUNS = itertools.count(101)


class Hopping:
    """A model of a recorded run. Each visit makes the next version of its state; version 0 is on this server.

    ``way`` has a letter for each visit: where its state stays, ``-`` on this server.
    """

    def __init__(self, db, way: str = "", copies: int | None = 2):
        self.db, self.run_id = db, next(RUNS)
        self.slot, self.visits = self.run_id * 1000, {}
        plan = recorded_plan("public", "out", "public.t")
        if copies is not None:
            plan["direct_hops"] = HopPlan(copies).as_json()
        record_run(db, self.run_id, db.cluster.superuser, plan=plan)
        for host in way:
            self.visit(host)

    def visit(self, host: str, **changes) -> None:
        """Commit the next visit."""
        old = max(self.visits, default=0)
        version = old + 1
        visit = {
            "old_version": old, "version": version, "digest_in": f"d{old}" if old else "d", "digest_out": f"d{version}",
            "weights_digest": f"w{version}", "epoch": version + 1, "position": 1, "segment_id": "abc-".index(host),
            "state_bytes": 9, "model_bytes": 8, "forward_parts": 1, "n_rows": 1, "attempt": 1, "started_at": "now",
        }  # fmt: skip
        self._keep("keep_visit", {**visit, **changes}, host)
        self.visits[version] = visit

    def again(self, version: int, host: str, **changes) -> None:
        """Commit that a visit was made again."""
        self._keep("keep_again", {**self.visits[version], "attempt": 2, **changes}, host)

    def _keep(self, function: str, visit: dict, host: str) -> None:
        place = {"server": HOSTS[host], "slot": self.slot if HOSTS[host] is None else None}
        connection = self.db.connect(autocommit=False)
        try:
            with connection, connection.cursor() as cursor:
                if HOSTS[host] is None:
                    row = self.slot, self.run_id, visit["version"]
                    cursor.execute("INSERT INTO madlib_mop.model_state VALUES (%s, %s, 1, %s, 0, 'state')", row)
                call = f"SELECT madlib_mop_internal.{function}(%s, 1, %s)"
                cursor.execute(call, [self.run_id, json.dumps({**visit, **place})])
        finally:
            connection.close()

    def lose(self, version: int) -> None:
        """Record that a host has lost a state."""
        self.db.rows("DELETE FROM madlib_mop.state_copy WHERE run_id = %s AND version = %s", [self.run_id, version])

    @property
    def held(self) -> list[tuple]:
        """The states that hosts are to hold: versions and hosts."""
        query = "SELECT version, server FROM madlib_mop.state_copy WHERE run_id = %s AND NOT released ORDER BY 1"
        return self.db.rows(query, [self.run_id])

    @property
    def at_home(self) -> list[int]:
        """The versions of the states on this server."""
        query = "SELECT version FROM madlib_mop.model_state WHERE run_id = %s ORDER BY 1"
        return [version for (version,) in self.db.rows(query, [self.run_id])]

    @property
    def place(self) -> tuple:
        """Where the record says that the newest state is, its version, and the version of the older one at home."""
        query = """
            SELECT state_server, state_slot, state_version, (home_state ->> 'version')::int FROM madlib_mop.model
            WHERE run_id = %s
        """
        ((server, slot, version, home),) = self.db.rows(query, [self.run_id])
        assert slot in (None, self.slot)
        return server, slot is not None, version, home

    def everything(self) -> list:
        """Return what the record has of the model, its states and its visits."""
        tables = "model", "visit", "state_copy", "model_state"
        query = "SELECT t::text FROM madlib_mop.{} t WHERE run_id = %s ORDER BY 1"
        return [self.db.rows(query.format(table), [self.run_id]) for table in tables]

    def value(self, function: str, *values) -> object:
        """Return the result of a function about the run."""
        slots = ", ".join(["%s"] * len(values))
        return self.db.value(f"SELECT madlib_mop_internal.{function}(%s, {slots})", [self.run_id, *values])


@pytest.mark.parametrize(
    "copies, way, held",
    [
        (1, "a", [1]),
        (1, "ab", [2]),
        (2, "ab", [1, 2]),
        (2, "abc", [2, 3]),
        (3, "abcab", [3, 4, 5]),
        (None, "abc", [2, 3]),
        # two segments of one host: the newest states of two hosts stay
        (2, "aa", [1, 2]),
        (2, "baa", [1, 2, 3]),
        (2, "baaa", [1, 3, 4]),
        (2, "baaac", [4, 5]),
        # more copies than hosts
        (3, "abab", [2, 3, 4]),
        # what is on this server is safe
        (2, "ab-", []),
        (2, "ab-c", [4]),
    ],
)
def test_the_newest_states_of_as_many_hosts_stay(db, copies, way, held):
    model = Hopping(db, way, copies)
    assert model.held == [(version, HOSTS[way[version - 1]]) for version in held]


def test_the_newest_state_that_was_on_this_server_stays_until_the_next_one_comes(db):
    model = Hopping(db)
    assert (model.place, model.at_home) == ((None, True, 0, None), [0])
    for host, version in (("a", 1), ("b", 2)):
        model.visit(host)
        assert (model.place, model.at_home) == ((HOSTS[host], False, version, 0), [0])
    model.visit("-")
    assert (model.place, model.at_home) == ((None, True, 3, None), [3])
    model.visit("c")
    assert (model.place, model.at_home) == (("gamma", False, 4, 3), [3])
    home = db.value("SELECT home_state FROM madlib_mop.model WHERE run_id = %s", [model.run_id])
    assert home == {
        "epoch": 4, "position": 1, "slot": model.slot, "version": 3, "state_bytes": 9, "model_bytes": 8,
        "forward_parts": 1, "digest": "d3", "weights_digest": "w3",
    }  # fmt: skip


def test_a_visit_that_another_one_came_before_changes_nothing(db):
    model = Hopping(db, "ab")
    before = model.everything()
    for changes in ({"old_version": 1}, {"digest_in": "d1"}):
        with pytest.raises(psycopg2.Error) as caught:
            model.visit("c", **changes)
        assert caught.value.pgcode == "40001"
    assert model.everything() == before


def test_a_host_is_told_what_it_may_let_go_until_it_has_done_it(db):
    model = Hopping(db, "abca")
    told = {server: model.value("released_copies", server) for server in ("alpha", "beta", "gamma")}
    assert told == {"alpha": [[1, 1]], "beta": [[1, 2]], "gamma": None}
    other = db.connect(autocommit=False)
    with other.cursor() as cursor:  # another writer tells the host
        cursor.execute("SELECT madlib_mop_internal.released_copies(%s, 'alpha')", [model.run_id])
        assert model.value("released_copies", "alpha") is None
    other.close()
    model.value("copies_gone", "beta", "[[1, 1]]")  # that one was at another host
    model.value("copies_gone", "alpha", "[[1, 1], [1, 4]]")  # the second is still needed
    assert model.value("released_copies", "alpha") is None
    assert model.value("released_copies", "beta") == [[1, 2]]
    assert model.held == [(3, "gamma"), (4, "alpha")]


@pytest.mark.parametrize(
    "way, version, host, place, held",
    [
        ("ab", 2, "b", ("beta", False, 2, 0), [(1, "alpha"), (2, "beta")]),
        ("ab", 2, "c", ("gamma", False, 2, 0), [(1, "alpha"), (2, "gamma")]),  # its segment has moved
        ("aba", 2, "c", ("alpha", False, 3, 0), [(2, "gamma"), (3, "alpha")]),
        ("abc", 1, "a", ("gamma", False, 3, 0), [(2, "beta"), (3, "gamma")]),  # it was released, and is again
    ],
)
def test_a_lost_state_that_is_made_again_changes_places_only(db, way, version, host, place, held):
    model = Hopping(db, way)
    _, visits, *_ = model.everything()
    if version > 1:
        model.lose(version)
    model.again(version, host)
    assert (model.place, model.held, model.at_home) == (place, held, [0])
    assert model.everything()[1] == visits
    digest = db.value("SELECT digest FROM madlib_mop.model WHERE run_id = %s", [model.run_id])
    assert digest == f"d{len(way)}"


@pytest.mark.parametrize(
    "version, place, held",
    [
        (3, (None, True, 3, None), [(1, "alpha"), (2, "beta")]),
        (1, ("gamma", False, 3, 1), [(1, "alpha"), (2, "beta"), (3, "gamma")]),
    ],
)
def test_a_state_that_is_made_again_on_this_server_replaces_the_older_one_there(db, version, place, held):
    model = Hopping(db, "abc", copies=3)
    if version == 3:
        model.lose(version)
    model.again(version, "-")
    assert (model.place, model.held, model.at_home) == (place, held, [version])


@pytest.mark.parametrize(
    "changes", [{"digest_out": "d9"}, {"digest_in": "d9"}, {"epoch": 9}, {"position": 2}, {"segment_id": 2}]
)
def test_a_visit_that_has_another_result_when_it_is_made_again_changes_nothing(db, changes):
    model = Hopping(db, "ab")
    model.lose(2)
    before = model.everything()
    for host in "b-":
        with pytest.raises(psycopg2.Error, match="a visit that was made again has another result") as caught:
            model.again(2, host, **changes)
        assert caught.value.pgcode == "XX001"
    assert model.everything() == before


def test_a_state_is_found_by_its_version(db):
    model = Hopping(db, "abc")
    found = {version: model.value("state_at", 1, version) for version in (0, 1, 3, 4)}
    places = {v: (at["state_server"], at["state_slot"], at["digest"]) for v, at in found.items()}
    # the one that was released is there until its host has let it go
    assert places == {
        0: (None, model.slot, "d"), 1: ("alpha", None, "d1"), 3: ("gamma", None, "d3"), 4: (None, None, None),
    }  # fmt: skip
    assert [at["state_version"] for at in found.values()] == [0, 1, 3, 4]


def test_a_dropped_run_has_no_states_at_hosts(db):
    model = Hopping(db, "abc")
    another = Hopping(db, "a")
    db.rows("DELETE FROM madlib_mop.run WHERE run_id = %s", [model.run_id])
    assert db.value("SELECT count(*) FROM madlib_mop.state_copy WHERE run_id = %s", [model.run_id]) == 0
    assert another.held == [(1, "alpha")]
