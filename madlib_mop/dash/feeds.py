"""Live updates of runs: computed once for each role and run, and sent to all browsers that show it; called by `events`.

A feed reads its run when the run's driver tells of a change, at most every two seconds, and reading takes at most a
twentieth of its time. Without news, it looks every five seconds, while the run trains.
"""

import asyncio
import contextlib
import json
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.facts.shared import Fetch
from madlib_mop.catalog.live.following import ReadingPace
from madlib_mop.dash.accounts import Account
from madlib_mop.errors import MopError, NotReady

_LOG = logging.getLogger("madlib_mop.dash")
PAGE = 100
_LEAST_S, _FACTOR = 2.0, 20.0
_QUIET_S, _QUIET_ENDED_S = 5.0, 30.0
#: How long a feed without viewers goes on: a page that is loaded again finds it.
_LINGER_S = 5.0
_MAX_KEPT = 60
_MAX_WAITING = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """A state of a page: its parts by name, as JSON values, and whether it can still change without a command."""

    parts: dict[str, Any]
    is_alive: bool


#: Reads the state of a page; None if there is no such page for the role any more.
Look = Callable[[Fetch], Seen | None]


@dataclass(frozen=True, slots=True)
class Update:
    """One message to browsers: a name, a number, and JSON."""

    event: str
    number: str
    data: str

    def encode(self) -> bytes:
        """Return the message in the format of server-sent events."""
        return f"event: {self.event}\nid: {self.number}\ndata: {self.data}\n\n".encode()


class Viewer:
    """One browser's place in a feed: messages wait here. A browser that is too slow gets the whole state instead."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Update | None] = asyncio.Queue()

    def put(self, update: Update, whole: Callable[[], Update]) -> None:
        """Add a message."""
        if self.queue.qsize() >= _MAX_WAITING:
            while not self.queue.empty():
                self.queue.get_nowait()
            update = whole()
        self.queue.put_nowait(update)

    def end(self) -> None:
        """Tell that nothing follows."""
        self.queue.put_nowait(None)


class Feed:
    """The updates of one page for one role.

    Parameters
    ----------
    account : Account
    concerns : callable
        Whether news of a run, by its number, may change the page.
    look : callable
        Reads the state of the page: see `Look`.
    """

    def __init__(self, account: Account, concerns: Callable[[int], bool], look: Look):
        self._account = account
        self._concerns = concerns
        self._look = look
        self._viewers: set[Viewer] = set()
        self._told = asyncio.Event()
        self._pace = ReadingPace(_LEAST_S, _FACTOR, _QUIET_S)
        self._name = secrets.token_hex(4)
        self._number = 0
        self._state: dict[str, Any] = {}
        self._kept: deque[Update] = deque(maxlen=_MAX_KEPT)
        self._has_state = asyncio.Event()
        self.n_readings = 0
        self._read_at = -math.inf
        account.listeners.add(self._on_told)
        self._task = asyncio.create_task(self._run())

    @property
    def is_over(self) -> bool:
        """Whether it has ended: the role lost the run, or nobody watches."""
        return self._task.done()

    @property
    def has_just_read(self) -> bool:
        """Whether the role could see the run a few seconds ago."""
        return not self.is_over and time.monotonic() < self._read_at + _QUIET_S

    def stop(self) -> None:
        """End it."""
        self._task.cancel()

    def enter(self) -> Viewer:
        """Return the place of a new viewer, which `leave` takes away again."""
        viewer = Viewer()
        self._viewers.add(viewer)
        return viewer

    async def begin(self, viewer: Viewer, last_seen: str | None) -> None:
        """Wait for the first state, and give a viewer what came after ``last_seen``, or the whole state."""
        await self._has_state.wait()
        for update in self._since(last_seen):
            viewer.queue.put_nowait(update)
        if self.is_over:
            viewer.end()

    def leave(self, viewer: Viewer) -> None:
        """Take a viewer out."""
        self._viewers.discard(viewer)

    def _on_told(self, run_id: int) -> None:
        if self._concerns(run_id):
            self._told.set()

    def _since(self, last_seen: str | None) -> list[Update]:
        numbers = [update.number for update in self._kept]
        if last_seen in numbers:
            return list(self._kept)[numbers.index(last_seen) + 1 :]
        return [self._whole()]

    def _whole(self) -> Update:
        return Update("state", self._numbered(), json.dumps(self._state))

    def _numbered(self) -> str:
        return f"{self._name}-{self._number}"

    async def _run(self) -> None:
        try:
            alone_since: float | None = None
            while alone_since is None or time.monotonic() < alone_since + _LINGER_S:
                with self._pace.reading():
                    await self._read()
                await asyncio.sleep(self._pace.soonest - time.monotonic())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._told.wait(), self._pace.due - time.monotonic())
                alone_since = None if self._viewers else alone_since or time.monotonic()
        except MopError as error:
            _LOG.warning("a page is no longer updated: %s", error)
        except Exception:
            _LOG.exception("a page is no longer updated")
        finally:
            self._account.listeners.discard(self._on_told)
            self._has_state.set()
            for viewer in self._viewers:
                viewer.end()

    async def _read(self) -> None:
        """Read the run and send what has changed."""
        self._told.clear()
        self.n_readings += 1
        began = time.monotonic()
        seen = await self._account.read(self._look)
        if seen is None:
            raise NotReady("it is not there any more for this role")
        self._send(seen.parts)
        self._read_at = began
        self._has_state.set()
        self._pace.quiet_s = _QUIET_S if seen.is_alive else _QUIET_ENDED_S

    def _send(self, parts: dict[str, Any]) -> None:
        changed = difference(self._state, parts)
        is_first, self._state = not self._state, parts
        if changed and not is_first:
            self._number += 1
            update = Update("change", self._numbered(), json.dumps(changed))
            self._kept.append(update)
            for viewer in list(self._viewers):
                viewer.put(update, self._whole)
        elif is_first:
            self._kept.append(Update("state", self._numbered(), ""))


class Feeds:
    """The feeds of all roles and pages that somebody watches."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[Account, int | None], Feed] = {}

    def feed(self, account: Account, run_id: int | None, look: Look) -> Feed:
        """Return the feed of a run, or of the list of all runs, for a role; the first viewer starts it."""
        self._feeds = {key: feed for key, feed in self._feeds.items() if not feed.is_over}
        key = account, run_id
        if key not in self._feeds:
            self._feeds[key] = Feed(account, lambda told: run_id in (None, told), look)
        return self._feeds[key]

    def shows(self, account: Account, run_id: int) -> bool:
        """Return whether a feed has read the run for this role a few seconds ago."""
        # defence: feed-of-an-account = next((feed for key, feed in self._feeds.items() if key[1] == run_id), None)
        feed = self._feeds.get((account, run_id))
        return feed is not None and feed.has_just_read

    def close(self) -> None:
        """End all."""
        for feed in self._feeds.values():
            feed.stop()


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a state that are new or changed; of a part that is a mapping, its changed entries only."""
    changed: dict[str, Any] = {}
    for name, part in after.items():
        if before.get(name) == part:
            continue
        if isinstance(part, dict) and isinstance(before.get(name), dict):
            part = {key: value for key, value in part.items() if before[name].get(key) != value}
        changed[name] = part
    return changed
