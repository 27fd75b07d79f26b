"""The states of a run that hosts hold, as a writer session uses them: it brings each to the trainer that needs it.

Called by `mop_backend.writer`. A state goes from the host that holds it to the segment's host directly (`hops`). This
session draws the ticket, and has a relay to each of the two hosts. Where the two cannot connect, the state goes through
this session, as all states do that are on this server; nothing depends on a direct connection.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mop_backend.channels import HostLost, HostRefused, Remote
from mop_backend.frames import Blob, Check, Frame, Header, SomeBlob
from mop_backend.hops import TOO_LONG, HopFailed, Pulled, StateLost, answer_s, fetch
from mop_backend.messages import BadMessage, Detour, Hopped, StatesOffered, of_answer
from mop_backend.process import ChildDied
from mop_backend.refusals import checked, readable
from mop_backend.states import NewStates, States, Trainer

if TYPE_CHECKING:
    from mop_backend.record import RunRecord

_TICKET_BYTES = 32
#: How often a request is sent until all its states arrive; each time, another host or another way is tried.
_MOST_ROUNDS = 20
#: Relays to other hosts that stay open: with the schedule rotation, a model always comes from the same host.
_MOST_RELAYS = 4
#: For how long states go through this session after a direct connection has failed: doubled from time to time.
_FIRST_DETOUR_S, _LONGEST_DETOUR_S = 30.0, 600.0
_MOST_REASON = 200  # characters; a host sends it
#: What a request says about the way on which a state comes: not part of the task.
_OF_THE_WAY = ("n_blobs", "has_state")


class Away(Exception):
    """The host that holds a state cannot be reached."""

    def __init__(self, server: str, message: str):
        super().__init__(message)
        self.server, self.message = server, message


class Gone(Exception):
    """A host does not hold states that the record names."""

    def __init__(self, server: str, mst_keys: Sequence[int]):
        super().__init__(server)
        self.server, self.mst_keys = server, tuple(mst_keys)


class Offered(NamedTuple):
    """What a host offers: the ticket, where it listens, and the members whose states these are."""

    ticket: bytes
    place: tuple[str, int, str | None]
    members: list[int]


class Reply(NamedTuple):
    """A trainer's answer, and its blobs; whether the new states are held; how long it took to have the old ones."""

    answer: Header
    blobs: Sequence[Blob]
    held: bool = False
    pull_s: float = 0.0


