"""Event files of a run, read by TensorBoard: scalars, HParams, histograms; nothing is written elsewhere."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.tracked import TrackedState
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter
from madlib_mop.trackers.tensorboard import MARKER, TensorBoardTracker
from tests.helpers.trackers import (
    BEGAN,
    HOSTILE,
    Session,
    a_model,
    a_record,
    a_run,
    accumulator,
    files_below,
    hostile_record,
    points_of,
    scalars,
)

ROOT = Path(__file__).resolve().parents[3]


def written(directory: Path, record: TrackedState, histograms: bool = False) -> Path:
    tracker = TensorBoardTracker(directory, histograms)
    tracker.start(record)
    tracker.write(record)
    tracker.finish(record, Session())
    return tracker.run_directory(record.run)


def sessions_of(directory: Path) -> dict:
    """Return the sessions of TensorBoard's plugin HParams by name: hyper-parameters, metrics and status."""
    accumulator(directory)  # without TensorFlow
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(directory)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(directory))
    context = backend_context.Context(TBContext(data_provider=provider, logdir=str(directory)))
    statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING]
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=100, allowed_statuses=statuses)
    answer = list_session_groups.Handler(RequestContext(), context, "", request).run()
    return {
        group.name: (
            {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()},
            {(m.name.group, m.name.tag): m.value for m in group.metric_values},
            api_pb2.Status.Name(group.sessions[0].status),
        )
        for group in answer.session_groups
    }


def test_each_model_has_its_metrics_by_step_and_by_time(tmp_path):
    run = written(tmp_path, a_record())
    assert run == tmp_path / "run_7"
    for key in (1, 2, 3):
        for data_set, folder in (("training", "train"), ("validation", "validation")):
            expected = {}
            for p in points_of(key):
                if p.data_set == data_set:
                    expected.setdefault(f"epoch_{p.name}", []).append((p.epoch, p.at, pytest.approx(p.value, rel=1e-6)))
            assert scalars(run / f"model_{key}" / folder) == expected


def test_metrics_on_samples_have_tags_of_their_own_and_steps_of_visits(tmp_path):
    points = [MetricPoint(1, BEGAN + n, "validation", "loss", 1 / n, 1, n, True) for n in (1, 2, 3)]
    run = written(tmp_path, replace(a_record(1), points=(*points, *points_of(1))))
    found = scalars(run / "model_1" / "validation")
    assert [(step, at) for step, at, _ in found["visit_loss"]] == [(n, BEGAN + n) for n in (1, 2, 3)]
    assert len(found["epoch_loss"]) == 3


def test_the_plugin_hparams_has_a_session_for_each_model(tmp_path):
    models = (a_model(1), a_model(2, state="failed"), a_model(3, state="stopped"), a_model(4, state="waiting"))
    points = sum((points_of(key) for key in (1, 2, 3)), ())
    written(tmp_path, TrackedState(a_run(), models, points))
    found = sessions_of(tmp_path)
    assert [name for name in sorted(found)] == [f"run_7/model_{key}" for key in (1, 2, 3, 4)]
    parameters, metrics, status = found["run_7/model_1"]
    assert parameters == dict(a_model(1).hyper_parameters)
    assert metrics["validation", "epoch_accuracy"] == pytest.approx(0.99 / 3, rel=1e-6)
    assert metrics["train", "epoch_loss"] == pytest.approx(0.1 / 3, rel=1e-6)
    statuses = [found[f"run_7/model_{key}"][2] for key in (1, 2, 3)]
    assert statuses == ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_UNKNOWN"]


def test_models_with_equal_hyper_parameters_stay_apart(tmp_path):
    written(tmp_path, a_record(3, hyper_parameters={"batch_size": 32}))
    assert len(sessions_of(tmp_path)) == 3


def test_a_followed_run_grows_and_ends_once(tmp_path):
    running = a_run(state="running", ended_at=None)
    tracker = TensorBoardTracker(tmp_path)
    first = a_record(1, running, state="training")
    tracker.start(first)
    tracker.write(replace(first, points=points_of(1, 1)))
    assert [step for step, _, _ in scalars(tmp_path / "run_7/model_1/train")["epoch_loss"]] == [1]
    assert sessions_of(tmp_path)["run_7/model_1"][2] == "STATUS_UNKNOWN"  # as all that have no end
    tracker.write(replace(first, points=points_of(1, 1, first=2)))
    more = a_record(2)  # a search has added a model meanwhile
    tracker.write(replace(more, points=(*points_of(1, 1, first=3), *points_of(2))))
    tracker.write(replace(more, points=()))
    assert [step for step, _, _ in scalars(tmp_path / "run_7/model_1/train")["epoch_loss"]] == [1, 2, 3]
    assert sorted(sessions_of(tmp_path)) == ["run_7/model_1", "run_7/model_2"]
    assert sessions_of(tmp_path)["run_7/model_1"][2] == "STATUS_SUCCESS"


def test_a_second_call_replaces_the_files(tmp_path):
    run = written(tmp_path, a_record())
    files = {name: (run / name).read_bytes() for name in files_below(run)}
    written(tmp_path, a_record())
    assert {name: (run / name).read_bytes() for name in files_below(run)} == files
    assert len(scalars(run / "model_1" / "train")["epoch_loss"]) == 3


