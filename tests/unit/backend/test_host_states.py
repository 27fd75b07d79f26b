"""States that hosts hold: a writer brings each to the trainer that needs it, directly or through itself."""

import json
import sys
import time
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
from mop_backend import hops, messages, process, refusals, seals
from mop_backend.messages import BadMessage, Hopped, StatesOffered

_PLPY = ModuleType("plpy")
_PLPY.SPIError = _PLPY.Error = Exception
with mock.patch.dict(sys.modules, {"plpy": _PLPY}):  # of the module's imports
    from mop_backend import host_states
    from mop_backend.channels import HostLost, HostRefused, Remote

RUN = 7
OWN, A, B = "own", "alpha", "beta"


class Network:
    """Hosts that hold states, and what goes wrong between them.

    Attributes
    ----------
    held : dict
        Of each host, the parts of each state by its name.
    down, mute, unreachable, damaged, with_tls, demanding : set of str
        Hosts that cannot be reached by anybody, that cannot listen, that the segment's host cannot connect to, that
        send other bytes than they were given, that have a certificate, and to which only TLS may be used.
    log : list of (str, str)
        The requests to hosts.
    """

    def __init__(self):
        self.held = {server: {} for server in (OWN, A, B, *"cdef")}
        self.down, self.mute, self.unreachable, self.damaged = set(), set(), set(), set()
        self.with_tls, self.demanding = set(), set()
        self.log = []
        self.relays = []

    def connect(self, server, check_time):
        self.relays.append(Relay(self, server))
        self.relays[-1].check_time = check_time
        return self.relays[-1]

    def model(self, key, server, parts=(b"ab", b"c"), n_forward=1):
        """Return the row of a model whose newest state a host holds, or this server if that is None."""
        digest = seals.digest_of_all(parts)
        row = {"mst_key": key, "state_version": 3, "digest": digest, "state_server": server, "forward_parts": n_forward}
        if server is not None:
            self.held[server][RUN, key, 3, digest] = list(parts)
        return {**row, "state_bytes": sum(map(len, parts))}

    def asked(self, op):
        """Return the hosts that were asked for something, in order."""
        return [server for server, asked in self.log if asked == op]

    @property
    def listening(self):
        """The hosts that wait for the segment's host."""
        return [relay.server for relay in self.relays if relay.alive and relay.serves]


class Relay:
    """A relay to a host, with a session there as `mop_backend.segment` has."""

    def __init__(self, network, server):
        self.network, self.server = network, server
        self.alive, self.offer, self.serves = True, None, False
        self.lost_at, self.refused_at = set(), set()  # requests during which the connection is lost, or that fail
        self.demands_tls = server in network.demanding

    def ask(self, request, blobs=()):
        self._reached(request["op"])
        held = self.network.held[self.server]
        if request["op"] == "held_part":
            parts = held.get(tuple(request["state"]))
            if parts is None:
                return {}, []
            part = parts[request["part"]]
            return {"n_parts": len(parts)}, [b"?" * len(part) if self.server in self.network.damaged else part]
        assert request["op"] == "offer" and not self.serves
        names = [tuple(state["name"]) for state in request["states"]]
        absent = [number for number, name in enumerate(names) if name not in held]
        if absent:
            return messages.to_json(StatesOffered(absent=tuple(absent))), []
        if self.server in self.network.mute:
            return messages.to_json(StatesOffered(failed="there is no free port")), []
        self.offer = request
        certificate = "ab" * 32 if self.server in self.network.with_tls else None
        return messages.to_json(StatesOffered((self.server, self.network.relays.index(self), certificate))), []

    def send(self, request):
        self._reached(request["op"])
        assert request["op"] == "serve" and self.offer is not None
        self.serves = True

    def receive(self):
        assert self.serves, "each answer is read once"
        self.serves = False
        self._reached("answer of serve")
        return {}, []

    def stop(self):
        self.alive = self.serves = False

    def _reached(self, op):
        self.network.log.append((self.server, op))
        if self.server in self.network.down or op in self.lost_at:
            self.alive = False
            raise HostLost("the connection was refused")
        if op in self.refused_at:
            raise HostRefused({"sqlstate": "XX000", "message": "an error"})


