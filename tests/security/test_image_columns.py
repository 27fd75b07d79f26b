"""Hostile images in ordinary tables: each ends in one error, in a process that is shut in, and leaves nothing."""

import io
import os
import signal
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import psycopg2
import pytest
from PIL import Image, PngImagePlugin

from tests.helpers.faults import alive, children
from tests.helpers.images import bomb, make_pets, png
from tests.helpers.security.attacks import refusal, user
from tests.helpers.training import fit, one_thread, script

pytestmark = pytest.mark.one_session

ALICE = "alice_of_images"
DECODERS = ("madlib_mop.driver.data.decoders", "madlib_mop.packing.decoder")  # of a session, of a driver


@pytest.fixture(scope="module")
def photos(db):
    one_thread()
    user(db, ALICE)
    db.rows(f"GRANT CREATE ON SCHEMA public TO {ALICE}")
    make_pets(db)
    db.rows(f"ALTER TABLE pets OWNER TO {ALICE}")
    script(
        db,
        "SET madlib_mop.segments = 1",
        "SELECT madlib_mop.propose_columns('pets', 'pets_columns', 'kind', exclude => '{id}')",
        "UPDATE pets_columns SET width = 12 WHERE name = 'photo'",
        "SELECT madlib_mop.pack_columns('pets', 'pets_packed', 'kind', columns => 'pets_columns', seed => 1)",
        "SELECT madlib_mop.propose_networks('pets_packed', 'nets', 'configs', n_configs => 1)",
        role=ALICE,
    )
    fit(db, "models", "configs", 1, role=ALICE, source_table="pets_packed", seed=1)
    db.rows("CREATE TABLE hostile AS TABLE pets LIMIT 9", role=ALICE)
    return db


def text_bomb() -> bytes:
    """Return a PNG with a compressed text of 80 MB."""
    info = PngImagePlugin.PngInfo()
    info.add_text("a", "b" * (80 << 20), zip=True)
    file = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(file, "PNG", pnginfo=info)
    return file.getvalue()


#: Small files that would be large in memory, or contradict themselves.
HOSTILE = {
    "65,535 x 65,535 pixels": lambda: png(65_535, 65_535, zlib.compress(bytes(1000))),
    "2^31 - 1 pixels in a row": lambda: png((1 << 31) - 1, 1, zlib.compress(bytes(1000))),
    "a text of 80 MB": text_bomb,
    "no pixels": lambda: png(0, 0),
    "fewer pixels than the header says": lambda: png(5_000, 5_000, zlib.compress(bytes(1000))),
    "pixels that are not compressed": lambda: png(50, 50, bytes(1000)),
    "a JPEG's begin alone": lambda: b"\xff\xd8\xff",
}
CALLS = (
    "SELECT madlib_mop.pack_columns('hostile', 'out', 'kind', columns => 'pets_columns')",
    "SELECT madlib_mop.transform('pets_packed', 'hostile', 'out')",
    "SELECT madlib.validation_preprocessor_dl('hostile', 'out', '*', '*', 'pets_packed')",
    "SELECT madlib.madlib_keras_predict('models', 'hostile', 'id', '*', 'out', mst_key => 1)",
    "SELECT madlib_mop.predict_class('models', 1, h) FROM hostile h WHERE id = 4",
)


def put(db, file: bytes) -> None:
    db.rows("UPDATE hostile SET photo = %s WHERE id = 4", [file], ALICE)


@pytest.mark.one_case
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_is_one_error(photos, name):
    put(photos, HOSTILE[name]())
    connection = photos.connect(ALICE)
    for call in CALLS:
        error = refusal(connection, call)
        assert error.sqlstate == "22023" and "column 'photo'" in error.message and " image" in error.message, error
        assert "/" not in error.message and "0x" not in error.message, error  # no path, no address
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('out'), madlib_mop.predict_class('models', 1, p) FROM pets p LIMIT 1")
        assert cursor.fetchone()[0] is None
    connection.close()


