"""The driver process: reads one call from the backend that started it, does it, and answers (see mop_backend.call).

Forked drivers come here by ``forkserver.py``.
"""

import ctypes
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence

from mop_backend.frames import Blob, Channel, Header, PeerGone
from mop_backend.machine import memory_bytes
from mop_backend.values import decode_arguments, encode_value

from madlib_mop.driver.session.stopping import Stopped, raise_on_sigterm
from madlib_mop.errors import MopError

_PR_SET_PDEATHSIG = 1
_LEAST_MEMORY_BYTES = 4 << 30


def main() -> int:
    """Run one call as a child of the backend; return the exit status."""
    _end_with_parent()
    return serve()


def serve() -> int:
    """Run one call, which stdin brings; the exit status is 0 unless the backend has ended."""
    _limit_memory()
    channel = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    try:
        header, blobs = channel.receive()
        out: list[Blob] = []
        channel.send(encode_value(_answer(header, blobs, channel), out), out)
    except (PeerGone, Stopped):
        return 1
    return 0


def _answer(header: Header, blobs: Sequence[Blob], channel: Channel) -> Header:
    gc.disable()  # without garbage collection, imports take 25 % less time
    import psycopg2
    from sqlalchemy.exc import SQLAlchemyError

    from madlib_mop.driver.commands import find_command
    from madlib_mop.driver.session.call import Call
    from madlib_mop.driver.session.caller import CallerSession
    from madlib_mop.driver.session.info import SessionInfo
    from madlib_mop.driver.session.messages import record_failed

    function = header["function"]
    try:
        command = find_command(function)
        gc.enable()
        call = Call.read(
            function,
            decode_arguments(header["arguments"], blobs),
            CallerSession(channel, SessionInfo(**header["session"])),
            header.get("continue_run"),
        )
        return {"do": "result", "value": command(call)}
    except MopError as error:
        message = error.message if error.message.startswith(function) else f"{function}: {error.message}"
        return {"do": "error", **error.as_dict(), "message": message}
    except (PeerGone, Stopped):
        raise
    except (psycopg2.Error, SQLAlchemyError) as raised:
        channel.send({"do": "log", "text": f"madlib_mop: {function}: {traceback.format_exc()}"})
        failure = record_failed(raised)
        return {"do": "error", **failure.as_dict(), "message": f"{function}: {failure.message}"}
    except MemoryError:
        limit_mb = resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20
        return {
            "do": "error",
            "sqlstate": "53000",
            "message": f"{function}: the driver process exceeded its memory limit, {limit_mb} MB",
            "hint": "Reduce the size of the call: fewer configurations, smaller buffers or smaller models.",
        }
    except Exception as error:  # noqa: BLE001 -- whatever it is, the user gets one line and the log the rest
        traceback.print_exc()
        channel.send({"do": "log", "text": f"madlib_mop: {function}: {traceback.format_exc()}"})
        return {
            "do": "error",
            "sqlstate": "XX000",
            "message": f"{function}: internal error: {type(error).__name__}: {error}",
            "hint": "This is a bug in madlib_mop; please report it. The server's log has the details.",
        }


def _limit_memory() -> None:
    """Limit this process to half of the machine's memory, but at least 4 GiB if the machine has as much.

    So it fails before the server does. It is the soft limit; child processes set their own.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = min(memory_bytes(), max(_LEAST_MEMORY_BYTES, memory_bytes() // 2))
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _end_with_parent() -> None:
    """Request SIGTERM when the backend dies; SIGTERM unwinds the stack, which cleans up sessions and roles."""

    raise_on_sigterm()
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # skips the interpreter's shutdown, which would add 0.2 s to every call
