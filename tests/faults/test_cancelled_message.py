"""Promise 6: a cancel that arrives while a message is sent to the client is reported as a cancel.

PostgreSQL also checks for interrupts after each message, where PL/Python raises plpy.Error instead of plpy.SPIError.
The test triggers the signal within the backend, at the moment when a driver would send a message.
"""

import json

import pytest

CALL = """
DO LANGUAGE plpython3u $body$
import os, signal, sys
if "LIBRARY/backend" not in sys.path:
    sys.path.insert(0, "LIBRARY/backend")
from mop_backend import __version__, call

class Driver:
    def __init__(self, *words, **more):
        self.says = iter([{"do": "run", "run_id": 7}, {"do": "KIND", "text": "model 1 is done"}])

    def send(self, *frame):
        pass

    def receive_in_turn(self):
        said = next(self.says)
        if said["do"] == "KIND":
            os.kill(os.getpid(), signal.SIGINT)
        return said, []

    def tell(self, header):
        pass

    def stop(self, grace_s):
        return 0

whole, call.Child = call.Child, Driver
try:
    answer = call.run("fit", "{}", None, None, None, __version__)
finally:
    call.Child = whole
plpy.execute(plpy.prepare("select set_config('test.answer', $1, false)", ["text"]), [answer])
$body$
"""


@pytest.mark.parametrize("kind", ["notice", "warning", "log"])
def test_a_cancel_within_a_message(db, state, kind):
    with db.connect() as connection, connection.cursor() as cursor:
        cursor.execute(CALL.replace("KIND", kind).replace("LIBRARY", str(state / "library")))
        cursor.execute("SELECT current_setting('test.answer')")
        error = json.loads(cursor.fetchone()[0])["error"]
    connection.close()
    assert error["sqlstate"] == "57014" and error["message"] == "canceling statement due to user request"
    assert "resume(7)" in error["hint"]
