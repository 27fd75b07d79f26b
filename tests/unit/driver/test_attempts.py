"""Promise 5: which failed attempts are repeated, which end their model, and which end the run."""

import json
import signal

import pytest
from mop_backend.messages import Died, Failed, SqlFailed

from madlib_mop.driver.evaluation.evaluations import EvaluationTask
from madlib_mop.driver.running.loop import MAX_FAULTS, MAX_KILLED, MAX_MEMORY_FAULTS, Attempts, fault_key
from madlib_mop.schedule import Average, Evaluation, Visit

VISIT = Visit((3,), 1, 2, 1)
ERROR = {"sqlstate": "38000", "message": "the loss is NaN", "hint": "Use a smaller learning rate."}


def failed(kind: str) -> Failed:
    """Return a trainer's error answer."""
    return Failed(ERROR, kind)


def died(status: int, stderr: str = "") -> Died:
    """Return the report of a trainer's end."""
    return Died(status, stderr)


def sql(sqlstate: str | None) -> SqlFailed:
    """Return a failed statement of a worker."""
    return SqlFailed({"sqlstate": sqlstate, "message": "it failed"})


def test_attempts_are_counted_by_task():
    attempts = Attempts()
    assert [attempts.begin(VISIT), attempts.begin(VISIT), attempts.begin(Visit((4,), 1, 2, 1))] == [1, 2, 1]


@pytest.mark.parametrize("kind, ends_run", [("model", False), ("input", True)])
def test_a_fault_of_the_model_ends_the_model_and_one_of_the_data_the_run(kind, ends_run):
    decision = Attempts().decide(VISIT, failed(kind))
    assert (decision.again, decision.ends_run, decision.error) == (False, ends_run, ERROR)


@pytest.mark.parametrize(
    "fields, tries",
    [
        (failed("memory"), MAX_MEMORY_FAULTS),
        (failed("internal"), MAX_FAULTS),
        (died(-signal.SIGABRT, "F0000 check failed"), MAX_FAULTS),
        (died(-signal.SIGSEGV), MAX_FAULTS),
        (died(-35), MAX_FAULTS),
        (died(1, "ImportError: no"), MAX_FAULTS),
        (died(-signal.SIGABRT, "terminate called after throwing 'std::bad_alloc'"), MAX_MEMORY_FAULTS),
        (died(1, "MemoryError"), MAX_MEMORY_FAULTS),
        (died(-signal.SIGKILL), MAX_KILLED),
    ],
)
def test_the_same_fault_again_and_again_ends_the_model_only(fields, tries):
    attempts = Attempts()
    decisions = [attempts.decide(VISIT, fields) for _ in range(tries)]
    assert [decision.again for decision in decisions] == [True] * (tries - 1) + [False]
    assert not any(decision.ends_run for decision in decisions)
    assert attempts.decide(Visit((4,), 1, 2, 1), fields).again


_FAULTHANDLER = """Fatal Python error: Aborted

Current thread 0x00007f2a (most recent call first):
  File "/usr/lib/python3.11/site-packages/memory.py", line 30 in out_of_memory
Extension modules: numpy._core._multiarray_umath, OutOfMemory (total: 2)
"""
_RECOVERED = """Traceback (most recent call last):
  File "execute.py", line 53, in quick_execute
tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[4000,9000]

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "failures.py", line 77, in blaming
madlib_mop.trainer.process.failures.RequestFailure: not enough memory for a tensor of shape (4000, 9000)
"""
_BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
_OF_PYTORCH = "  what():  [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory\n"
_ABORTED = -signal.SIGABRT


