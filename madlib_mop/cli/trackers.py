"""``madlib-mop tensorboard``, ``mlflow`` and ``optuna``: a run for other programs that track experiments."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from madlib_mop.cli.app import Dsn, app
from madlib_mop.errors import InvalidParameter
from madlib_mop.trackers.exported import Models

if TYPE_CHECKING:
    from madlib_mop.catalog.facts.tracked import TrackedState

Run = Annotated[int, typer.Argument(metavar="RUN", help="Number of the run; madlib-mop runs lists them.")]
Follow = Annotated[bool, typer.Option("--follow", help="Go on writing until the run has ended.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Where directory run_RUN is written: a --logdir.")]
Histograms = Annotated[
    bool, typer.Option("--histograms", help="Also the final weights. Only for members of the role that owns the run.")
]
TrackingUri = Annotated[
    str,
    typer.Option(
        "--tracking-uri",
        envvar="MLFLOW_TRACKING_URI",
        help="A server or a storage, as MLflow takes it. Credentials come from MLFLOW_TRACKING_USERNAME,"
        " MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN.",
    ),
]
Experiment = Annotated[
    str, typer.Option("--experiment", envvar="MLFLOW_EXPERIMENT_NAME", help="Created if there is none of this name.")
]
Storage = Annotated[
    str,
    typer.Option(
        "--storage",
        envvar="OPTUNA_STORAGE",
        help="A URL of a database, such as sqlite:///studies.db, or the path of a journal file.",
    ),
]
StudyName = Annotated[str | None, typer.Option("--study-name", help="Default: run RUN of DATABASE.")]
WhichModels = Annotated[
    Models | None,
    typer.Option(
        "--models",
        help="Models to write as models of MLflow: best, all or none. Default: best, if the run's output table belongs"
        " to the role that logs in.",
        case_sensitive=False,
        show_default=False,
    ),
]
_NO_PASSWORD = "Set the variable {} instead of the option."


@app.command()
def tensorboard(
    run_id: Run, directory: Directory, follow: Follow = False, histograms: Histograms = False, dsn: Dsn = ""
) -> None:
    """Write a run as event files for TensorBoard: metrics by step and time, and hyper-parameters of each model.

    It works from any machine, with the login of a role that may see the run. Files of an earlier call are replaced.
    """
    from madlib_mop.trackers.following import RunSession, track
    from madlib_mop.trackers.tensorboard import TensorBoardTracker

    tracker = TensorBoardTracker(directory, histograms)
    with RunSession(dsn, run_id) as session:
        record = track(session, tracker, follow)
    print(tracker.run_directory(record.run))
    _fail_if_lost(record, follow)


@app.command()
def mlflow(
    context: typer.Context,
    run_id: Run,
    tracking_uri: TrackingUri = "",
    experiment: Experiment = "madlib_mop",
    models: WhichModels = None,
    follow: Follow = False,
    dsn: Dsn = "",
) -> None:
    """Write a run into MLflow: a run with a run below it for each model. Print MLflow's id of the run.

    It works from any machine, with the login of a role that may see the run. A second call updates the run. Exit status
    1 if models that --models asks for are not written; everything else is.
    """
    from madlib_mop.trackers.addresses import refuse_password
    from madlib_mop.trackers.following import RunSession, track
    from madlib_mop.trackers.mlflow_runs import OPTION, MlflowTracker

    _require(tracking_uri, OPTION, "MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    if not _is_of_environment(context, "tracking_uri"):
        refuse_password(tracking_uri, OPTION, _NO_PASSWORD.format("MLFLOW_TRACKING_URI"))
    tracker = MlflowTracker(tracking_uri, experiment, models)
    with RunSession(dsn, run_id) as session:
        record = track(session, tracker, follow)
    print(tracker.run_id)
    for problem in tracker.problems:
        print(f"madlib-mop: {problem}", file=sys.stderr)
    if tracker.problems and models is not None:
        raise typer.Exit(1)
    _fail_if_lost(record, follow)


@app.command()
def optuna(
    context: typer.Context,
    run_id: Run,
    storage: Storage = "",
    study_name: StudyName = None,
    follow: Follow = False,
    dsn: Dsn = "",
) -> None:
    """Write a run as a study of Optuna, with a trial for each model. Print the name of the study.

    It works from any machine, with the login of a role that may see the run. A second call updates the study.
    """
    from madlib_mop.trackers.addresses import refuse_password
    from madlib_mop.trackers.following import RunSession, track
    from madlib_mop.trackers.optuna_study import OPTION, OptunaTracker

    _require(storage, OPTION, "OPTUNA_STORAGE", "sqlite:///studies.db")
    if not _is_of_environment(context, "storage"):
        refuse_password(storage, OPTION, _NO_PASSWORD.format("OPTUNA_STORAGE"))
    tracker = OptunaTracker(storage, study_name)
    with RunSession(dsn, run_id) as session:
        record = track(session, tracker, follow)
    print(tracker.study_name)
    _fail_if_lost(record, follow)


def _fail_if_lost(record: "TrackedState", follow: bool) -> None:
    """End with status 1 if the run was to be followed to its end, and its session has ended before."""
    if follow and record.run.is_lost:
        run_id = record.run.run_id
        print(f"madlib-mop: run {run_id} is {record.run.state}, but no process trains it", file=sys.stderr)
        print(f"  SELECT madlib_mop.resume({run_id}); continues it.", file=sys.stderr)
        raise typer.Exit(1)


def _require(value: str, option: str, variable: str, example: str) -> None:
    if not value.strip():
        raise InvalidParameter(f"{option} is missing", hint=f"Write {option} {example}, or set {variable}.")


def _is_of_environment(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "ENVIRONMENT"
