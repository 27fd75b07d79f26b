"""The process that trains gradient boosting: what it predicts is scikit-learn's, within its limits and the sandbox."""

import os
import pathlib
import subprocess
import sys
import uuid

import numpy as np
import pytest
from mop_backend.forkserver import BOOSTING, ForkServer
from mop_backend.frames import Channel
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from tests.helpers.unit.trainer import REPOSITORY, command

_RUN = """
import sys
sys.path[:0] = {paths!r}
if {hidden!r}:
    sys.modules["sklearn"] = None
from madlib_mop.trainer import boosting
boosting.main()
"""
ROWS = 400


class Boosting:
    """The process, started, or forked by a fork server; the context manager ends it."""

    def __init__(
        self, sandbox: bool = True, hidden: bool = False, memory: int = 2 << 30, server: ForkServer | None = None
    ):
        code = _RUN.format(paths=[str(REPOSITORY), str(REPOSITORY / "plpython")], hidden=hidden)
        words = [sys.executable, "-I", "-c", code]
        with open(os.devnull, "wb") as null:
            self._process = (
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=null)
                if server is None
                else server.fork(null.fileno())
            )
        self.pid = self._process.pid
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())
        self.started, _ = self.ask({"op": "start", "sandbox": sandbox, "memory_limit_bytes": memory})

    def __enter__(self) -> "Boosting":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def ask(self, header, arrays=()):
        self._channel.send(header, [np.ascontiguousarray(array).data.cast("B") for array in arrays])
        return self._channel.receive()

    def fit(self, xs, ys, n_classes, seed=1, most_inputs=512, most_rows=1 << 20, cut=150, terms=()):
        """Send the rows in buffers, and train; return the answer."""
        index = [place for place, x in enumerate(xs) if x.dtype == np.int32]
        begin = {"op": "shard_begin", "n_x": len(xs), "n_y": len(ys), "normalizing_const": 1.0, "index_inputs": index}
        self._channel.send(begin, [])
        for start in range(0, len(xs[0]), cut):
            part = [np.ascontiguousarray(array[start : start + cut]) for array in (*xs, *ys)]
            shapes = [list(array.shape) for array in part]
            self._channel.send({"op": "shard_rows", "shapes": shapes}, [array.data.cast("B") for array in part])
        more = {"most_inputs": most_inputs, "most_rows": most_rows, "terms": terms}
        return self.ask({"op": "fit", "n_classes": n_classes, "seed": seed, **more})[0]

    def predict(self, xs):
        index = [place for place, x in enumerate(xs) if x.dtype == np.int32]
        header = {"op": "predict", "shapes": [list(x.shape) for x in xs], "index_inputs": index}
        answer, blobs = self.ask(header, xs)
        if "error" in answer:
            return answer["error"]["message"]
        shapes = answer["shapes"]
        return [np.frombuffer(blob, np.float32).reshape(shape) for blob, shape in zip(blobs, shapes, strict=True)]


@pytest.fixture(scope="module")
def boosting():
    with Boosting() as process:
        yield process


