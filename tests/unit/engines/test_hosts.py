"""Distribution of segments over places, and clock differences; without a server."""

from dataclasses import replace

import psycopg
import pytest

from madlib_mop.catalog.rows.plan import ShardAccess, ShardPlan
from madlib_mop.driver.data.host_checks import OPTIONAL, clock_problem, missing_backends
from madlib_mop.driver.evaluation.evaluations import places_of
from madlib_mop.engines.base.dealing import Carrier, deal
from madlib_mop.engines.base.interface import HERE, SegmentLocation
from madlib_mop.engines.hosts.connections import HostLogin, offset_beyond, reason
from tests.helpers.unit.rows import a_plan, packed

ALPHA, BETA, GAMMA = SegmentLocation("alpha"), SegmentLocation("beta"), SegmentLocation("gamma")


def dealt(carriers, total):
    return [str(segment.place) for segment in deal([Carrier(*c) for c in carriers], total)]


def test_a_total_is_dealt_in_turn():
    """Four segments on three hosts: the first host gets the fourth segment."""
    assert dealt([(ALPHA, 1), (BETA, 9), (GAMMA, 1)], 4) == ["alpha", "beta", "gamma", "alpha"]
    assert dealt([(ALPHA, 4), (BETA, 4)], 1) == ["alpha"]


def test_without_a_total_each_gets_what_it_carries():
    """Each host gets one segment before a larger host gets its others."""
    assert dealt([(ALPHA, 3), (BETA, 1), (HERE, 2)], None) == ["alpha", "beta", "here", "alpha", "here", "alpha"]


def test_a_clock_is_off_by_what_the_way_does_not_explain():
    """A remote time between two local times may be correct."""
    assert offset_beyond(10.0, 10.4, 10.5) == 0.0
    assert offset_beyond(10.0, 7.0, 10.5) == -3.0
    assert offset_beyond(10.0, 13.5, 10.5) == 3.0
    assert "3.0 s behind" in clock_problem("alpha", -3.0).message


def test_a_reason_tells_no_address_and_no_password():
    """libpq's message about a failed login contains host, port and user."""
    import psycopg

    login = HostLogin("alpha", "me", {"host": "10.1.2.3", "port": "5499", "user": "bob", "password": "s3cret"}, True)
    text = (
        'connection failed: connection to server at "10.1.2.3", port 5499 failed:'
        ' FATAL:  password authentication failed for user "bob"'
    )
    said = reason(psycopg.OperationalError(text), login)
    assert said == "password authentication failed for user <user>"


@pytest.mark.parametrize("server", [None, "alpha"])
def test_validation_rows_are_evaluated_where_they_are(server):
    """By the worker of the same segment, unless it is on another server and another worker is near."""

    def at(*segments):
        shards = tuple(ShardPlan(s, 1, 8, place=p and ShardAccess("SELECT", p)) for s, p in segments)
        return replace(packed([]), segments=shards)

    training, validation = at((0, server), (1, "beta")), at((0, "beta"), (1, "beta"), (5, server))
    plan = replace(a_plan(), training=training, validation=validation)
    assert places_of(plan) == {
        0: [("training", 0), ("validation", 5)],
        1: [("training", 1), ("validation", 0), ("validation", 1)],
    }


@pytest.mark.parametrize(
    "theirs, ours, missing",
    [({}, {}, None), ({"jax": "1"}, {}, None), ({"torch": "2"}, {"jax": "1", "torch": "2"}, "jax"),
     ({}, {"jax": "1", "torch": "2"}, "jax, torch")],
)  # fmt: skip
def test_backends_that_only_this_server_has_are_told(theirs, ours, missing):
    told = missing_backends(dict.fromkeys(OPTIONAL) | theirs, dict.fromkeys(OPTIONAL) | ours)
    assert told == missing or f"no package {missing}, which" in told


@pytest.mark.parametrize("text, line", [
    ("server closed the connection unexpectedly\n\tThis probably means the server terminated abnormally\n"
     "\tbefore or while processing the request.\n", "server closed the connection unexpectedly"),
    ('connection failed: connection to server at "10.0.0.1", port 5432 failed: timeout expired\n'
     'Multiple connection attempts failed. All failures were:\n- connection to server at "10.0.0.2", port 5432 failed:'
     " Connection refused\n", "Connection refused"),
])  # fmt: skip
def test_a_message_of_several_lines_is_cut_to_the_one_that_says_what_happened(text, line):
    assert reason(psycopg.OperationalError(text), HostLogin("alpha", "anna", {}, True)).endswith(line)