class HostStates(States):
    """The states of a run of which hosts may hold some.

    Parameters
    ----------
    record : RunRecord
    run_id : int
    own : str or None
        The foreign server of the segment's host; None if the trainer is on this server.
    connect : callable
        Opens a relay to a server; its second argument is called while something waits for the relay, and its
        exceptions end the wait.
    """

    def __init__(self, record: RunRecord, run_id: int, own: str | None, connect: Callable[[str, Check], Remote]):
        super().__init__(record)
        self._run_id, self._own, self._connect = run_id, own, connect
        self._relays: dict[str, Remote] = {}
        # By host to which the segment's host could not connect: until when it does not try to, and the last pause.
        self._detours: dict[str, tuple[float, float]] = {}
        self._told: list[Detour] = []
        self._kept: set[str] = set()  # digests of states that the segment's session has from its last evaluation
        self._until = 0.0  # when the host that is asked must have answered

    def bring(
        self, models: Sequence[Header | None], n_parts: Sequence[int | None]
    ) -> list[Iterable[SomeBlob]]:
        """As `States.bring`; none for a model whose state is at a host."""
        return super().bring([None if is_at_host(model) else model for model in models], n_parts)

    def train(
        self,
        trainer: Trainer,
        request: Header,
        models: Sequence[Header | None],
        blobs: Iterable[SomeBlob],
        new: NewStates | None,
    ) -> tuple[Header, Iterable[SomeBlob], dict[str, float]]:
        """As `States.train`. Raises Away and Gone too."""
        if new is None and not any(map(is_at_host, models)):
            return super().train(trainer, request, models, blobs, new)
        reply = self.ask(trainer, request, models, list(blobs), [None] * len(models), new)
        if new is not None and not reply.held:
            raise BadMessage("its states are not those of which it says the digests")
        if not reply.pull_s >= 0.0:
            raise BadMessage("the time in which its states came is no time")
        return reply.answer, reply.blobs, {"pull_s": reply.pull_s}

    def evaluate(
        self, trainer: Trainer, request: Header, models: Sequence[Header | None], blobs: Iterable[SomeBlob]
    ) -> Header:
        """As `States.evaluate`. Raises Away and Gone too."""
        if not any(map(is_at_host, models)):
            return super().evaluate(trainer, request, models, blobs)
        n_parts = [None if model is None else model["forward_parts"] for model in models]
        return self.ask(trainer, request, models, list(blobs), n_parts).answer

    def let_go(self, trainer: Trainer) -> None:
        """As `States.let_go`, and remove these states from the record."""
        if self._own is None:
            return
        released = self._record.released_copies(self._own)
        if released:
            checked(trainer.ask({"op": "let_go", "run_id": self._run_id, "states": released}))
            self._record.copies_gone(self._own, released)

    def close(self) -> None:
        """As `States.close`; end the relays to other hosts."""
        self._kept = set()
        for relay in self._relays.values():
            relay.stop()
        self._relays.clear()

    def new_detours(self) -> tuple[Detour, ...]:
        """As `States.new_detours`."""
        told, self._told = self._told, []
        return tuple(told)

    def ask(
        self,
        trainer: Trainer,
        request: Header,
        models: Sequence[Header | None],
        blobs: Sequence[SomeBlob],
        n_parts: Sequence[int | None],
        new: NewStates | None = None,
    ) -> Reply:
        """Send a request about models whose states are at hosts, or that leaves the new ones there; return the answer.

        Parameters
        ----------
        trainer : channel
        request : dict
            To train or to evaluate.
        models : sequence of dict or None
            The rows of the members' models.
        blobs : sequence
            Of the members whose states, or start weights, are on this server.
        n_parts : sequence of int or None
            How many leading parts of each state are needed; None for all.
        new : NewStates or None, optional
            If the new states stay at the segment's host. There are no blobs then.

        Raises
        ------
        Away, Gone, Refused, BadMessage, and what channels raise
        """
        task = None if new is None else _task_of(request, new)
        versions = None if new is None else new.versions
        for _ in range(_MOST_ROUNDS):
            servers = self._servers_of(models)
            direct = [server for server in servers if self._goes_directly(server)]
            offers = self._offers(direct, models, n_parts, trainer.demands_tls)
            if offers is None:
                continue  # a host cannot offer anything: its states come through this session
            come = self._fetch([server for server in servers if server not in direct], models, n_parts)
            header, all_blobs = _with_blobs(request, blobs, come)
            if self._own is None:
                return Reply(*checked(trainer.ask(header, all_blobs)))
            sources, pulls = self._sources(models, n_parts, come, offers)
            if task is None and not pulls and not any(sources):
                return Reply(*checked(trainer.ask(header, all_blobs)))
            hop = {"run_id": self._run_id, "sources": sources, "pulls": pulls, "task": task, "versions": versions}
            if not self._serve(offers):
                continue
            try:
                fields, parts = checked(trainer.ask({**header, "hop": hop}, all_blobs))
                hopped = of_answer(Hopped, fields)
            except BaseException:
                self._drop(offers)  # they may still wait for the segment's host
                raise
            if hopped.answer is None or hopped.adopted:
                self._drop(offers)
            else:
                self._served(offers)
            if hopped.failed is not None:
                if hopped.pull not in range(len(offers)):
                    raise BadMessage("it has pulled from another host")
                self._take_detour(list(offers)[hopped.pull], hopped.failed)
                continue
            for server in offers:
                self._detours.pop(server, None)
            if hopped.answer is None:
                self._check_absent(hopped.absent, models, sources)
                continue
            self._kept = {source["keeps"] for source in sources if source and "keeps" in source}
            return Reply(*checked((readable(hopped.answer), parts)), hopped.held, hopped.pull_s)
        raise BadMessage("the states that it needs do not arrive")

    def _servers_of(self, models: Sequence[Header | None]) -> list[str]:
        """Return the other hosts that hold states of the models."""
        found = dict.fromkeys(model["state_server"] for model in models if model is not None)
        return [server for server in found if server not in (None, self._own)]

    def _goes_directly(self, server: str) -> bool:
        """Return whether the segment's host is to get a state from another host directly."""
        return self._own is not None and time.monotonic() >= self._detours.get(server, (0.0, 0.0))[0]

    def _take_detour(self, server: str, reason: str) -> None:
        """Let states from another host come through this session for some time."""
        assert self._own is not None, "it has tried to connect"
        if server not in self._detours:
            self._told.append(Detour(server, self._own, reason[:_MOST_REASON]))
        last_s = self._detours.get(server, (0.0, _FIRST_DETOUR_S / 2))[1]
        pause_s = min(2 * last_s, _LONGEST_DETOUR_S)
        self._detours[server] = time.monotonic() + pause_s, pause_s

    def _offers(
        self,
        servers: Sequence[str],
        models: Sequence[Header | None],
        n_parts: Sequence[int | None],
        demands_tls: bool,
    ) -> dict[str, Offered] | None:
        """Let hosts offer the states that the segment's host needs; return None if one cannot offer any, or only
        without TLS, which the connections of this server to one of the two demand."""
        offers: dict[str, Offered] = {}
        for server in servers:
            members = [n for n, m in enumerate(models) if m is not None and m["state_server"] == server]
            members = [n for n in members if self._key(models[n], n_parts[n]) not in self._kept]
            if not members:
                continue
            ticket = os.urandom(_TICKET_BYTES)
            states = [{"name": self._name(models[n]), "n_parts": n_parts[n]} for n in members]
            request = {"op": "offer", "run_id": self._run_id, "states": states, "ticket": ticket.hex()}
            fields, _ = self._ask_other(server, request)
            try:
                answer = of_answer(StatesOffered, fields)
            except BadMessage:
                answer = StatesOffered(failed="its answer is malformed")
            absent = [n for n in answer.absent if n in range(len(members))]
            if absent:
                self._drop(offers)
                raise Gone(server, [_key_of(models[members[n]]) for n in absent])
            failed, place = answer.failed, answer.place
            needs_tls = demands_tls or self._relays[server].demands_tls
            if place is not None and place[2] is None and needs_tls:  # defence: tls-of-a-hop
                failed = "its server has no TLS, which a connection of this server to one of the two hosts demands"
            if failed is not None or place is None:
                self._drop(offers if place is None else [*offers, server])
                self._take_detour(server, failed or "its answer is malformed")
                return None
            offers[server] = Offered(ticket, place, members)
        return offers

    def _fetch(
        self, servers: Sequence[str], models: Sequence[Header | None], n_parts: Sequence[int | None]
    ) -> dict[int, list[Blob]]:
        """Return the parts of states that come through this session, by member. Raises Away and Gone."""
        found: dict[int, list[Blob]] = {}
        for number, model in enumerate(models):
            if model is None or model["state_server"] not in servers:
                continue
            server, n_bytes = model["state_server"], model["state_bytes"]
            ask = partial(self._ask_other, server, n_bytes=n_bytes)
            try:
                found[number] = fetch(ask, self._name(model), self._expected(model, n_parts[number]), n_parts[number])
            except StateLost:
                raise Gone(server, [_key_of(model)]) from None
            except HopFailed as failure:
                raise Away(server, str(failure)) from None
        return found

    def _sources(
        self,
        models: Sequence[Header | None],
        n_parts: Sequence[int | None],
        come: dict[int, list[Blob]],
        offers: dict[str, Offered],
    ) -> tuple[list[Header | None], list[Header]]:
        """Return where the segment's session finds the state of each member, and what it pulls (`segment`)."""
        sources: list[Header | None] = []
        for number, model in enumerate(models):
            if model is None or model["state_server"] is None or number in come:
                sources.append(None)
                continue
            key = self._key(model, n_parts[number])
            if model["state_server"] == self._own:
                sources.append({"held": self._name(model), "n_parts": n_parts[number]})
            elif key in self._kept:
                sources.append({"kept": key, "keeps": key})
            else:
                pull = list(offers).index(model["state_server"])
                pulled = [pull, offers[model["state_server"]].members.index(number)]
                sources.append({"pulled": pulled, "keeps": key} if n_parts[number] else {"pulled": pulled})
        pulls = []
        for offered in offers.values():
            states = [list(self._expected(models[n], n_parts[n])) for n in offered.members]
            pulls.append({"place": list(offered.place), "ticket": offered.ticket.hex(), "states": states})
        return sources, pulls

    def _check_absent(
        self, absent: Sequence[int], models: Sequence[Header | None], sources: Sequence[Header | None]
    ) -> None:
        """Continue after the segment's session lacks states. Raises Gone for those that its host should hold."""
        could_lack = [n for n, source in enumerate(sources) if source and ("held" in source or "kept" in source)]
        if not absent or not set(absent) <= set(could_lack):  # defence: absent-states = not absent
            raise BadMessage("it lacks states that it was sent")
        gone = [_key_of(models[n]) for n in absent if "held" in (sources[n] or {})]
        if gone:
            assert self._own is not None, "only a host holds states"
            raise Gone(self._own, gone)
        self._kept = set()  # another session evaluated them

    def _ask_other(self, server: str, request: Header, n_bytes: int = 0) -> Frame:
        """Ask another host, about a state of so many bytes. Raises Away if it cannot be reached, or does not answer in
        time."""
        self._until = time.monotonic() + answer_s(n_bytes)
        is_open = server in self._relays and self._relays[server].alive
        try:
            if not is_open:
                while len(self._relays) >= _MOST_RELAYS:
                    self._drop([next(iter(self._relays))])
                self._relays[server] = self._connect(server, self._check_time)
            return checked(self._relays[server].ask(request))
        except HostLost as loss:
            self._drop([server])
            if is_open:  # the host may have restarted since
                return self._ask_other(server, request, n_bytes)
            raise Away(server, str(loss)) from None
        except BaseException:
            self._drop([server])
            raise

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise HostLost(TOO_LONG)

    def _serve(self, servers: Iterable[str]) -> bool:
        """Let hosts wait for the segment's host; return False if one was lost meanwhile."""
        self._until = time.monotonic() + answer_s(0)
        try:
            for server in servers:
                self._relays[server].send({"op": "serve", "run_id": self._run_id})
        except HostLost:
            self._drop(servers)
            return False
        return True

    def _served(self, servers: Iterable[str]) -> None:
        """Read the last answers of hosts that have sent states."""
        self._until = time.monotonic() + answer_s(0)
        for server in servers:
            try:
                self._relays[server].receive()
            except (HostLost, HostRefused, ChildDied):  # the state has arrived
                self._drop([server])

    def _drop(self, servers: Iterable[str]) -> None:
        """End the relays to hosts; what they offer ends too."""
        for server in servers:
            relay = self._relays.pop(server, None)
            if relay is not None:
                relay.stop()

    def _name(self, model: Header | None) -> list[int | str]:
        assert model is not None, "it has a state"
        return [self._run_id, model["mst_key"], model["state_version"], model["digest"]]

    def _key(self, model: Header | None, n_parts: int | None) -> str:
        assert model is not None, "it has a state"
        return f"{model['digest']} {n_parts}"

    def _expected(self, model: Header | None, n_parts: int | None) -> Pulled:
        assert model is not None, "it has a state"
        return Pulled(model["digest"] if n_parts is None else None, model["state_bytes"])