@pytest.fixture(scope="module")
def rows():
    """Numbers and a category, of which odd codes have a higher target; classes and numbers that depend on both."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(ROWS, 3)).astype(np.float32)
    codes = rng.integers(0, 12, (ROWS, 1)).astype(np.int32)
    score = numbers[:, 0] + 2.0 * (codes[:, 0] % 2) + rng.normal(size=ROWS) / 4
    one_hot = np.eye(3, dtype=np.int16)[np.digitize(score, [0.0, 1.5])]
    return [numbers, codes], [one_hot, score.astype(np.float32)[:, np.newaxis]]


def test_the_predictions_are_those_of_scikit_learn_with_its_defaults(boosting, rows):
    xs, (one_hot, score) = rows
    answer = boosting.fit(xs, [one_hot, score], [3, 0], seed=7)
    assert (answer["n_rows"], answer["n_inputs"]) == (ROWS, 4)
    x = np.concatenate(xs, axis=1, dtype=np.float64)
    options = {"random_state": 7, "categorical_features": [False, False, False, True]}
    probabilities, numbers = boosting.predict(xs)
    with threadpool_limits(1):
        classifier = HistGradientBoostingClassifier(**options).fit(x, one_hot.argmax(axis=1))
        regressor = HistGradientBoostingRegressor(**options).fit(x, score[:, 0].astype(np.float64))
        np.testing.assert_allclose(probabilities, classifier.predict_proba(x), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(numbers[:, 0], regressor.predict(x), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def forked():
    """A process that a fork server has forked."""
    server = ForkServer(f"madlib_mop.tests.{uuid.uuid4().hex}", os.getpid(), command(BOOSTING))
    with Boosting(server=server) as process:
        yield process


def test_a_forked_process_predicts_the_same(boosting, forked, rows):
    xs, (one_hot, score) = rows
    for process in (boosting, forked):
        process.fit(xs, [one_hot, score], [3, 0], seed=7)
    own, found = boosting.predict(xs), forked.predict(xs)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in own]


def test_a_forked_process_gives_up_the_same_rights(boosting, forked):
    """And it has no file of the fork server, which has one thread: a lock of another one would stay locked."""
    assert forked.started == boosting.started
    processes = [pathlib.Path(f"/proc/{process.pid}") for process in (boosting, forked)]
    own, found = ({line for line in (one / "status").read_text().splitlines() if line.startswith(("NoNewPrivs", "Sec"))}
                  for one in processes)  # fmt: skip
    assert found == own
    assert len({(process / "oom_score_adj").read_text() for process in processes}) == 1
    own, found = (sorted(os.readlink(fd).partition(":")[0].replace(str(one), "own") for fd in (one / "fd").iterdir())
                  for one in processes)  # fmt: skip
    assert found == own
    parent = pathlib.Path(f"/proc/{forked.pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert parent != str(os.getpid()) and os.listdir(f"/proc/{parent}/task") == [parent]


def test_the_fork_server_has_one_thread_before_it_forks():
    """Libraries that start threads end them at a fork, if they are careful: it does not rely on that."""
    code = (
        f"import sys, os; sys.path[:0] = {[str(REPOSITORY), str(REPOSITORY / 'plpython')]!r};"
        "from madlib_mop.trainer import boosting_forkserver; boosting_forkserver._load();"
        "print('sklearn.ensemble' in sys.modules, len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], env={}, capture_output=True, text=True, check=True)
    assert done.stdout == "True 1\n"


def test_a_class_without_training_rows_has_no_probability_and_a_single_one_has_all(boosting, rows):
    xs, (one_hot, _) = rows
    labels = one_hot.argmax(axis=1).astype(np.int16)[:, np.newaxis]
    labels[labels == 1] = 3
    boosting.fit(xs, [labels, np.full_like(labels, 1)], [4, 2])
    several, single = boosting.predict(xs)
    assert several.shape == (ROWS, 4) and not several[:, 1].any() and several[:, 3].any()
    assert single.tolist() == [[0.0, 1.0]] * ROWS


def test_codes_that_are_no_category_of_scikit_learn_are_missing_values(boosting, rows):
    xs, (_, score) = rows
    boosting.fit(xs, [score], [0])
    others = np.array([[300], [-5], [2**31 - 1]], np.int32)
    found = boosting.predict([np.repeat(xs[0][:1], 3, axis=0), others])
    assert np.isfinite(found[0]).all() and len(np.unique(found[0])) == 1


def test_of_many_inputs_those_most_correlated_with_the_target_are_used(boosting):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 700)).astype(np.float32)
    y = (x[:, 613] > 0).astype(np.int16)[:, np.newaxis]
    answer = boosting.fit([x], [y], [2], most_inputs=5)
    assert answer["n_inputs"] == 5
    (found,) = boosting.predict([x])
    assert (found.argmax(axis=1) == y[:, 0]).mean() > 0.95


def sparse(matrix, width):
    """Return the indices and the weights of the columns that are not zero, as a text has them."""
    indices, weights = np.zeros((len(matrix), width), np.int32), np.zeros((len(matrix), width), np.float32)
    for row, values in enumerate(matrix):
        (used,) = np.nonzero(values)
        indices[row, : len(used)], weights[row, : len(used)] = used, values[used]
    return indices, weights


@pytest.mark.parametrize("most_inputs", [512, 6])
def test_a_text_is_a_column_for_each_term(boosting, rows, most_inputs):
    """Also where the most correlated columns are chosen: as of a dense matrix."""
    (numbers, codes), (one_hot, _) = rows
    rng = np.random.default_rng(5)
    matrix = rng.random((ROWS, 40), np.float32) * (rng.random((ROWS, 40)) < 0.1)
    matrix[:, 0] = 0.0
    matrix[:, 17] = one_hot[:, 1] * rng.random(ROWS)
    terms, weights = sparse(matrix, 20)
    dense = boosting.fit([numbers, codes, matrix], [one_hot], [3], most_inputs=most_inputs)
    (expected,) = boosting.predict([numbers, codes, matrix])
    texts = [numbers, terms, weights, codes]
    answer = boosting.fit(texts, [one_hot], [3], most_inputs=most_inputs, terms=[[1, 2, 40]])
    assert answer["n_inputs"] == dense["n_inputs"] == min(44, most_inputs)
    (found,) = boosting.predict(texts)
    assert np.allclose(found, expected, atol=1e-5) and (found.argmax(axis=1) == one_hot.argmax(axis=1)).mean() > 0.9
    assert "a term that is not one of 40" in boosting.predict([numbers, terms + 40, weights, codes])
    alone = boosting.fit([terms, weights], [one_hot], [3], most_inputs=most_inputs, terms=[[0, 1, 40]], most_rows=200)
    assert (alone["n_rows"], alone["n_inputs"]) == (200, min(40, most_inputs))


def test_a_sample_of_the_rows_depends_on_the_seed_alone(boosting, rows):
    xs, (_, score) = rows

    def predicted(seed):
        assert boosting.fit(xs, [score], [0], seed=seed, most_rows=100)["n_rows"] == 100
        return boosting.predict(xs)[0].tolist()

    assert predicted(3) == predicted(3) != predicted(4)


def test_a_class_with_one_row_does_not_stop_a_large_table(boosting):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(12_000, 1)).astype(np.float32)
    y = (x > 0).astype(np.int16)
    y[5] = 2
    assert boosting.fit([x], [y], [3], cut=6000)["n_rows"] == 12_000


def test_rows_that_contradict_their_form_are_an_error_and_the_process_goes_on(boosting, rows):
    xs, (one_hot, score) = rows
    bad = xs[0].copy()
    bad[3, 1] = np.nan
    assert "nan" in boosting.fit([bad, xs[1]], [score], [0])["error"]["message"]
    assert "not one of 2" in boosting.fit(xs, [np.full((ROWS, 1), 2, np.int16)], [2])["error"]["message"]
    assert "has no rows" in boosting.fit([x[:0] for x in xs], [score[:0]], [0])["error"]["message"]
    assert "no operation" in boosting.ask({"op": "train"})[0]["error"]["message"]
    boosting.fit(xs, [one_hot], [3])
    assert "fewer than in training" in boosting.predict([xs[0][:, :2], xs[1]])


def test_without_scikit_learn_it_says_so():
    with Boosting(hidden=True) as process:
        assert process.started["version"] is None


def test_beyond_its_memory_is_an_error_and_the_process_goes_on(rows):
    xs, (_, score) = rows
    with Boosting(memory=1 << 30) as process:
        wide = np.zeros((50_000, 4000), np.float32)
        failed = process.fit([wide], [np.zeros((50_000, 1), np.float32)], [0], cut=1000)
        assert failed["error"]["sqlstate"] == "53000"
        assert process.fit(xs, [score], [0])["n_rows"] == ROWS