def test_a_large_black_image_in_a_small_file_is_an_image(photos):
    """64 million pixels in 190 kB: less than the limit, so it takes memory of its decoder only."""
    put(photos, bomb())
    for call in CALLS[-2:]:
        photos.rows(call, role=ALICE)
    photos.rows("DROP TABLE out", role=ALICE)


class Killer(threading.Thread):
    """Kills each decoder below a process, as often as one appears."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.n_killed = 0

    def run(self) -> None:
        while not self._over.is_set():
            for process in decoders(self._pid):
                os.kill(process, signal.SIGKILL)
                self.n_killed += 1
            time.sleep(0.005)

    def __enter__(self) -> "Killer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def decoders(backend: int) -> list[int]:
    """Return the decoders of a session: its own, and those of its driver."""
    parents = [backend, *children(backend, "madlib_mop.driver")]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if parent in parents and any(module in command for module in DECODERS):
            found.append(int(entry.name))
    return found


@pytest.mark.one_case
@pytest.mark.parametrize("call", CALLS)
def test_a_decoder_that_is_killed_is_one_error_and_leaves_nothing(photos, call):
    put(photos, bomb())  # decoding takes half a second: long enough to be found on a busy machine too
    connection = photos.connect(ALICE)
    backend = connection.info.backend_pid
    with Killer(backend) as killer:
        error = refusal(connection, call)
    assert killer.n_killed > 0 and error.sqlstate == "22023"
    assert "column 'photo' is an image that crashed the decoder" in error.message
    assert not decoders(backend)
    with connection.cursor() as cursor:  # the next call has new decoders
        cursor.execute(call)
        cursor.execute("DROP TABLE IF EXISTS out, out_summary CASCADE")
    connection.close()


def test_the_decoder_of_a_session_is_shut_in_and_ends_with_it(photos):
    connection = photos.connect(ALICE)
    backend = connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.predict_class('models', 1, p) FROM pets p")
        (decoder,) = decoders(backend)
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{decoder}/status").read_text().splitlines())
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        os.kill(decoder, signal.SIGKILL)  # as after its idle time: the next image starts another one
        wait_until(lambda: not alive(decoder))
        cursor.execute("SELECT madlib_mop.predict_class('models', 1, p) FROM pets p")
        (decoder,) = [pid for pid in decoders(backend) if pid != decoder]
    connection.close()
    wait_until(lambda: not alive(decoder))


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_cancelled_prediction_ends_the_decoder(photos):
    """The answer for the image before must not be taken for that of the next."""
    put(photos, bomb())
    connection = photos.connect(ALICE)
    backend = connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.predict('models', 1, p) FROM pets p WHERE id = 1")
        expected = cursor.fetchone()
        (decoder,) = decoders(backend)
        os.kill(decoder, signal.SIGSTOP)
        cursor.execute("SET statement_timeout = '1s'")
        with pytest.raises(psycopg2.errors.QueryCanceled):
            cursor.execute(CALLS[-1])
        cursor.execute("RESET statement_timeout")
        assert not decoders(backend)
        cursor.execute("SELECT madlib_mop.predict('models', 1, p) FROM pets p WHERE id = 1")
        assert cursor.fetchone() == expected
    connection.close()


def test_records_with_hostile_lengths_in_place_of_an_image_are_one_error(photos):
    """Roles that may predict may call the inner function with any bytes."""
    connection = photos.connect(ALICE)
    oid = (17).to_bytes(4, "big")
    for body in (b"", oid, oid + b"\x7f\xff\xff\xff", oid + b"\xff\xff\xff\xf0", oid + (3).to_bytes(4, "big") + b"abc"):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT madlib_mop_calls._predict_row('models', 1, %s, 0, '{photo}', 'UTF8', %s),"
                " madlib_mop_calls._predict_error()->>'sqlstate'", [(1).to_bytes(4, "big") + body, f"{ALICE}, public"],
            )  # fmt: skip
            values, state = cursor.fetchone()
            assert values is None and state in ("22023", "42703"), (body, state)
    connection.close()
