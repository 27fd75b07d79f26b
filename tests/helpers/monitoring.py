"""A run for the tests of monitoring: models with metrics of epochs and visits, one that fails; its signals and log."""

import json
import re
import select
import threading

from tests.helpers.security.attacks import user
from tests.helpers.training import ADAM, SGD, load_digits, one_thread, pack, quiet_keras, script, select_configurations

OWNER, VIEWER, OTHER = "monitored", "monitoring", "unrelated"
N_SEGMENTS, N_EPOCHS, N_TRAINED = 2, 2, 2
BROKEN = "def broken(y_true, y_pred): return y_true.nothing(y_pred)"
#: As an identifier it is valid; in the log it must not begin a line.
TABLE = "watched\nLOG:  madlib_mop: run 1 ended"
_LINE = re.compile(
    r"@(?P<database>\S+) LOG:  (madlib_mop: run (?P<run_id>\d+) (?P<what>\w+) kind=(?P<kind>\w+)"
    r" owner=(?P<owner>\".*?(?<!\\)\") output=(?P<output>\".*(?<!\\)\")"
    r" state=(?P<state>\w+) seconds=(?P<seconds>[\d.]+))\n(?=(?P<next>.*))"
)


def softmax() -> str:
    """Return the JSON of a network with an L2 penalty."""
    one_thread()
    keras = quiet_keras()
    penalty = keras.regularizers.L2(0.001)
    output = keras.layers.Dense(10, activation="softmax", kernel_regularizer=penalty)
    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), output]).to_json()


def make_monitored(db) -> None:
    """Make the roles, the packed digits, and the configurations of three models; the third fails in its first visit."""
    user(db, OWNER)
    user(db, OTHER)
    db.cluster.create_role(VIEWER)
    db.rows("SELECT madlib_mop.grant_read(%s, %s)", [VIEWER, OWNER])
    load_digits(db, 120, 40)
    pack(db, N_SEGMENTS)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [softmax()])
    db.rows("SELECT madlib.load_custom_function('functions', %s, 'broken')", [BROKEN.encode()])
    broken = "loss='broken', optimizer='Adam(lr=0.01)'"
    texts = [(1, text, "batch_size=16, epochs=1") for text in (ADAM, SGD, broken)]
    select_configurations(db, "mst", texts)
    db.rows("UPDATE mst_summary SET object_table = 'functions'")
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {OWNER}")
    db.rows(f"GRANT SELECT ON madlib.functions TO {OWNER}")


def train_monitored(db) -> int:
    """Train the configurations as their owner; return the run."""
    table = f'{OWNER}."{TABLE}"'
    script(
        db,
        "SELECT madlib.madlib_keras_fit_multiple_model('public.train', $t$" + table + "$t$, 'public.mst', "
        f"{N_EPOCHS}, validation_table := 'public.valid', metrics_compute_frequency := 1, seed := 3,"
        " schedule := 'rotation', metrics_every := 'visit', metrics_sample_rows := 10)",
        role=OWNER,
    )
    return db.value("SELECT max(run_id) FROM madlib_mop.run")


class Signals:
    """Listens to the channel of live pages; ``seen`` has the run's state and visits at each notification."""

    def __init__(self, db, role: str):
        self.seen: list[tuple[str, str, int]] = []
        self._db = db
        self._stop = threading.Event()
        self._connection = db.connect(role)
        with self._connection.cursor() as cursor:
            cursor.execute("LISTEN madlib_mop_runs")
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def _listen(self) -> None:
        while not self._stop.is_set():
            if select.select([self._connection], [], [], 0.1)[0]:
                self._connection.poll()
                while self._connection.notifies:
                    run_id = self._connection.notifies.pop(0).payload
                    state = self._db.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [int(run_id)])
                    n_visits = "SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s"
                    self.seen.append((run_id, state, self._db.value(n_visits, [int(run_id)])))


def lines_of(db, run_id: int) -> list[dict[str, str]]:
    """Return a run's lines in the server's log, in parts; ``next`` is the line that follows it."""
    text = db.cluster.log_tail(100_000)
    wanted = (db.name, str(run_id))
    found = [m.groupdict() for m in _LINE.finditer(text + "\n") if (m["database"], m["run_id"]) == wanted]
    return [{**line, "owner": json.loads(line["owner"]), "output": json.loads(line["output"])} for line in found]
