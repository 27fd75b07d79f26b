"""The trainer process of evaluate and predict, and others like it: children of the driver's, started for each call."""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Self, TypeVar

from mop_backend.forkserver import ForkServer, backend_words
from mop_backend.frames import Blob, Frame, Header
from mop_backend.keras_backends import BackendName
from mop_backend.machine import processors
from mop_backend.messages import BadMessage, EvaluateRequest, MetricsRequest, as_request, of_answer
from mop_backend.process import TRAINER, Child, ChildDied, backend_of, use_of

from madlib_mop.driver.data.gpus import require_gpus
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import FixedSettings, read_backend, read_settings
from madlib_mop.errors import InvalidParameter, MopError, NotReady, OutOfResources, from_dict

_Answer = TypeVar("_Answer")
_SIGKILL = -9


class TrainerLate(Exception):
    """The answer of a trainer did not come in time; the trainer is of no more use."""


class LocalProcess:
    """A child of the driver's that answers requests; use it as a context manager. It is started without waiting.

    Parameters
    ----------
    child : Child
        The process; it ends with this one.
    start : dict
        Its first request.

    Raises
    ------
    MopError
        From any method: the process's error, or its death.
    """

    def __init__(self, child: Child, start: Header):
        self._child = child
        #: The answer to the first request, once another one was sent.
        self.started: Header | None = None
        try:
            self._child.send(start)
        except BaseException:
            self._child.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    @property
    def is_ready(self) -> bool:
        """Whether it has started or ended, so the next request need not wait for the start."""
        return self.started is not None or self._child.has_answer

    def await_start(self, at_most_s: float | None = None) -> Header:
        """Wait for the answer to the first request, and return it. Raises TrainerLate."""
        if self.started is None:
            self.started = {}  # an error has been the answer
            self.started, _ = self.collect(at_most_s)
        return self.started

    def post(self, header: Header, blobs: Iterable[Blob] = ()) -> None:
        """Send a request."""
        self.await_start()
        try:
            self._child.send(header, blobs)
        except ChildDied as death:
            raise _died(death) from None
        except MopError:  # one of the blobs cannot be made, and the process waits for it
            self._child.kill()
            raise

    def collect(self, at_most_s: float | None = None) -> Frame:
        """Wait for the answer to the oldest request that has one: header and blobs. Raises TrainerLate."""
        try:
            if at_most_s is not None and not self._child.await_answer(at_most_s):
                raise TrainerLate
            return _checked(self._child.receive())
        except ChildDied as death:
            raise _died(death) from None

    def ask(self, header: Header, blobs: Iterable[Blob] = (), at_most_s: float | None = None) -> Frame:
        """Send a request and wait for its answer, for at most so long. Raises TrainerLate."""
        self.post(header, blobs)
        return self.collect(at_most_s)

    def ask_for(
        self, kind: type[_Answer], request: EvaluateRequest | MetricsRequest, blobs: Iterable[Blob] = ()
    ) -> _Answer:
        """Send a request and wait for its answer, of a class of messages."""
        header, _ = self.ask(as_request(request), blobs)
        try:
            return of_answer(kind, header)
        except BadMessage as error:
            raise NotReady(f"the trainer process sent a malformed answer: {error}") from None


class LocalTrainer(LocalProcess):
    """A trainer, started without waiting for its backend; use it as a context manager.

    It may be one that has waited since another call of the role, and waits for the next call if this one has succeeded.

    Parameters
    ----------
    session : CallerSession
        Source of the settings, with the superusers' limits, as for runs. By default one thread for each core, because
        this is the only trainer.
    gpus : sequence of int
        Its visible GPUs; none by default.
    need_gpus : bool
        Whether it is an error that its backend cannot use them.
    backend : BackendName or None
        Its backend; that of the session's setting by default.
    start : dict or None
        Its start parameters, such as those of a run's trainers: then it serves this call only. None: by the settings.
    is_new : bool
        Whether it must be new, and serves this call only.

    Raises
    ------
    MopError
        From any method: the trainer's error, or its death.
    """

    def __init__(
        self,
        session: CallerSession,
        gpus: Sequence[int] = (),
        need_gpus: bool = True,
        backend: BackendName | None = None,
        start: Header | None = None,
        is_new: bool = False,
    ):
        idle_s = 0
        if start is None:
            start, idle_s = _start_of_call(session, backend)
        self._idle_s = 0 if is_new or gpus else idle_s
        start = {"op": "start", **start, "gpus": list(gpus)}
        use = use_of(session.info.role_oid, start) if self._idle_s else None
        start |= {"need_gpus": need_gpus} if gpus else {"client": os.getpid()}
        forkserver = None if gpus else ForkServer.told(session.info.forkserver, sys.executable)
        chosen = backend_of(start)
        if forkserver is not None:
            forkserver = forkserver.with_backend(chosen)
        words = backend_words(chosen)
        super().__init__(Child(TRAINER, python=sys.executable, forkserver=forkserver, words=words, use=use), start)

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._idle_s and self._is_reusable() and self._child.release(self._idle_s):
            return
        self._child.stop()

    def post(self, header: Header, blobs: Iterable[Blob] = ()) -> None:
        """Send a request. Raises MopError."""
        members = (header, *filter(None, header.get("members") or ()))
        # A trainer in which code of users runs serves this call only.
        if any((one.get("model") or {}).get("custom") for one in members):  # defence: trainers-of-one-call = False
            self._idle_s = 0
        super().post(header, blobs)

    def _is_reusable(self) -> bool:
        """Return whether it answers that it has dropped everything of this call: it owes no other answer then."""
        with suppress(MopError):
            return self.ask({"op": "reset"})[0].get("reusable") is True
        return False


def gpus_of_call(session: CallerSession, use_gpus: bool | None) -> list[int]:
    """Return the GPUs of a call's trainer: GPU 0 with ``use_gpus``. Raises Unsupported if it cannot use one."""
    if not use_gpus:
        return []
    require_gpus("use_gpus => true", read_backend(FixedSettings(session), session))
    return [0]


def start_settings(session: CallerSession, backend: BackendName | None = None) -> Header:
    """Return the start parameters of the only trainer of a call: by default, it has one thread for each core."""
    return _start_of_call(session, backend)[0]


def _start_of_call(session: CallerSession, backend: BackendName | None) -> tuple[Header, int]:
    """Return the start parameters, and for how many seconds the trainer may wait for another call."""
    fixed = FixedSettings(session)
    settings = read_settings(fixed, session, 1, use_caching=False, backend=backend)
    start = settings.trainer_start()
    is_set = "trainer_threads" in fixed.settings() or session.caller_setting("madlib_mop.trainer_threads")
    return start if is_set else {**start, "threads": processors()}, settings.trainer_idle_s


def _checked(answer: Frame) -> Frame:
    header, _ = answer
    if "error" not in header:
        return answer
    if header.get("kind") == "model":  # omit the hint, which is for training
        raise InvalidParameter(header["error"]["message"], detail=header["error"].get("detail"))
    raise from_dict(header["error"])


def _died(death: ChildDied) -> OutOfResources | NotReady:
    detail = death.last_words
    if death.returncode == _SIGKILL:
        return OutOfResources(
            "the trainer process was killed, probably because the host has no memory left",
            hint="Lower madlib_mop.trainer_memory_mb, or free memory.",
            detail=detail,
        )
    return NotReady(
        death.of_trainer,
        hint="`madlib-mop doctor` checks the installation.",
        detail=detail,
    )