@pytest.mark.parametrize(
    "status, stderr",
    [
        (_ABORTED, _BAD_ALLOC + _FAULTHANDLER),
        (_ABORTED, "F0000 00:00:17 8 a.cc:1] Check failed: OOM when allocating tensor of shape [9]\n" + _FAULTHANDLER),
        (_ABORTED, "2026-11-22 13:00:00.1: F x/cpu.cc:7] RESOURCE_EXHAUSTED: out of memory\n" + _FAULTHANDLER),
        (_ABORTED, "LLVM ERROR: out of memory\nAllocation failed\n" + _FAULTHANDLER),
        (_ABORTED, _RECOVERED + _BAD_ALLOC),
        (_ABORTED, "terminate called after throwing an instance of 'c10::Error'\n" + _OF_PYTORCH + _FAULTHANDLER),
        (1, _RECOVERED),
        (1, "Traceback (most recent call last):\n  File 'a.py', line 1\nMemoryError\n"),
        (1, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array\n"),
        (1, "tensorflow.python.framework.errors_impl.ResourceExhaustedError: failed to allocate memory [Op:Fill]\n"),
        (1, "RuntimeError: std::bad_alloc\n"),
        (1, "jax.errors.JaxRuntimeError: INTERNAL: Out of memory allocating 28 bytes.\n"),
    ],
)
def test_a_trainer_that_ran_out_of_memory_is_told_as_that(status, stderr):
    decision = Attempts().decide(VISIT, died(status, stderr))
    assert decision.error["message"] == "its trainer ran out of memory"
    assert "madlib_mop.trainer_memory_mb" in decision.error["hint"]


@pytest.mark.parametrize(
    "status, stderr",
    [
        (1, "ValueError: layer 'Memory' has no such argument\n"),
        (1, "ImportError: libm.so: cannot allocate memory in static TLS block\n"),
        (1, "MemoryError\n\nDuring handling of the above exception, another exception occurred:\n\nOSError: no file\n"),
        (1, "ValueError: the column is named MemoryError: std::bad_alloc\n"),
        (1, "RuntimeError: mat1 and mat2 shapes cannot be multiplied\n"),
        (_ABORTED, "W0000 cpu_allocator_impl.cc:83] Allocation of 2400 exceeds 10% of free system memory.\nF0000 no\n"),
        (_ABORTED, "F0000 executor.cc:1] Check failed: memory order\n" + _FAULTHANDLER),
        (-signal.SIGSEGV, _FAULTHANDLER),
        (-signal.SIGSEGV, _RECOVERED + _FAULTHANDLER),  # it has recovered from the earlier lack of memory
        (_ABORTED, _RECOVERED + "F0000 00:00:17 8 conv.cc:1] Check failed: a == b\n" + _FAULTHANDLER),
        (_ABORTED, ""),
    ],
)
def test_what_only_speaks_of_memory_is_no_lack_of_it(status, stderr):
    decision = Attempts().decide(VISIT, died(status, stderr))
    assert decision.error["message"].startswith("its trainer died repeatedly (")
    assert "trainer_memory_mb" not in decision.error["hint"]


def test_the_last_words_are_those_before_the_stacks():
    error = Attempts().decide(VISIT, died(_ABORTED, "F0000 conv.cc:1] Check failed: a == b\n" + _FAULTHANDLER)).error
    assert error["hint"] == "Its last output: F0000 conv.cc:1] Check failed: a == b"
    error = Attempts().decide(VISIT, died(-signal.SIGSEGV, _FAULTHANDLER)).error
    assert error["hint"] == "Its last output: Fatal Python error: Aborted"


def test_killed_trainers_do_not_count_as_faults():
    attempts = Attempts()
    for _ in range(MAX_FAULTS):
        assert attempts.decide(VISIT, died(-signal.SIGKILL)).again
    assert attempts.decide(VISIT, failed("internal")).again


@pytest.mark.parametrize("sqlstate", ["42501", "42P01", "22023", "28000"])
def test_no_right_or_no_table_ends_the_run(sqlstate):
    decision = Attempts().decide(VISIT, sql(sqlstate))
    assert (decision.again, decision.ends_run) == (False, True)
    assert ("madlib_mop.resume" in (decision.error.get("hint") or "")) == (sqlstate in ("42P01", "42501"))
    assert ("madlib_mop.grant_use" in (decision.error.get("hint") or "")) == (sqlstate == "42501")


def test_a_lock_that_is_not_to_be_had_ends_the_run_with_the_reason():
    decision = Attempts().decide(VISIT, sql("55P03"))
    assert decision.ends_run and "holds a lock on a table that the statement needs" in decision.error["hint"]


@pytest.mark.parametrize("sqlstate", ["40001", "53100", "XX000", None])
def test_what_may_pass_is_tried_again_and_then_ends_the_run(sqlstate):
    attempts = Attempts()
    decisions = [attempts.decide(VISIT, sql(sqlstate)) for _ in range(MAX_FAULTS)]
    assert [(v.again, v.ends_run) for v in decisions] == [(True, False)] * (MAX_FAULTS - 1) + [(False, True)]


def test_a_reason_says_what_where_and_what_to_do_in_one_line():
    decision = Attempts().decide(VISIT, failed("model"))
    assert decision.reason(VISIT) == ("the loss is NaN (epoch 2, position 1, segment 1); Use a smaller learning rate.")
    assert decision.reason(Evaluation((3,), 1)).startswith("the loss is NaN (evaluation, segment 1); ")


def test_no_traceback_gets_into_a_reason():
    stderr = 'Traceback (most recent call last):\n  File "/secret/path.py", line 1\nValueError: what was wrong\n\n'
    reason = Attempts().decide(VISIT, died(1, stderr)).reason(VISIT)
    assert "Traceback" not in reason and "secret" not in reason and "\n" not in reason
    assert reason.endswith("Its last output: ValueError: what was wrong")


@pytest.mark.parametrize(
    "task, key",
    [
        (Visit((3,), 1, 2, 1), "Visit(model=3, segment=1, epoch=2, position=1)"),
        (Visit((3, 5), 1, 2, 1), "Visit(models=(3, 5), segment=1, epoch=2, position=1)"),
        (Average((1,), 0, 4), "Average(model=1, segment=0, epoch=4)"),
        (
            Evaluation((3,), 1, EvaluationTask((3,), (("training", 1), ("validation", 0)), 2)),
            "Evaluation(model=3, segment=1, payload=EvaluationTask(mst_keys=(3,),"
            " shards=(('training', 1), ('validation', 0)), epoch=2, computes_results=False))",
        ),
        (
            Evaluation((3, 5), 1, EvaluationTask((5,), (("training", 1),), 2, computes_results=True)),
            "Evaluation(models=(3, 5), segment=1, payload=EvaluationTask(mst_keys=(5,),"
            " shards=(('training', 1),), epoch=2, computes_results=True))",
        ),
    ],
)
def test_a_driver_continues_with_the_counts_that_an_earlier_version_recorded(task, key):
    """The keys of a single model's tasks are those of version 1.0.0, except for evaluations: theirs are of 1.1.0."""
    assert fault_key(task) == key
    attempts = Attempts({key: {"faults": MAX_FAULTS - 1, "killed": 0}})
    assert attempts.begin(task) == MAX_FAULTS and not attempts.decide(task, failed("internal")).again


def test_an_interrupted_run_goes_on_with_the_count():
    recorded = {}
    before = Attempts(None, recorded.update)
    for _ in range(MAX_FAULTS - 1):
        before.begin(VISIT)
        assert before.decide(VISIT, died(-signal.SIGSEGV)).again
    assert before.decide(Visit((4,), 1, 2, 1), died(-signal.SIGKILL)).again
    resumed = Attempts(json.loads(json.dumps(recorded)))
    assert resumed.begin(VISIT) == MAX_FAULTS
    assert not resumed.decide(VISIT, died(-signal.SIGSEGV)).again
    assert resumed.decide(Visit((4,), 1, 2, 1), died(-signal.SIGSEGV)).again


@pytest.mark.parametrize("fields", [sql("53100"), died(-signal.SIGABRT)])
def test_what_has_ended_a_run_or_a_model_is_counted_anew(fields):
    kept = []
    attempts = Attempts(None, kept.append)
    for _ in range(MAX_FAULTS):
        attempts.decide(VISIT, fields)
    assert [len(tasks) for tasks in kept] == [1] * (MAX_FAULTS - 1) + [0]