def is_at_host(model: Header | None) -> bool:
    """Return whether a host holds a model's newest state."""
    return model is not None and model["state_server"] is not None


def _key_of(model: Header | None) -> int:
    assert model is not None, "it has a state"
    mst_key: int = model["mst_key"]
    return mst_key


def _task_of(request: Header, new: NewStates) -> str:
    """Return the SHA-256 of what a request asks for, whatever way its states take: an equal one gives the same bits."""
    members = [
        None if member is None else {name: value for name, value in member.items() if name not in _OF_THE_WAY}
        for member in request["members"]
    ]
    text = json.dumps([{**request, "members": members}, new.versions, new.origin], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _with_blobs(
    request: Header, blobs: Sequence[SomeBlob], come: dict[int, list[Blob]]
) -> tuple[Header, list[SomeBlob]]:
    """Return a request with the parts of further states, which belong to members by their numbers."""
    if not come:
        return request, list(blobs)
    rest, found, members = list(blobs), list[SomeBlob](), list(request["members"])
    for number, member in enumerate(members):
        if number in come:
            members[number] = {**member, "n_blobs": len(come[number]), "has_state": True}
            found += come[number]
        elif member is not None:
            found += rest[: member["n_blobs"]]
            rest = rest[member["n_blobs"] :]
    return {**request, "members": members}, found
