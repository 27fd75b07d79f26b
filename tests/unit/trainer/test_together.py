"""Records of several sessions that a shared trainer predicts together: the bits and the errors of each one alone."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.trainer import server  # noqa: E402
from madlib_mop.trainer.graphs.predict import Predictor  # noqa: E402
from madlib_mop.trainer.visits import Visitor  # noqa: E402
from tests.helpers.unit.columns import fitted, numbers, spec, target, texts  # noqa: E402
from tests.helpers.unit.records import field, record  # noqa: E402

FIELDS = [field("float8", "x"), field("float8", "z"), field("text", "a")]
HEADER = {"op": "predict_row", "fields": [[one.name, one.reader, one.oid, one.reader] for one in FIELDS]}


def dense(x):
    return layers.Dense(33, "gelu")(layers.LayerNormalization()(layers.Dense(50)(x)))


def convolutional(x):
    return layers.Flatten()(layers.Conv1D(8, 2)(layers.Reshape((-1, 1))(x)))


def preprocessor():
    """Three columns, a class and a number."""
    random = np.random.default_rng(5)
    raw = [numbers(list(random.normal(size=60))) for _ in range(2)]
    columns = [(spec("x", impute="error"), raw[0]), (spec("z"), raw[1])]
    columns += [(spec("a", "category", encode="one_hot"), texts(60 * ["é"]))]
    targets = [(target("y"), texts(["red", "green", "blue"] * 20)), (target("n", "number"), raw[0])]
    return fitted([*columns, *targets])


@pytest.fixture(scope="module")
def service():
    """The service of a trainer with two models."""
    keras.utils.set_random_seed(3)
    fitted_ = preprocessor()
    (tensor,) = fitted_.tensors
    made = server.TrainerService(lambda: None, is_shared=True)
    made._visitor, made.started = Visitor(), True
    for key, hidden in (("dense", dense), ("convolutional", convolutional)):
        x = keras.Input(tensor.shape)
        inner = hidden(x)
        model = keras.Model(x, [layers.Dense(3, "softmax")(inner), layers.Dense(1)(inner)])
        made._visitor.predictors.add(key, Predictor(model, 1.0, fitted_.to_json()))
    return made


def request(number, key="dense", encoding="UTF8", **values):
    """Return a request with one record; numbers have other values."""
    random = np.random.default_rng(number)
    row = {"x": random.normal(), "z": random.normal(), "a": "é" if number % 2 else None, **values}
    return {**HEADER, "key": key, "encoding": encoding}, [record(FIELDS, [row[one.name] for one in FIELDS])]


def bits(answer):
    header, blobs = answer
    return header["single"], tuple(header["shape"]), header["widths"], [bytes(blob) for blob in blobs]


class Sessions:
    """In place of `Seats`: requests of sessions by their numbers, those of each round at once; and the answers."""

    def __init__(self, *rounds):
        self._rounds = list(rounds)
        self.answers, self.worked_on, self._now = {}, [], []

    def ready(self, idle_s):
        self._round = self._rounds.pop(0) if self._rounds else None
        return self._round and list(self._round)

    def receive(self, seat, limits):
        return self._round[seat]

    def serves(self, seats):
        self._now = list(seats)
        if seats:
            self.worked_on.append(list(seats))

    def send(self, seat, answer, blobs):
        assert self._now == [], "the process could end now, for those whose work is done"
        self.answers[seat] = answer, blobs


@pytest.fixture
def serve(service):
    """Return a function that has a trainer serve sessions."""

    def serve(*rounds):
        sessions = Sessions(*rounds)
        server.serve_sessions(sessions, service)
        return sessions

    return serve


@pytest.mark.parametrize("n_rows", [1, 2, 16, 17, 48, 128])
def test_records_have_the_same_bits_together_and_alone(service, n_rows):
    requests = [request(number) for number in range(n_rows)]
    alone = [service.predict_row(server.Request(header), blobs) for header, blobs in requests]
    together = service.predict_together(requests)
    assert [bits(answer) for answer in together] == [bits(answer) for answer in alone]
    assert alone[0][0]["widths"] == [3, 1] and len({bytes(blobs[0]) for _, blobs in together}) == n_rows


def test_those_that_arrive_at_the_same_time_are_predicted_together(service, serve):
    requests = {seat: request(seat) for seat in range(20)}
    sessions = serve(requests, {20: request(20)})
    assert sessions.worked_on == [list(range(20)), [20]]
    for seat, (header, blobs) in {**requests, 20: request(20)}.items():
        assert bits(sessions.answers[seat]) == bits(service.predict_row(server.Request(header), blobs))


def test_a_record_with_an_error_is_an_error_of_its_session_alone(service, serve):
    requests = {seat: request(seat) for seat in range(5)} | {2: request(2, x=None)}
    sessions = serve(requests)
    assert sessions.worked_on[0] == list(range(5))
    assert sessions.answers[2][0]["error"]["message"] == "column 'x' is NULL, and its impute is error"
    for seat in (0, 1, 3, 4):
        header, blobs = requests[seat]
        assert bits(sessions.answers[seat]) == bits(service.predict_row(server.Request(header), blobs))


def test_records_are_answered_before_another_request_that_may_end_the_trainer(serve):
    sessions = serve({0: request(0), 1: request(1), 2: ({"op": "stats"}, []), 3: request(3), 4: request(4)})
    assert sessions.worked_on == [[0, 1], [2], [3, 4]]


def test_networks_whose_rows_have_other_bits_in_batches_predict_each_alone(serve):
    sessions = serve({seat: request(seat, "convolutional") for seat in range(3)})
    assert sessions.worked_on == [[0], [1], [2]] and all(answer["ok"] for answer, _ in sessions.answers.values())


def test_records_of_other_encodings_models_and_columns_are_not_predicted_together(service, serve):
    latin = {seat: request(seat, encoding="LATIN1", a="é".encode("latin1")) for seat in (2, 3)}
    lacking = {4: ({**request(4)[0], "fields": HEADER["fields"][:2]}, [record(FIELDS[:2], [1.0, 2.0])])}
    sessions = serve({**{seat: request(seat, a="é") for seat in (0, 1)}, **latin, **lacking, 5: request(5, "none")})
    assert sorted(sessions.worked_on) == [[0, 1], [2, 3], [4], [5]]
    for seat, (header, blobs) in latin.items():
        same = request(seat, a="é")
        assert bits(sessions.answers[seat]) == bits(service.predict_row(server.Request(same[0]), same[1]))
        assert bits(sessions.answers[seat]) == bits(service.predict_row(server.Request(header), blobs))
    assert sessions.answers[4][0]["error"]["sqlstate"] == "42703" and sessions.answers[5][0]["kind"] == "not loaded"


@pytest.mark.parametrize("n_rows, is_done", [(4096, True), (4097, False)])
def test_a_shared_trainer_predicts_no_more_rows_at_once_than_are_read_ahead(service, n_rows, is_done):
    (header, (blob,)) = request(1)
    many = {**header, "lengths": n_rows * [len(blob)]}
    answer, _ = server._handle(service, many, [n_rows * blob])
    assert answer.get("ok", False) == is_done and answer.get("kind") == (None if is_done else "not shared")
    width = service._visitor.predictors.get("dense")._input_shapes[0][0]
    values = {"op": "predict_values", "key": "dense", "dtypes": ["f4"], "shapes": [[n_rows, width]]}
    answer, _ = server._handle(service, values, [bytes(4 * n_rows * width)])
    assert answer.get("ok", False) == is_done and answer.get("kind") == (None if is_done else "not shared")


def test_a_single_row_of_many_values_is_predicted_by_a_shared_trainer(service):
    keras.utils.set_random_seed(3)
    long = keras.Sequential([keras.Input((5000,)), layers.Dense(1)])
    service._visitor.predictors.add("long", Predictor(long, 1.0))
    request_ = {"op": "predict_values", "key": "long", "dtypes": ["f4"], "shapes": [[5000]]}
    assert server._handle(service, request_, [bytes(20_000)])[0]["ok"]


def test_a_shared_trainer_explains_nothing(service):
    answer, _ = server._handle(service, {"op": "explain_row", "key": "dense"}, [b""])
    assert answer["kind"] == "not shared"


def test_a_shared_trainer_drops_its_models_when_memory_was_short(service):
    """Nobody knows the bytes of their graphs, which would count as lost."""
    other = server.TrainerService(lambda: None, is_shared=True)
    other._visitor, other.started = Visitor(), True
    other._visitor.predictors.add("k", service._visitor.predictors.get("dense"))
    assert other.recover() is False and other._visitor.predictors.keys() == []