class Trainer:
    """The segment's session and its trainer, which answers with the states that it got, by member.

    Parameters
    ----------
    network : Network
    server : str or None
        Its host.
    """

    def __init__(self, network, server=OWN):
        self.network, self.server = network, server
        self.requests, self.kept, self.changes = [], {}, {}
        self.error, self.says = None, None  # the trainer's error; what the session says in place of all
        self.demands_tls = server in network.demanding

    def ask(self, header, blobs=()):
        self.requests.append(header)
        hop = header.get("hop")
        if self.says is not None:
            return {**messages.to_json(Hopped()), **self.says}, []
        assert self.server is not None or hop is None, "a trainer on this server gets all states with the request"
        sources = hop["sources"] if hop else [None] * len(header["members"])
        pulled = []
        for number, one in enumerate(hop["pulls"] if hop else ()):
            server, port, _ = one["place"]
            relay = self.network.relays[port]
            if server in self.network.unreachable or not relay.serves:
                return messages.to_json(Hopped(failed="no route to host" * 50, pull=number)), []
            assert one["ticket"] == relay.offer["ticket"] and len(one["ticket"]) == 64
            held = self.network.held[server]
            states = [held[tuple(s["name"])][: s["n_parts"]] for s in relay.offer["states"]]
            assert len(states) == len(one["states"])
            for state, (digest, n_bytes) in zip(states, one["states"], strict=True):
                assert digest in (None, seals.digest_of_all(state)) and sum(map(len, state)) <= n_bytes
            pulled.append(states)
        kept, self.kept, found, absent, rest = self.kept, {}, [], [], list(blobs)
        for number, (member, source) in enumerate(zip(header["members"], sources, strict=True)):
            if member is None:
                found.append(None)
                continue
            parts = None
            if source is None:
                parts, rest = rest[: member["n_blobs"]], rest[member["n_blobs"] :]
                assert member["has_state"] or not parts
            elif "held" in source:
                parts = self.network.held[OWN].get(tuple(source["held"]))
                parts = parts and parts[: source["n_parts"]]
            elif "kept" in source:
                parts = kept.get(source["kept"])
            else:
                parts = pulled[source["pulled"][0]][source["pulled"][1]]
            if parts is None:
                absent.append(number)
            if source is not None and "keeps" in source:
                self.kept[source["keeps"]] = parts
            found.append(parts)
        assert not rest
        if absent:
            return messages.to_json(Hopped(absent=tuple(absent))), []
        answer = {"got": found} if self.error is None else {"error": self.error}
        if hop is None:
            return answer, []
        return messages.to_json(Hopped(answer, held=hop["task"] is not None, **self.changes)), []

    ask_in_turn = ask


@pytest.fixture
def network():
    return Network()


def request_of(models, n_blobs=0, epoch=2):
    """Return a request about models; those of this server come with ``n_blobs`` each."""
    own = {"has_state": bool(n_blobs), "n_blobs": n_blobs}
    away = {"has_state": False, "n_blobs": 0}
    members = [
        None if m is None else {"digest": m["digest"], **(own if m["state_server"] is None else away)} for m in models
    ]
    return {"op": "train", "members": members, "shard": "training:0", "epoch": epoch}


def states_at(network, own=OWN):
    return host_states.HostStates(mock.Mock(), RUN, own, network.connect)


def reply_to(states, trainer, models, blobs=(), stays=True, n_blobs=0, epoch=2, origin="a run"):
    """Train models whose new states stay; without ``stays``, they come with the answer."""
    versions = [None if m is None else (m["mst_key"], m["state_version"] + 1) for m in models]
    new = host_states.NewStates(versions, origin) if stays else None
    header = request_of(models, n_blobs, epoch)
    return states.ask(trainer, header, models, blobs, [None] * len(models), new)


def ask(*args, **options):
    return reply_to(*args, **options).answer


