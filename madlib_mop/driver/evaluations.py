"""Evaluations of a run: asks the scheduler for them when metrics are due, gathers them, writes the metrics."""

from collections.abc import Callable

from madlib_mop.catalog.record import Record
from madlib_mop.driver.metrics import EpochMetrics, EvaluationTask, is_due
from madlib_mop.schedule import Evaluation, Scheduler


class Evaluations:
    """The evaluations of one run.

    Parameters
    ----------
    record : Record
    run : dict
        Row of `madlib_mop.run`.
    scheduler : Scheduler
    models : dict of int to dict
        Rows of `madlib_mop.model` by mst_key.
    key_of : callable
        Gives the scheduler's key of a model.
    """

    def __init__(
        self,
        record: Record,
        run: dict,
        scheduler: Scheduler,
        models: dict[int, dict],
        key_of: Callable[[int], int] = lambda mst_key: mst_key,
    ):
        self._record = record
        self._run = run
        self._scheduler = scheduler
        self._models = models
        self._key_of = key_of
        self._open: dict[int, EpochMetrics] = {}
        self._places = _places(run["plan"])

    def add_missing(self) -> None:
        """Ask for those that a resumed run has still to make: epochs that are complete, but have no metrics."""
        known = self._known()
        for key in self._models:
            self.settle(key, known)

    def settle(self, mst_key: int, known: set | None = None) -> None:
        """Ask for the metrics of a model whose epoch is complete, if they are due; mark it trained if it was the last.

        Parameters
        ----------
        mst_key : int
        known : set of (int, int), optional
            (mst_key, epoch) of the metrics in the record; read there if it is not given.
        """
        model = self._models[mst_key]
        complete = model["position"] == self._run["n_segments"] and model["epoch"] >= model["first_epoch"]
        if not complete or model["state"] != "training" or self.under_way(mst_key):
            return
        if (mst_key, model["epoch"]) not in (self._known() if known is None else known):
            if self.begin(mst_key, model["epoch"]):
                return
        if model["epoch"] == model["last_epoch"]:
            model["state"] = "trained"
            self._record.set_model(self._run["run_id"], mst_key, state="trained")

    def _known(self) -> set[tuple[int, int]]:
        return {(row["mst_key"], row["epoch"]) for row in self._record.metrics(self._run["run_id"])}

    def begin(self, mst_key: int, epoch: int) -> bool:
        """Ask for a model's evaluations if metrics are due after this epoch; False if they are not."""
        model = self._models[mst_key]
        frequency = self._run["metrics_compute_frequency"]
        if not is_due(epoch, model["first_epoch"], model["last_epoch"], frequency):
            return False
        tasks = {
            EvaluationTask(mst_key, data_set, segment, epoch): worker for data_set, segment, worker in self._places
        }
        self._open[mst_key] = EpochMetrics(epoch, set(tasks))
        for task, worker in tasks.items():
            self._scheduler.add_evaluation(self._key_of(mst_key), worker, task)
        return True

    def finished(self, task: Evaluation, answer: dict, seconds: float, elapsed_s: float) -> list[dict] | None:
        """Take one evaluation's figures; after the last, write the metrics and give their rows."""
        mst_key = task.payload.mst_key
        metrics = self._open.get(mst_key)
        if metrics is None or not metrics.add(task.payload, task.segment, answer, seconds):
            return None
        del self._open[mst_key]
        rows = metrics.rows(self._run["run_id"], mst_key, elapsed_s)
        self._record.add_metrics(rows, metrics.evaluations(self._run["run_id"], mst_key))
        return rows

    def under_way(self, mst_key: int) -> bool:
        """Tell whether evaluations of a model have been asked for and are not all there."""
        return mst_key in self._open

    def forget(self, mst_key: int) -> None:
        """Drop what has been gathered of a model that failed."""
        self._open.pop(mst_key, None)


def _places(plan: dict) -> list[tuple[str, int, int]]:
    """List (data set, segment there, segment whose worker evaluates it) for every shard that has rows.

    A validation shard is evaluated by the worker of the segment of its number, if that is where its rows are, else by
    one that is: what the rows have to travel to is asked last.
    """
    training = plan["training"]["segments"]
    at = {s["segment_id"]: _server(s) for s in training}
    places = [("training", s["segment_id"], s["segment_id"]) for s in training if s["n_rows"]]
    validation = plan["validation"]["segments"] if plan["validation"] else []
    for number, s in enumerate(s for s in validation if s["n_rows"]):
        near = [segment for segment, server in at.items() if server == _server(s)] or list(at)
        worker = s["segment_id"] if s["segment_id"] in near else near[number % len(near)]
        places.append(("validation", s["segment_id"], worker))
    return places


def _server(segment: dict) -> str | None:
    return (segment.get("place") or {}).get("server")
