"""The scalar function madlib_mop.predict and its variants: a trainer with a cache of models, from the first call of a
session. Sessions of one role share trainers, if there are more than two.

A call asks the model's table, in the caller's own session and with the caller's rights, which version of the model
there is, and hands the numbers to the trainer. Only for a model that was not used before, or was changed, a driver is
started once, to find and check it. Nothing is written anywhere, so all this works on a standby. The session leaves the
trainer at its end, and when a call is cancelled. The trainer ends when all have left it, or after an idle time.

A session has a trainer of its own, until that ends after its idle time, if it predicts as several roles, in functions
with SECURITY DEFINER or after SET ROLE; if models of other sessions take the place of its model again and again; after
a request that takes much memory or time; and if its requests end shared trainers.

A view calls this once a row, so what a call does is counted: at most three small queries, one frame each way.

On Greenplum, a function cannot begin a statement while segments work for the query around it. There, `plan` finds and
loads the model while Greenplum plans the query. A text stands for the model in the plan, and a call with this text
runs no statement.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import plpy

from mop_backend import call, nodes, registered, rights
from mop_backend.answers import PredictedRows, Row
from mop_backend.arrays import Array
from mop_backend.challenger import ChallengedCall, Recorder, Rows
from mop_backend.forkserver import TooMany
from mop_backend.frames import Blob, Frame, Header, TooLarge, encoded, lengths_of, of_sharers
from mop_backend.interrupts import Interrupts, with_whole_cancels, without_statements
from mop_backend.predict_model import FoundModel, TableModel, VersionModel
from mop_backend.process import Child, ChildDied, backend_of, join_trainer, start_trainer, use_of
from mop_backend.refusals import INPUT, MEMORY, NOT_LOADED, NOT_SHARED
from mop_backend.registered_names import is_registered, key_beside_name
from mop_backend.spinning import Spinner
from mop_backend.sql_errors import ErrorFields, sqlstate_of

_FUNCTION = "predict"
_MAX_MODELS = 100
#: Errors that a trainer of the session's own would not have.
_KINDS_OF_SHARED = frozenset({NOT_LOADED, NOT_SHARED, MEMORY})
#: Trainers, one after the other, that may end through no fault of a request before it gets an own one.
_MOST_ENDED = 5
#: Shared trainers that may end while they work for a session, before it gets an own one.
_MOST_CRASHES = 2
_Name = tuple[str, int | None, str]  # model_table, mst_key and caller_path of a call
_Result = TypeVar("_Result")
#: Makes a request of the key by which the trainer knows the model.
Request = Callable[[str], Header | bytes]
#: Sends the trainer a request, with its blobs; returns its answer and the values.
Values = Callable[[Request, Sequence[Blob]], tuple[Header, Blob]]

_session: PredictSession | None = None
_last_error: ErrorFields | None = None
_PLANNED = "planned model "  # no name of a table begins with two words


class _Planned(NamedTuple):
    """What `plan` has found: a model, or the error for each row; with the name that the query has for it."""

    name: str
    model: FoundModel | None
    error: ErrorFields | None


_planned: collections.OrderedDict[str, _Planned] = collections.OrderedDict()


@with_whole_cancels
def predict(
    model_table: str,
    mst_key: int | None,
    inputs: Sequence[bytes | None],
    allow_null: bool | None,
    caller_path: str,
    version: str,
) -> Row | Sequence[Row | Sequence[None]] | None:
    """Predict one row, or many.

    Parameters
    ----------
    model_table : str
    mst_key : int or None
    inputs : list of bytes
        The memory of one array for each input of the model (``madlib_mop.array_bytes``).
    allow_null : bool or None
        Whether a row with a NULL element has no outputs; else that is an error.
    caller_path : str
        The caller's search_path.
    version : str
        The extension's.

    Returns
    -------
    list or None
        The outputs, side by side, of one row, or such a list for each of many, with None for each output of a row that
        has none. None for a single row that has none, and after an error, which `last_error` gives: raised here, it
        would show a traceback.
    """
    answer = _answer(model_table, mst_key, inputs, allow_null, caller_path, version)
    if answer is None:
        return None
    if answer.single:
        return answer.floats if not answer.empty else None
    nothing: Sequence[None] = [None] * answer.width
    return [nothing if i in answer.empty else answer.row(i) for i in range(answer.n_rows)]


@with_whole_cancels
def predict_texts(
    form: str,
    many: bool,
    model_table: str,
    mst_key: int | None,
    inputs: Sequence[bytes | None],
    allow_null: bool | None,
    caller_path: str,
    version: str,
    coverage: float | None = None,
) -> list[str | None] | None:
    """Predict like `predict`; return one text for each row: its class, or JSON of all classes with their values.

    Parameters
    ----------
    form : str
        ``class``, ``named``, or one of `classes.HELD_OUT_FORMS`.
    many : bool
        Whether there may be many rows.
    coverage : float or None
        Of an interval or a set of classes.

    Returns
    -------
    list of (str or None), or None
        None after an error.
    """
    answer = _answer(model_table, mst_key, inputs, allow_null, caller_path, version)
    if answer is None:
        return None
    try:
        if not (many or answer.single):
            message = f"{_FUNCTION}_{form}: x has {answer.n_rows} rows, but this function takes one"
            raise call.CallError(message, "22023", hint=f"madlib_mop.{_FUNCTION}_{form}_rows takes many.")
        text_of = answer.model.text_of(form, answer.widths, coverage=coverage)
        return [None if i in answer.empty else text_of(answer.row(i)) for i in range(answer.n_rows)]
    except Exception as error:
        note_error(error)
        return None


def plan(model_table: str, mst_key: int | None, caller_path: str, version: str) -> str:
    """Find a model and load it into the session's trainer; return a text for it, to use as ``model_table`` of a call.

    Nobody can guess the text. It is no error if there is no such model: the query may have no rows. Each call with
    the text gets the error then.
    """
    note_error(None)
    model = None
    try:
        model = session(version).load((model_table, mst_key, caller_path))
    except Exception as error:
        note_error(error)
    # defence: text-of-a-planned-model = _PLANNED + str(len(_planned))
    text = _PLANNED + os.urandom(16).hex()
    _planned[text] = _Planned(model_table, model, last_error())
    while len(_planned) > _MAX_MODELS:
        _planned.popitem(last=False)
    return text


def is_planned(model_table: str | None) -> bool:
    """Return whether this is a text of `plan`, so that nothing may begin a statement."""
    return model_table is not None and model_table.startswith(_PLANNED)


def name_of(model_table: str) -> str:
    """Return the name that the query has for a model."""
    return _planned[model_table].name if model_table in _planned else model_table


def last_error() -> ErrorFields | None:
    """Return the fields of the error of the last call, or None."""
    return _last_error


def _answer(
    model_table: str,
    mst_key: int | None,
    inputs: Sequence[bytes | None],
    allow_null: bool | None,
    caller_path: str,
    version: str,
) -> PredictedRows | None:
    note_error(None)
    try:
        arrays = [Array.read(value, _FUNCTION, allow_null) for value in inputs]
        of_this_session = session(version)
        dtypes, shapes = [array.dtype for array in arrays], [array.shape for array in arrays]

        def request(model: FoundModel) -> Request:
            model.refuse_arrays(name_of(model_table))
            return lambda key: of_this_session.header_of_arrays(key, dtypes, shapes)

        model, header, values = of_this_session.ask(
            (model_table, mst_key, caller_path),
            request,
            [array.data for array in arrays],
            any(array.nulls for array in arrays),
        )
        return PredictedRows(model, header, values, arrays)
    except Exception as error:
        note_error(error)
        return None


def session(version: str) -> PredictSession:
    """Return the state of this session; the first call makes it. Raises CallError if the versions differ."""
    global _session
    if _session is None:
        call.check_version(version)
        _session = PredictSession()
    return _session


def note_error(error: Exception | None, function: str = _FUNCTION) -> None:
    """Keep an error for `last_error`, as one of a function; None where a call begins."""
    global _last_error
    _last_error = None if error is None else call.error_fields(function, error)
    if _last_error is not None and function != _FUNCTION:  # of code that both functions use
        message = str(_last_error["message"])
        if message.startswith(f"{_FUNCTION}: "):
            _last_error = {**_last_error, "message": f"{function}: {message.removeprefix(f'{_FUNCTION}: ')}"}


class _NeedsOwn(Exception):
    """A shared trainer does not do what is requested: a trainer of the session's own does."""