def evaluate(states, trainer, models):
    return states.ask(trainer, request_of(models), models, [], [m["forward_parts"] for m in models]).answer


def test_a_state_at_the_own_host_is_read_there(network):
    trainer = Trainer(network)
    reply = reply_to(states_at(network), trainer, [network.model(1, OWN)])
    assert reply.answer["got"] == [[b"ab", b"c"]] and reply.held and not network.log


def test_a_state_at_another_host_goes_directly_with_a_ticket_of_its_own(network):
    states, trainer = states_at(network), Trainer(network)
    for key in (1, 2):
        assert ask(states, trainer, [network.model(key, A)])["got"] == [[b"ab", b"c"]]
    assert len(network.relays) == 1, "the relay is kept"
    tickets = {request["hop"]["pulls"][0]["ticket"] for request in trainer.requests}
    assert len(tickets) == 2 and not network.listening and network.asked("held_part") == []


def test_states_of_several_models_come_from_where_each_is(network):
    models = [
        network.model(1, A, [b"1", b"one"]), None, network.model(2, None, [b"2"]), network.model(3, B, [b"3"]),
        network.model(4, A, [b"4"]), network.model(5, OWN, [b"5"]),
    ]  # fmt: skip
    expected = [[b"1", b"one"], None, [b"2"], [b"3"], [b"4"], [b"5"]]
    trainer = Trainer(network)
    assert ask(states_at(network), trainer, models, [b"2"], n_blobs=1)["got"] == expected
    assert [len(one["states"]) for one in trainer.requests[0]["hop"]["pulls"]] == [2, 1]
    network.unreachable = {A}  # those come through this session, in their places
    assert ask(states_at(network), Trainer(network), models, [b"2"], n_blobs=1)["got"] == expected
    assert network.asked("held_part") == [A, A, A]


def test_a_trainer_on_this_server_gets_states_with_the_request(network):
    trainer = Trainer(network, None)
    answer = ask(states_at(network, None), trainer, [network.model(1, A)], stays=False)
    assert answer == {"got": [[b"ab", b"c"]]} and network.asked("offer") == []


@pytest.mark.parametrize("problem", ["mute", "unreachable"])
def test_what_cannot_go_directly_goes_through_this_session_in_the_same_visit(network, problem):
    setattr(network, problem, {A})
    states = states_at(network)
    assert ask(states, Trainer(network), [network.model(1, A)])["got"] == [[b"ab", b"c"]]
    assert network.asked("held_part") == [A, A] and not network.listening
    assert ask(states, Trainer(network), [network.model(2, A)])["got"] == [[b"ab", b"c"]]
    assert network.asked("offer") == [A], "the other way is not tried each time"


