"""The handle of a run: its progress and figures as data frames, the commands that steer it, and its models."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from madlib_mop.catalog.facts.now import RunNow, RunStatus, read_status, read_trained
from madlib_mop.catalog.facts.tables import LEADERBOARD, METRICS, PARETO, VISITS
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.calling.statements import Statement, call_of, whole_number
from madlib_mop.client.calls import Calls, read_own
from madlib_mop.client.models import Model
from madlib_mop.client.networks import Params, texts_of
from madlib_mop.client.progress import Progress, html_of, reporter_of
from madlib_mop.client.tables import Configurations, read_name
from madlib_mop.client.training import FAILED_QUERIES, Training
from madlib_mop.client.watching import RunWatch, await_output, find_output, state_of_run
from madlib_mop.errors import NotReady, no_run

if TYPE_CHECKING:
    import pandas

_SHOWN = 5
#: Seconds until a query about a run that trains here is asked again, after it failed.
_AGAIN_S = 1.0


def train(calls: Calls, call: Statement, run_id: int | None, wait: bool, progress: Progress) -> "Run":
    """Run a call that trains in a thread; return its run, at the end or at once.

    Raises
    ------
    MopError
        If the call fails.
    KeyboardInterrupt
        After an interrupt: the statement was cancelled, and the run is interrupted.
    """
    reporter = reporter_of(progress)
    training = Training(calls.sessions, call, run_id)
    try:
        found = training.run_id()
        if found is None:
            raise noted(NotReady("the call has ended, and this role may see no run of it"))
        run = Run(calls, found, training)
        if wait:
            with closing(run._states(None)) as states:
                for now in states:
                    reporter(now)
            run._end_call()
        return run
    except BaseException as error:  # an interrupt, or an error of a function that shows progress
        if not training.done.is_set():
            training.cancel()
            known = training.known_run_id
            if known is not None:
                error.add_note(f"The run was interrupted, and its committed visits are kept: db.run({known}).resume()")
        raise


class Run:
    """One run: a call that trains. The handle has only its number, so it can be made at any time: ``db.run(7)``.

    Attributes
    ----------
    run_id : int
    """

    def __init__(self, calls: Calls, run_id: int, training: Training | None = None):
        self._calls = calls
        self._training = training
        self.run_id = whole_number(run_id, "run_id")

    def __repr__(self) -> str:
        return f"Run({self.run_id})"

    def _repr_html_(self) -> str:
        return html_of(state_of_run(self._calls.sessions, self.run_id, _SHOWN))

    @property
    def progress(self) -> RunStatus:
        """How far the run is, now: state, numbers of models and visits, ``elapsed_s``, ``time_left_s``.

        Raises
        ------
        InvalidParameter
            If the role may see no such run.
        """
        status = read_status(self._calls.sessions.rows, self.run_id)
        if status is None:
            raise noted(no_run(self.run_id, "db.runs() lists the runs."))
        return status

    def leaderboard(self) -> "pandas.DataFrame":
        """Return the models, best first, with the columns of view ``leaderboard``; indexed by ``mst_key``.

        Baselines that are no models come last; their ``mst_key`` is NA, because they cannot predict.
        """
        return read_own(self._calls.sessions, LEADERBOARD, [self.run_id]).drop(columns="run_id").set_index("mst_key")

    def pareto(self) -> "pandas.DataFrame":
        """Return the models that no other one surpasses in score, multiplications and size, best score first.

        It has the columns of view ``pareto``, among them ``multiplications`` (of a prediction of one row) and
        ``size_bytes`` (of the weights), and is indexed by ``mst_key``.
        """
        return read_own(self._calls.sessions, PARETO, [self.run_id]).drop(columns="run_id").set_index("mst_key")

    def metrics(self) -> "pandas.DataFrame":
        """Return all metrics of all rows: a row for each model, epoch, data set and metric.

        Columns: ``mst_key``, ``epoch`` (from 1), ``data_set`` (``training`` or ``validation``), ``name``, ``value``,
        ``elapsed_s`` (seconds since the start of the run), ``at``.
        """
        return read_own(self._calls.sessions, METRICS, [self.run_id])

    def visits(self) -> "pandas.DataFrame":
        """Return the committed visits, with the columns of view ``timeline``: ``start_s`` and ``end_s`` are seconds
        since the start of the run."""
        return read_own(self._calls.sessions, VISITS, [self.run_id]).drop(columns="run_id").set_index("visit_id")

    # ---- waiting

    def wait(self, timeout_s: float | None = None, progress: Progress = False) -> "Run":
        """Wait until the run has ended, in whatever session it trains; return it.

        Parameters
        ----------
        timeout_s : float, optional
        progress : bool or callable
            As for ``db.fit``.

        Raises
        ------
        TimeoutError
            After ``timeout_s`` seconds. The run goes on.
        NotReady
            If the run ended without its output tables: it was cancelled, interrupted, or has failed.
        """
        reporter = reporter_of(progress)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with closing(self._states(until)) as states:
            for now in states:
                reporter(now)
        if not self._is_over(now.status):
            raise TimeoutError(f"run {self.run_id} has not ended within {timeout_s} s")
        if self._training is not None:
            self._end_call()
        elif now.status.state != RunState.FINISHED:
            raise noted(
                NotReady(
                    f"run {self.run_id} is {now.status.state}: {now.status.detail or 'no reason was recorded'}",
                    hint="run.resume() continues it.",
                )
            )
        else:
            await_output(self._calls.sessions, self.run_id)
        return self

    def follow(self) -> Iterator[RunStatus]:
        """Yield the progress after each change, until the run has ended."""
        return (now.status for now in self._states(None))

    async def wait_async(self, timeout_s: float | None = None) -> "Run":
        """Wait as `wait` does, in a thread, without blocking the event loop."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        async with aclosing(self._states_async(until)) as states:
            async for now in states:
                is_over = self._is_over(now.status)
        if not is_over:
            raise TimeoutError(f"run {self.run_id} has not ended within {timeout_s} s")
        return await asyncio.to_thread(self.wait)

    async def follow_async(self) -> AsyncGenerator[RunStatus, None]:
        """Yield the progress after each change, as `follow` does, in a thread. A cancelled task ends the thread."""
        async with aclosing(self._states_async(None)) as states:
            async for now in states:
                yield now.status

    # ---- steering

    def stop(self, mst_key: int, reason: str | None = None) -> None:
        """Stop a model: its visit in flight is committed, and no other starts."""
        self._command("stop_model", mst_key=mst_key, reason=reason)

    def resume_model(self, mst_key: int) -> None:
        """Let a stopped model continue."""
        self._command("resume_model", mst_key=mst_key)

    def clone(self, mst_key: int, compile: Params | None = None, fit: Params | None = None, **arguments: Any) -> int:
        """Add a copy of a model with other parameters; return its ``mst_key``.

        Parameters
        ----------
        mst_key : int
        compile, fit : dict or str, optional
            Parameters of the copy, as for ``db.configurations``. None: those of the model.
        **arguments
            Further arguments of ``clone_model``, such as ``num_iterations`` and ``from_state``.
        """
        given = {"compile_params": compile, "fit_params": fit}
        kinds = {"compile_params": "compile", "fit_params": "fit"}
        texts = {name: texts_of(value, kinds[name])[0] for name, value in given.items() if value is not None}
        return int(self._command("clone_model", mst_key=mst_key, **texts, **arguments))

    def extend(self, epochs: int, mst_key: int | None = None) -> None:
        """Let one model, or all, train further epochs."""
        self._command("extend", num_iterations=epochs, **({} if mst_key is None else {"mst_key": mst_key}))

    def add(self, configs: Configurations | str) -> list[int]:
        """Add the configurations of a model selection table; return their keys in the run."""
        table = configs.table if isinstance(configs, Configurations) else read_name(configs, "configs").sql
        keys: list[int] = self._command("add_models", model_selection_table=table)
        return keys

    def pause(self) -> None:
        """Pause the run: its trainers exit after the visits in flight."""
        self._command("pause")

    def unpause(self) -> None:
        """Let a paused run continue."""
        self._command("unpause")

    def pin(self, mst_key: int, pinned: bool = True) -> None:
        """Prevent searches and policies from stopping a model; ``pinned=False`` allows it again."""
        self._command("pin_model", mst_key=mst_key, pinned=pinned)

    def cancel(self) -> bool:
        """Stop the run; committed visits are kept. Return False if it is not running."""
        return bool(self._command("cancel"))

    def resume(self, *, wait: bool = True, progress: Progress = True, **arguments: Any) -> "Run":
        """Continue a run that was stopped, has failed or was prepared by commands, and write its output tables.

        Parameters
        ----------
        wait, progress
            As for ``db.fit``.
        **arguments
            Further arguments of ``resume``, such as ``output_table`` and ``max_seconds``.
        """
        call = call_of("resume", {"run_id": self.run_id, **arguments})
        return train(self._calls, call, self.run_id, wait, progress)

    def drop(self) -> None:
        """Delete the run from the record. Its output tables stay."""
        self._command("drop_run")

    # ---- results

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the report of the run, one HTML file; return its path. An existing file is replaced."""
        target = Path(path)
        if target.is_dir() or not target.absolute().parent.is_dir():
            raise bad_input(f"path must be a file in a directory that exists. Received: {str(path)!r}")
        page: str = self._command("report")
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            beside.write_text(page, encoding="utf-8")
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
        return target

    def best(self) -> Model:
        """Return the trained model that is first on the leaderboard.

        Raises
        ------
        NotReady
            If no model is trained yet, or the output table is not written yet.
        """
        keys = read_trained(self._calls.sessions.rows, self.run_id)
        if not keys:
            raise noted(NotReady(f"run {self.run_id} has no trained model", hint="run.leaderboard() shows the models."))
        return self.model(keys[0])

    def model(self, mst_key: int) -> Model:
        """Return the handle of one of its models, in the run's output table.

        Raises
        ------
        NotReady
            If the output table is not there: it is written at the end of the run.
        """
        output = find_output(self._calls.sessions, self.run_id)
        if not output.is_there:
            message = f"run {self.run_id} has no output table {output.table.sql}: it is not written yet, or was dropped"
            raise noted(NotReady(message, hint="It is written at the end of the run: run.wait()."))
        return Model(self._calls, output.table, mst_key if output.has_keys else None)

    def _command(self, name: str, **arguments: Any) -> Any:
        return self._calls.call(name, run_id=self.run_id, **arguments)

    def _states(self, until: float | None) -> Generator[RunNow, None, None]:
        """Yield states until the run has ended or it is ``until``; at least one."""
        watch = self._watch()
        try:
            while True:
                is_done = self._call_has_ended()
                now = self._read(watch, until)
                yield now
                if self._is_over(now.status, is_done) or (until is not None and time.monotonic() >= until):
                    return
                watch.wait(until=until)
        finally:
            self._unwatch(watch)

    async def _states_async(self, until: float | None) -> AsyncGenerator[RunNow, None]:
        """Yield what `_states` yields; the session is used in threads."""
        watch = await asyncio.to_thread(self._watch)
        step: asyncio.Future[Any] | None = None
        try:
            while True:
                is_done = self._call_has_ended()
                step = asyncio.ensure_future(asyncio.to_thread(self._read, watch, until))
                now: RunNow = await asyncio.shield(step)
                yield now
                if self._is_over(now.status, is_done) or (until is not None and time.monotonic() >= until):
                    return
                step = asyncio.ensure_future(asyncio.to_thread(watch.wait, until=until))
                await asyncio.shield(step)
        finally:
            watch.listener.wake()
            if step is not None:
                await asyncio.wait([step])  # the thread is out of the session before this closes
            self._unwatch(watch)

    def _read(self, watch: RunWatch, until: float | None) -> RunNow:
        """Return the state of the run. If that fails while its call trains here, try again: the call has a session of
        its own, and its end says what became of it."""
        training = self._training
        while True:
            try:
                return watch.read()
            except FAILED_QUERIES:
                if training is None or (until is not None and time.monotonic() >= until):
                    raise
                if training.done.is_set():
                    training.result()  # its error says more
                    raise
                if watch.listener.sleep(_AGAIN_S) and not training.done.is_set():
                    raise  # nobody waits any more

    def _watch(self) -> RunWatch:
        watch = RunWatch(self._calls.sessions, self.run_id, _SHOWN)
        if self._training is not None:
            self._training.attach(watch.listener)
        return watch

    def _unwatch(self, watch: RunWatch) -> None:
        if self._training is not None:
            self._training.detach(watch.listener)
        watch.close()

    def _end_call(self) -> None:
        """Raise the error of the call that trains here; after its success, the record alone says how the run is."""
        if self._training is not None:
            self._training.result()
            self._training = None

    def _call_has_ended(self) -> bool | None:
        return None if self._training is None else self._training.done.is_set()

    def _is_over(self, status: RunStatus, call_has_ended: bool | None = None) -> bool:
        """Return whether nothing of the run is to come: its call here has ended, or it trains nowhere."""
        if self._training is None:
            return status.has_ended
        return self._training.done.is_set() if call_has_ended is None else call_has_ended
