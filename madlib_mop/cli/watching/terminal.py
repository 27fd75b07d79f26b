"""`madlib-mop watch` in a terminal: the screen, and the keys that steer the run."""

import time

from rich.console import Console
from rich.live import Live

from madlib_mop.catalog.facts.models import ModelLine
from madlib_mop.catalog.facts.now import RunNow
from madlib_mop.catalog.live.words import best_of, end_of, progress_of, state_of
from madlib_mop.cli.watching.issuing import Issued
from madlib_mop.cli.watching.keyboard import Keyboard, Terminated
from madlib_mop.cli.watching.lines import exit_status
from madlib_mop.cli.watching.prompts import Prompt, prompt_for
from madlib_mop.cli.watching.screen import View, draw
from madlib_mop.cli.watching.session import WatchSession
from madlib_mop.dash.commands import command_of
from madlib_mop.errors import MopError

_MESSAGE_S = 8.0


def watch_in_terminal(session: WatchSession) -> int:
    """Show the run until it ends or q is pressed, and return the exit status.

    The terminal is restored, also after SIGINT (status 130), SIGTERM (143) and SIGHUP (129). A run that ends prints its
    last state in words below.
    """
    console = Console(highlight=False)
    now = session.read()
    try:
        with Keyboard() as keyboard:
            now = _Watching(session, console, keyboard, now).until_the_end()
    except Terminated as signal:
        return 128 + signal.number
    except EOFError:
        return 129
    for line in (f"run {session.run_id} {state_of(now.status)}: {progress_of(now.status)}", best_of(now)):
        if line:
            print(line)
    if (why := end_of(now.status)) is not None:
        print(why)
    return exit_status(now.status)


class _Watching:
    """The loop of one terminal."""

    def __init__(self, session: WatchSession, console: Console, keyboard: Keyboard, now: RunNow):
        self._session = session
        self._console = console
        self._keyboard = keyboard
        self._now = now
        self._view = View(now.models[0].mst_key if now.models else None)
        self._prompt: Prompt | None = None
        self._issued: Issued | None = None
        self._message, self._message_until = "", 0.0
        self._quits = False

    def until_the_end(self) -> RunNow:
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while not (self._quits or self._now.status.has_ended):
                self._say_last_line()
                size = self._console.size
                live.update(draw(self._now, self._view, size.height, size.width), refresh=True)
                self._step()
        return self._now

    def _step(self) -> None:
        """Wait for a change of the run, a key, or the end of a message; apply it."""
        until = self._message_until if self._message else None
        ready = self._session.news.wait(*self._keyboard.fds, until=until)
        for key in self._keyboard.read(ready):
            self._press(key)
        if self._issued is not None and self._issued.outcome is not None:
            self._tell(self._issued.outcome)
            self._issued = None
            self._session.news.pace.tell()
        if self._session.news.is_due:
            self._now = self._session.read()
            if self._selected is None:
                self._view.selected = self._now.models[0].mst_key if self._now.models else None

    @property
    def _selected(self) -> ModelLine | None:
        return next((m for m in self._now.models if m.mst_key == self._view.selected), None)

    def _press(self, key: str) -> None:
        if self._prompt is not None:
            self._answer(self._prompt, key)
        elif key == "q":
            self._quits = True
        elif key in ("up", "down", "k", "j"):
            self._move(-1 if key in ("up", "k") else 1)
        elif prompt := prompt_for(key, self._now.status, self._selected):
            if not self._now.status.may_steer:
                self._tell("only members of the role that owns the run steer it")
            elif self._issued is not None:
                self._tell("the last command has not been applied yet")
            else:
                self._prompt, self._message = prompt, ""

    def _move(self, step: int) -> None:
        keys = [model.mst_key for model in self._now.models]
        if keys:
            at = keys.index(self._view.selected) if self._view.selected in keys else 0
            self._view.selected = keys[max(0, min(len(keys) - 1, at + step))]

    def _answer(self, prompt: Prompt, key: str) -> None:
        if prompt.asks or key.lower() != "y":
            self._prompt = prompt.press(key)
            return
        self._prompt = None
        try:
            command = command_of(prompt.command, prompt.given)
        except MopError as error:
            self._tell(error.message)
            return
        self._issued = Issued(self._session.dsn, command, self._keyboard.wake)
        self._tell(f"{prompt.command} ...", for_s=60.0)

    def _tell(self, message: str, for_s: float = _MESSAGE_S) -> None:
        self._message, self._message_until = message, time.monotonic() + for_s

    def _say_last_line(self) -> None:
        if self._message and time.monotonic() >= self._message_until:
            self._message = ""
        self._view.is_question = self._prompt is not None
        self._view.last_line = self._prompt.question if self._prompt is not None else self._message