def test_where_hosts_do_not_connect_the_direct_way_is_tried_from_time_to_time(network, monkeypatch):
    """After 30 s, then after pauses that double. It is told once."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(host_states, "time", clock)
    states, network.unreachable = states_at(network), {A}
    tried = []
    for clock.now in (0, 29, 31, 89):
        before = len(network.asked("offer"))
        assert ask(states, Trainer(network), [network.model(1, A)])["got"] == [[b"ab", b"c"]]
        tried.append(len(network.asked("offer")) - before)
    assert tried == [1, 0, 1, 0]
    (detour,) = states.new_detours()
    assert (detour.sender, detour.receiver, len(detour.reason)) == (A, OWN, 200)
    network.unreachable, clock.now = set(), 92
    ask(states, Trainer(network), [network.model(1, A)])
    assert len(network.asked("offer")) == 3 and states.new_detours() == ()


def test_a_state_that_no_host_has_is_gone(network):
    away, here = network.model(1, A), network.model(2, OWN)
    network.held[A].clear()
    network.held[OWN].clear()
    with pytest.raises(host_states.Gone) as gone:
        ask(states_at(network), Trainer(network), [network.model(3, A), away])
    assert (gone.value.server, gone.value.mst_keys) == (A, (1,))
    with pytest.raises(host_states.Gone) as gone:
        ask(states_at(network), Trainer(network), [here])
    assert (gone.value.server, gone.value.mst_keys) == (OWN, (2,))
    with pytest.raises(host_states.Gone) as gone:
        ask(states_at(network, None), Trainer(network, None), [away], stays=False)
    assert (gone.value.server, gone.value.mst_keys) == (A, (1,))


@pytest.mark.parametrize("sent", [[b"ab", b"X"], [], [b"ab", b"cd"], [b"ab", b"c", b"d"]])
def test_another_state_than_the_recorded_one_is_gone(network, sent):
    """Also if a host sends no parts, or no end of them."""
    model = network.model(1, A)
    network.held[A] = dict.fromkeys(network.held[A], sent)
    network.unreachable = {A}
    relay_ask = Relay.ask

    def no_part(relay, request, blobs=()):
        if request["op"] == "held_part" and request["part"] >= len(sent):
            return {"n_parts": 1 << 40}, []
        return relay_ask(relay, request, blobs)

    with mock.patch.object(Relay, "ask", no_part), pytest.raises(host_states.Gone):
        ask(states_at(network), Trainer(network), [model])


@pytest.mark.parametrize("own", [OWN, None])
def test_a_host_that_cannot_be_reached_is_named(network, own):
    network.down = {B}
    models = [network.model(1, A), network.model(2, B)]
    with pytest.raises(host_states.Away, match="refused") as away:
        ask(states_at(network, own), Trainer(network, own), models, stays=False)
    assert away.value.server == B
    network.down = set()
    assert ask(states_at(network, own), Trainer(network, own), models, stays=False)["got"] == [[b"ab", b"c"]] * 2


def test_a_host_that_is_lost_before_it_serves_is_asked_again(network):
    states = states_at(network)
    ask(states, Trainer(network), [network.model(1, A)])
    network.relays[0].lost_at = {"serve"}
    assert ask(states, Trainer(network), [network.model(2, A)])["got"] == [[b"ab", b"c"]]
    assert len(network.relays) == 2 and not network.relays[0].alive


def test_a_host_that_has_restarted_is_asked_again_once(network):
    states = states_at(network)
    ask(states, Trainer(network), [network.model(1, A)])
    network.relays[0].lost_at = {"offer"}
    assert ask(states, Trainer(network), [network.model(2, A)])["got"] == [[b"ab", b"c"]]
    network.down = {A}
    with pytest.raises(host_states.Away):
        ask(states, Trainer(network), [network.model(3, A)])
    assert len(network.relays) == 3 and not any(relay.alive for relay in network.relays)


@pytest.mark.parametrize("how", ["lost_at", "refused_at"])
def test_a_state_that_has_arrived_counts_although_its_sender_is_lost(network, how):
    states = states_at(network)
    ask(states, Trainer(network), [network.model(1, A)])
    setattr(network.relays[0], how, {"answer of serve"})
    assert ask(states, Trainer(network), [network.model(2, A)])["got"] == [[b"ab", b"c"]]
    assert ask(states, Trainer(network), [network.model(3, A)])["got"] == [[b"ab", b"c"]]
    assert len(network.relays) == 2


def test_nobody_waits_for_a_host_that_has_needed_nothing(network):
    """It had done the request before: the new state is adopted. Or it has failed."""
    states, trainer = states_at(network), Trainer(network)
    trainer.changes = {"adopted": True}
    assert reply_to(states, trainer, [network.model(1, A)]).held and not network.listening
    trainer.error = {"sqlstate": "53200", "message": "not enough memory"}
    with pytest.raises(refusals.Refused, match="not enough memory"):
        ask(states, trainer, [network.model(1, A)])
    assert not network.listening

    def dies(header, blobs=()):
        raise process.ChildDied(-9, "")

    trainer.ask = dies
    with pytest.raises(process.ChildDied):
        ask(states, trainer, [network.model(1, A)])
    assert not network.listening


def test_leading_parts_are_pulled_once_for_several_evaluations(network):
    states, trainer, models = states_at(network), Trainer(network), [network.model(1, A), network.model(2, OWN)]
    for _ in range(3):
        assert evaluate(states, trainer, models)["got"] == [[b"ab"], [b"ab"]]
    assert network.asked("offer") == [A]
    trainer.kept = {}  # its session has done something else
    assert evaluate(states, trainer, models)["got"] == [[b"ab"], [b"ab"]]
    states.close()
    assert evaluate(states, trainer, models)["got"] == [[b"ab"], [b"ab"]]
    assert network.asked("offer") == [A] * 3
    assert ask(states, trainer, models)["got"] == [[b"ab", b"c"]] * 2, "a visit needs all parts"


def test_few_relays_stay_open(network):
    states, trainer = states_at(network), Trainer(network)
    for key, server in enumerate([A, B, *"cdef"]):
        ask(states, trainer, [network.model(key, server)])
    assert [relay.server for relay in network.relays if relay.alive] == list("cdef")
    states.close()
    assert not any(relay.alive for relay in network.relays)


def test_a_task_is_what_is_asked_for_whatever_way_the_state_takes(network):
    def task(server, version=3, **changes):
        trainer = Trainer(network)
        model = {**network.model(1, server), "state_version": version}
        if server is not None:
            network.held[server][RUN, 1, version, model["digest"]] = [b"ab", b"c"]
        blobs, n_blobs = ([b"ab", b"c"], 2) if server is None else ([], 0)
        ask(states_at(network), trainer, [model], blobs, n_blobs=n_blobs, **changes)
        return trainer.requests[-1]["hop"]["task"]

    tasks = {task(OWN), task(A), task(None)}
    network.unreachable = {B}
    assert {task(B)} == tasks and len(tasks) == 1
    others = {task(OWN, version=4), task(OWN, epoch=3), task(OWN, origin="a run with the same number")}
    assert len(tasks | others) == 4


@pytest.mark.parametrize("demanding", [A, OWN])
def test_no_state_goes_directly_without_tls_where_a_connection_demands_it(network, demanding):
    network.demanding = {demanding}
    states = states_at(network)
    assert ask(states, Trainer(network), [network.model(1, A)])["got"] == [[b"ab", b"c"]]
    assert network.asked("held_part") == [A, A] and not network.listening
    (detour,) = states.new_detours()
    assert (detour.sender, detour.receiver) == (A, OWN) and "TLS" in detour.reason
    network.with_tls = {B}
    trainer = Trainer(network)
    ask(states, trainer, [network.model(2, B)])
    assert trainer.requests[-1]["hop"]["pulls"]


@pytest.mark.parametrize(
    "options, expected",
    [({"sslmode": mode}, mode in ("require", "verify-ca", "verify-full"))
     for mode in ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")]
    + [({}, False), ({"sslrootcert": "system"}, True), ({"sslrootcert": "ca.pem"}, False)]
    + [({name: mode}, mode == "require")
       for name in ("channel_binding", "gssencmode") for mode in ("disable", "prefer", "require")],
)  # fmt: skip
def test_a_mapping_demands_tls(options, expected):
    with mock.patch.object(process.Child, "__init__", return_value=None), mock.patch.object(Remote, "send"):
        assert Remote(lambda: None, A, {"options": options}, RUN).demands_tls is expected


def test_what_a_trainer_says_is_not_taken_for_what_its_session_says(network):
    """A trainer runs what users wrote."""
    states, trainer = states_at(network), Trainer(network)
    trainer.says = {"answer": {"held": True, "absent": [0], "failed": "no way", "pull": 0, "adopted": True}}
    reply = reply_to(states, trainer, [network.model(1, OWN)])
    assert not reply.held and reply.answer == trainer.says["answer"] and len(trainer.requests) == 1
    trainer.says = {"answer": {"error": {"message": "x" * 100_000, "sqlstate": 3}}}
    with pytest.raises(refusals.Refused) as refused:
        reply_to(states, trainer, [network.model(1, OWN)])
    assert len(str(refused.value)) < 20_000 and refused.value.error["sqlstate"] == "XX000"


@pytest.mark.parametrize(
    "says", [{"absent": [0]}, {"absent": [1]}, {"absent": [7]}, {"absent": [-1]}, {}, {"failed": "no way", "pull": 1},
             {"absent": "all"}, {"more": 1}]
)  # fmt: skip
def test_a_session_that_lacks_what_it_was_sent_is_not_believed(network, says):
    """Only a state that it has to hold, or has kept, can be absent."""
    trainer = Trainer(network)
    trainer.says = says
    with pytest.raises(BadMessage):
        ask(states_at(network), trainer, [network.model(1, A), network.model(2, None)], [b"ab", b"c"], n_blobs=2)
    assert not network.listening and len(trainer.requests) == 1


def test_a_request_is_not_sent_without_end(network):
    """Each time, the host is lost before it sends the state, and can be reached again."""
    connect = network.connect

    def connected(server, check_time):
        relay = connect(server, check_time)
        relay.lost_at = {"serve"}
        return relay

    states = host_states.HostStates(mock.Mock(), RUN, OWN, connected)
    with pytest.raises(BadMessage, match="do not arrive"):
        ask(states, Trainer(network), [network.model(1, A)])
    assert len(network.relays) < 50


@pytest.mark.parametrize(
    "offers", [{}, {"place": None, "absent": [], "failed": None}, {"place": ["a", 1], "absent": [], "failed": None},
               {"place": ["a", 1, None], "absent": [], "failed": None, "more": 1}]
)  # fmt: skip
def test_an_offer_that_is_malformed_is_none(network, offers):
    relay_ask = Relay.ask

    def answer(relay, request, blobs=()):
        found = relay_ask(relay, request, blobs)
        return (offers, []) if request["op"] == "offer" else found

    with mock.patch.object(Relay, "ask", answer):
        assert ask(states_at(network), Trainer(network), [network.model(1, A)])["got"] == [[b"ab", b"c"]]
    assert network.asked("held_part") == [A, A]


def test_a_host_that_does_not_answer_in_time_is_away(network, monkeypatch):
    """A relay calls the check while it waits."""
    relay_ask = Relay.ask

    def wait(relay, request, blobs=()):
        until = time.monotonic() + 5
        while time.monotonic() < until:
            relay.check_time()
            time.sleep(0.01)
        return relay_ask(relay, request, blobs)

    monkeypatch.setattr(hops, "_SPARE_S", 0.05)
    with mock.patch.object(Relay, "ask", wait), pytest.raises(host_states.Away, match="too long"):
        ask(states_at(network), Trainer(network), [network.model(1, A)])


def test_what_no_host_has_goes_with_the_request(network):
    record, model = mock.Mock(), network.model(1, None)
    record.state.return_value = [b"ab", b"c"]
    states = host_states.HostStates(record, RUN, OWN, network.connect)
    assert states.bring([model, None, network.model(2, A)], [1, None, None]) == [[b"ab", b"c"], [], []]
    record.state.assert_called_once_with(model, 1)
    found = states.train(Trainer(network), request_of([model], 2), [model], [b"ab", b"c"], None)
    assert found == ({"got": [[b"ab", b"c"]]}, [], {})


def test_a_host_is_told_what_it_may_let_go():
    trainer, record, log = mock.Mock(), mock.Mock(), []
    trainer.ask.side_effect = lambda request: log.append(json.loads(json.dumps(request))) or ({}, [])
    record.released_copies.return_value = [[1, 2], [3, 4]]
    record.copies_gone.side_effect = lambda *what: log.append(what)
    states = host_states.HostStates(record, RUN, OWN, None)
    states.let_go(trainer)
    assert log == [{"op": "let_go", "run_id": RUN, "states": [[1, 2], [3, 4]]}, (OWN, [[1, 2], [3, 4]])]
    record.released_copies.return_value = []
    states.let_go(trainer)
    host_states.HostStates(record, RUN, None, None).let_go(trainer)
    assert len(log) == 2
