"""Cancels of Greenplum, whose PL/Python has Python raise KeyboardInterrupt once for each signal."""

import subprocess
import sys

import pytest

from tests.helpers.clones import ROOT

#: Two signals arrive at once within a call; then the session makes another call.
_CODE = """
import ctypes, signal, sys, types
libc = ctypes.CDLL(None)
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
sys.modules["plpy"] = plpy
from mop_backend import interrupts
def interrupt(number, frame):
    raise KeyboardInterrupt
SIGNALS = signal.SIGUSR1, signal.SIGUSR2
for number in SIGNALS:
    signal.signal(number, interrupt)
def cancelled():
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        signal.raise_signal(number)
    libc.sigprocmask(signal.SIG_SETMASK, bytes(128), None)
def next_call():
    return "done"
call = {call}
try:
    call()
except KeyboardInterrupt:
    try:
        result = next_call()
    except KeyboardInterrupt:
        result = "interrupted"
print(result)
"""


@pytest.mark.parametrize(
    "call, expected", [("interrupts.with_whole_cancels(cancelled)", "done"), ("cancelled", "interrupted")]
)
def test_a_cancel_by_two_signals_leaves_nothing_for_the_next_call(call, expected):
    code = _CODE.format(paths=[str(ROOT / "plpython")], call=call)
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == [expected]