def test_two_runs_share_a_directory_and_those_of_other_databases_are_kept(tmp_path):
    run = written(tmp_path, a_record())
    other = a_run(run_id=8)
    assert written(tmp_path, a_record(1, other)) == tmp_path / "run_8"
    files = {name: (run / name).read_bytes() for name in files_below(run)}
    stranger = a_run(database="another")
    with pytest.raises(InvalidParameter, match="run_7 has files of another run, or of another program"):
        written(tmp_path, a_record(1, stranger))
    assert {name: (run / name).read_bytes() for name in files_below(run)} == files


def test_files_of_another_program_are_kept(tmp_path):
    (tmp_path / "run_7").mkdir()
    (tmp_path / "run_7" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidParameter, match="another program"):
        written(tmp_path, a_record())
    assert files_below(tmp_path) == {"run_7/notes.txt"}


def test_hostile_names_are_tags_and_no_path_leaves_the_directory(tmp_path):
    logs = tmp_path / "logs"
    run = written(logs, hostile_record())
    assert files_below(tmp_path) == {f"logs/run_7/{name}" for name in files_below(run)}
    folders = {Path(name).parent for name in files_below(run)}
    assert {str(folder) for folder in folders} == {
        ".", *(f"model_{key}{end}" for key in (1, 2) for end in ("", "/train", "/validation")),
    }  # fmt: skip
    tags = scalars(run / "model_1" / "train")
    assert len(tags) == 2 * len(HOSTILE) and all(tag.isprintable() for tag in tags)
    assert "epoch_<script>alert(1)</script>" in tags
    parameters, _, _ = sessions_of(logs)["run_7/model_1"]
    assert len(parameters) == len(HOSTILE) and all(text.isprintable() for text in parameters)


@pytest.mark.parametrize("place", ["run_7", "run_7/model_1", "run_7/model_1/train"])
def test_a_link_is_not_followed(tmp_path, place):
    outside, logs = tmp_path / "outside", tmp_path / "logs"
    outside.mkdir()
    if place != "run_7":
        written(logs, a_record(1))
        subprocess.run(["rm", "-r", logs / place], check=True)
    else:
        logs.mkdir()
    (logs / place).symlink_to(outside)
    with pytest.raises(InvalidParameter, match="is a link, not a directory"):
        written(logs, a_record(1))
    assert files_below(outside) == set()


def test_an_event_file_that_became_a_link_is_replaced_or_refused(tmp_path):
    target = tmp_path / "target"
    target.write_text("kept")
    tracker = TensorBoardTracker(tmp_path / "logs")
    record = a_record(1)
    tracker.start(record)
    tracker.write(record)
    (file,) = (tmp_path / "logs/run_7/model_1/train").iterdir()
    file.unlink()
    file.symlink_to(target)
    with pytest.raises(InvalidParameter, match="cannot be written"):
        tracker.write(replace(record, points=points_of(1, 1, first=4)))
    written(tmp_path / "logs", record)
    assert target.read_text() == "kept" and not file.is_symlink()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/no_such_directory"])
def test_a_directory_that_cannot_be_written_is_one_error_before_any_work(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameter):
        written(tmp_path / place, a_record())
    assert files_below(tmp_path) == {"file"}


def test_histograms_of_weights_are_there_if_asked_for(tmp_path):
    from tensorboard.util import tensor_util

    run = written(tmp_path, a_record(2), histograms=True)
    events = accumulator(run / "model_1")
    kernel, bias = (events.Tensors(f"weights_{number}") for number in (0, 1))
    assert [event.step for event in kernel] == [3] and kernel[0].wall_time == a_model(1).ended_at
    assert np.sum(tensor_util.make_ndarray(kernel[0].tensor_proto)[:, 2]) == 12
    assert np.sum(tensor_util.make_ndarray(bias[0].tensor_proto)[:, 2]) == 2  # NaN is left out
    others = accumulator(run / "model_2").Tags()["tensors"]
    assert others == ["_hparams_/session_start_info", "_hparams_/session_end_info"]


def test_histograms_are_refused_to_one_who_may_not_see_states(tmp_path):
    with pytest.raises(InsufficientPrivilege, match="--histograms reads training states.* The owner of run 7 is ada"):
        written(tmp_path / "logs", a_record(run=a_run(may_own=False)), histograms=True)
    assert files_below(tmp_path) == set() and not (tmp_path / "logs").exists()


def test_values_that_are_no_finite_numbers_of_32_bits_are_kept_as_far_as_possible(tmp_path):
    values = (math.nan, math.inf, -math.inf, 1e300, 1e-300)
    points = tuple(MetricPoint(1, BEGAN + i, "training", "loss", v, i, i, False) for i, v in enumerate(values))
    run = written(tmp_path, replace(a_record(1), points=points))
    read = [value for _, _, value in scalars(run / "model_1" / "train")["epoch_loss"]]
    assert math.isnan(read[0]) and read[1:] == [math.inf, -math.inf, math.inf, 0.0]


def test_the_marker_says_whose_directory_it_is(tmp_path):
    run = written(tmp_path, a_record())
    assert a_run().key in (run / MARKER).read_text()


def test_tensorflow_is_not_imported(tmp_path):
    code = f"""
import sys
from pathlib import Path
from madlib_mop.trackers.tensorboard import TensorBoardTracker
from tests.helpers.trackers import Session, a_record
tracker = TensorBoardTracker(Path({str(tmp_path)!r}), histograms=True)
tracker.start(a_record()); tracker.write(a_record()); tracker.finish(a_record(), Session())
sys.exit(bool({{"tensorflow", "keras"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": f"{ROOT}:{ROOT / 'plpython'}"})
    assert done.returncode == 0 and (tmp_path / "run_7" / "model_1").is_dir()