class _GaveWay(_NeedsOwn):
    """Models of other sessions have taken the place of the model in a shared trainer."""


class PredictSession:
    """The models that this session has used, and its trainer."""

    def __init__(self) -> None:
        # by role too: each role reads a model with its own rights before it predicts with it
        self._models: collections.OrderedDict[tuple[_Name, str], TableModel] = collections.OrderedDict()
        self._registered: collections.OrderedDict[str, VersionModel] = collections.OrderedDict()
        self._versions = registered.Versions()
        self._recorder = Recorder()
        self._child: Child | None = None
        self._caller: tuple[int | None, int | None] | None = None  # role and login of the newest call
        self._shares = True  # a trainer with other sessions of the role
        self._limits = of_sharers(None)
        self._loaded: frozenset[str] = frozenset()
        self._has_reloaded = False  # a model into this shared trainer, where it had given way
        self._n_crashes = 0  # of shared trainers that worked for this session
        self._busy = False
        self._last_header: tuple[object, bytes] = (None, b"")

    def ask(
        self, name: _Name, request: Callable[[FoundModel], Request], blobs: Sequence[Blob], has_nulls: bool
    ) -> tuple[FoundModel, Header, Blob]:
        """Find a model and send its trainer a request to predict.

        Parameters
        ----------
        name : tuple of (str, int or None, str)
            model_table, mst_key and caller_path of the call.
        request : callable
            Returns the function that makes the request's header, for the model that was found.
        blobs : sequence of bytes-like
        has_nulls : bool
            Whether a row has a NULL element, and so no outputs.

        Returns
        -------
        tuple of (FoundModel, dict, bytes-like)
            The model, the answer's header, and the values.
        """
        observed = ChallengedCall(blobs, _rows_of if not has_nulls else lambda _: None)
        return self.use(name, lambda model, values: (model, *values(request(model), blobs)), observed)

    def use(
        self,
        name: _Name,
        work: Callable[[FoundModel, Values], _Result],
        observed: ChallengedCall | None,
        moment: rights.Moment | None = None,
    ) -> _Result:
        """Find a model and call a function with it.

        Parameters
        ----------
        name : tuple of (str, int or None, str)
            model_table, mst_key and caller_path of the call.
        work : callable
            Takes the model, and a function that sends the trainer a request to predict with it and returns its answer.
        observed : ChallengedCall or None
            For a challenger of a registered model; None if there is nothing to compare.
        moment : Moment or None
            The result of `rights.check_roles`, if the caller has checked the roles.
        """
        with self._alone():
            if is_planned(name[0]):
                model = _planned_model(name[0])
                with without_statements():
                    return work(model, partial(self._values_of_plan, model))
            if is_registered(name[0]):
                return self._use_registered(name, work, observed, moment)
            model = self._model(name, moment)
            return work(model, partial(self._values_again, model))

    def _moment(self, moment: rights.Moment | None) -> rights.Moment:
        """Return who calls, and when; a trainer that is shared for another role is left."""
        if moment is None:
            moment = rights.check_roles(plpy)  # the same check as a driver's
        if self._caller not in (None, moment.oids):  # defence: roles-of-shared-trainers
            self.share_nothing()
        self._caller = moment.oids
        return moment

    def share_nothing(self) -> None:
        """Have a trainer of this session's own from now on, until it ends after its idle time."""
        self._shares = False
        if self._child is not None and self._child.is_shared:
            self._forget_trainer()

    def load(self, name: _Name) -> FoundModel:
        """Find a model, and load it into the session's own trainer if it is not there; return it."""
        self.share_nothing()

        def loaded(model: FoundModel, values: Values) -> FoundModel:
            if self._child is None or not self._child.alive or model.key not in self._loaded:
                self._forget_if_ended()
                self._load(model)
            return model

        return self.use(name, loaded, ChallengedCall([], lambda _: None))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse predictions within this one, and raise the error for a trainer that ends."""
        if self._busy:  # defence: nested-prediction
            raise call.CallError(
                f"{_FUNCTION}: a view or policy that is read for a prediction must not call a prediction function",
                "0A000",
            )
        self._busy = True
        try:
            yield
        except ChildDied as death:
            self._forget_trainer()
            raise call.CallError(
                f"{_FUNCTION}: {death.of_trainer}",
                "53000",
                detail=death.last_words,
                hint="The next call starts a new one. Possible cause: too little memory, see "
                "madlib_mop.predict_memory_mb.",
            ) from None
        finally:
            self._busy = False

    def _values_of_plan(self, model: FoundModel, request: Request, blobs: Sequence[Blob]) -> tuple[Header, Blob]:
        """Ask the trainer; the model cannot be read again."""
        if self._child is None or model.key is None or model.key not in self._loaded:
            raise _plan_is_over()
        try:
            answer, (values,) = self._ask(request(model.key), blobs)
        except ChildDied as death:
            if not death.is_harmless:
                raise
            self._forget_trainer()  # it had exited after its idle time
            raise _plan_is_over() from None
        return answer, values

    def _values_again(self, model: FoundModel, request: Request, blobs: Sequence[Blob]) -> tuple[Header, Blob]:
        """Ask the trainer, or another one if that has ended through no known fault of this request."""
        for _ in range(_MOST_ENDED):
            try:
                return self._values(model, request, blobs)
            except ChildDied as death:
                if not death.is_harmless:
                    raise
                if self._child is not None and not self._child.is_shared:  # it had exited after its idle time
                    self._shares, self._n_crashes = True, 0
                self._forget_trainer()
        self.share_nothing()
        return self._values(model, request, blobs)

    def _values(self, model: FoundModel, request: Request, blobs: Sequence[Blob]) -> tuple[Header, Blob]:
        try:
            return self._values_there(model, request, blobs)
        except _NeedsOwn:
            self.share_nothing()
            return self._values_there(model, request, blobs)

    def _values_there(self, model: FoundModel, request: Request, blobs: Sequence[Blob]) -> tuple[Header, Blob]:
        if self._child is not None and self._child.is_shared and not model.found["shares"]:
            self._forget_trainer()
        while True:
            if self._child is None or model.key not in self._loaded:
                self._load(model)
            assert model.key is not None, "_load sets it"
            try:
                answer, (values,) = self._ask(request(model.key), blobs)
            except _GaveWay:
                if self._has_reloaded:
                    raise
                self._has_reloaded, self._loaded = True, frozenset()
            else:
                return answer, values

    def header_of_arrays(self, key: str, dtypes: list[str], shapes: list[tuple[int, ...]]) -> bytes:
        """Return the header of a request as bytes; it is the same for row after row."""
        what = (key, dtypes, shapes)
        if self._last_header[0] != what:
            header = {"op": "predict_values", "key": key, "dtypes": dtypes, "shapes": shapes}
            self._last_header = (what, encoded(header))
        return self._last_header[1]

    def _model(self, name: _Name, moment: rights.Moment | None) -> TableModel:
        """Return the current version of a model by name; a driver looks it up again if needed."""
        moment = self._moment(moment)
        place = (name, moment.role)
        model = self._models.get(place)
        if model is not None:
            if model.is_known_at(moment):
                return model
            try:
                with nodes.reading_model(plpy):
                    version = model.current_version()
            except plpy.SPIError as error:
                if sqlstate_of(error) not in _UNDEFINED_STATES:
                    raise
                version = None
            if version is not None and version == model.version:
                model.found_at(moment)
                return model
            del self._models[place]
        model_table, mst_key, caller_path = name
        arguments = {"model_table": model_table, "mst_key": mst_key}
        with nodes.reading_model(plpy):
            model = TableModel(call.ask_driver(_FUNCTION, arguments, caller_path), caller_path)
            model.version = model.current_version()
        if model.version is None:
            raise call.CallError(
                f"{_FUNCTION}: the model was changed while it was being read", "55000", hint="Call again."
            )
        self._models[place] = model
        while len(self._models) > _MAX_MODELS:
            self._models.popitem(last=False)
        return model

    def _use_registered(
        self,
        name: _Name,
        work: Callable[[FoundModel, Values], _Result],
        observed: ChallengedCall | None,
        moment: rights.Moment | None,
    ) -> _Result:
        """Do the work with the version that a name stands for in the calling statement, and with its challenger."""
        text, mst_key, _ = name
        if mst_key is not None:
            raise call.CallError(
                f"{_FUNCTION}: {key_beside_name(text, mst_key)}",
                "22023",
                hint="Pass NULL as mst_key.",
            )
        moment = self._moment(moment)
        found = self._versions.at(moment, text, _FUNCTION)
        model = self._version(found)
        result = work(model, partial(self._values_again, model))
        other = found.of_challenger()
        if other is not None and observed is not None:
            self._recorder.observe(found, observed, moment, result, lambda: self._challenge(other, work))
        return result

    def _challenge(self, other: registered.Found, work: Callable[[FoundModel, Values], _Result]) -> _Result:
        """Do the work with the challenger of an alias."""
        model = self._version(other)
        try:
            return work(model, partial(self._values_again, model))
        except ChildDied:
            self._forget_trainer()
            raise

    def _version(self, found: registered.Found) -> VersionModel:
        """Return the model of a version. A driver checks it once a session, because its content does not change."""
        model = self._registered.get(found.version_id)
        if model is None:
            arguments = {"model_table": str(found.of_version), "mst_key": None}
            model = VersionModel(call.ask_driver(_FUNCTION, arguments, ""), found)
            self._registered[found.version_id] = model
            while len(self._registered) > _MAX_MODELS:
                self._registered.popitem(last=False)
        return model

    def _load(self, model: FoundModel) -> None:
        if self._child is None:
            self._start(model.found["start"], model.found["shares"])
            try:
                self._ask({"op": "start", **model.found["start"]})
            except call.CallError:
                self._forget_trainer()
                raise
        request = {
            "op": "predict_load",
            "model": model.found["model"],
            "normalizing_const": model.found["normalizing_const"],
            "has_weights": True,
            "preprocessor": model.found.get("preprocessor"),
        }
        with nodes.reading_model(plpy):
            weights = model.weights()
            found = weights.digest()
            digest = hashlib.sha256(encoded(request) + bytes.fromhex(found)).hexdigest()
            model.key = f"{model.origin} {digest}"  # defence: key-of-a-model = model.version
            if model.key not in self._loaded:
                # weights in parts are read a second time while they are sent, and must be those of the key
                answer, _ = self._ask({**request, "key": model.key}, weights.only(found))
                self._loaded = frozenset(answer["loaded"])

    def _start(self, start: Header, may_share: bool) -> None:
        """Join the trainers of this role, or start one."""
        backend = backend_of(start)
        # those of the call, because code in a view of the model may have changed current_user
        role, login = self._caller or (None, None)
        if may_share and self._shares and role is not None and login is not None:
            use = use_of(
                role,
                start,
                login,  # defence: logins-of-shared-trainers
            )
            try:
                self._child = join_trainer(role, use, Interrupts(), Spinner(), backend)
            except TooMany as refusal:
                raise call.CallError(
                    f"{_FUNCTION}: {refusal}", "53300", hint="Close sessions, or predict in fewer of them."
                ) from None
            self._limits = of_sharers(start.get("memory_limit_bytes"))
        if self._child is None:
            self._child = start_trainer(Interrupts(), Spinner(), backend)

    def _ask(self, header: Header | bytes, blobs: Iterable[Blob] = ()) -> Frame:
        """Send a request to the trainer; raise its error."""
        assert self._child is not None, "nobody asks before it is started"
        is_shared = self._child.is_shared
        if is_shared:
            header = header if isinstance(header, bytes) else encoded(header)
            try:
                self._limits.check_header(header)
                self._limits.check_blobs(lengths_of(blobs))
            except TooLarge:
                raise _NeedsOwn from None
        try:
            answer, out = self._child.ask(header, blobs)
        except ChildDied as death:
            self._count_crash(is_shared and not death.is_harmless)
            raise
        # cancelled: the trainer is still computing, and its answer would be read as that of the next request
        except BaseException:
            self._count_crash(is_shared)  # the trainer ends, for all who share it
            self._forget_trainer()
            raise
        if "error" in answer:
            if answer.get("ending"):
                self._forget_trainer()
            kind = answer.get("kind")
            if is_shared and kind in _KINDS_OF_SHARED:
                raise _GaveWay if kind == NOT_LOADED else _NeedsOwn
            error = answer["error"]
            # hints of other errors are for training
            hint = error.get("hint") if kind == INPUT else None
            raise call.CallError(f"{_FUNCTION}: {error['message']}", error["sqlstate"], error.get("detail"), hint)
        return answer, out

    def _count_crash(self, is_one: bool) -> None:
        """Count the ends of shared trainers for which this session may be the reason: after some, it shares none."""
        self._n_crashes += is_one
        self._shares &= self._n_crashes < _MOST_CRASHES

    def _forget_if_ended(self) -> None:
        if self._child is not None and not self._child.alive:
            self._forget_trainer()

    def _forget_trainer(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None
        self._loaded, self._has_reloaded = frozenset(), False


def _planned_model(text: str) -> FoundModel:
    """Return the model of a text of `plan`; raise the error that `plan` had."""
    planned = _planned.get(text)
    if planned is None:
        raise _plan_is_over()
    if planned.model is None:
        fields = planned.error or {}
        message, state = str(fields.get("message")), str(fields.get("sqlstate"))
        raise call.CallError(message, state, fields.get("detail"), fields.get("hint"))
    return planned.model


def _plan_is_over() -> call.CallError:
    message = f"{_FUNCTION}: the model that was loaded when this query was planned is not there any more"
    return call.CallError(message, "55000", hint="Run the query again.")


_UNDEFINED_STATES = ("42P01", "42703", "3F000")  # undefined table, column, schema


def _rows_of(result: tuple[FoundModel, Header, Blob]) -> Rows:
    """Return the rows of the trainer's answer for arrays."""
    answer = PredictedRows(*result)
    return [answer.row(i) for i in range(answer.n_rows)]
