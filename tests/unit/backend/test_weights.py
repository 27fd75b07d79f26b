"""Weights in a field and in parts: read buffer by buffer, sent without being held, and checked before the last one."""

import hashlib
import os
import threading

import pytest
from mop_backend.frames import BlobsInTurn, Channel, lengths_of
from mop_backend.weights import JoinedWeights, ModelWeights, WeightErrors, WeightsPlace, of_field, read_stored

DATA = bytes(range(10)) * 3
DIGEST = hashlib.sha256(DATA).hexdigest()


class Damaged(Exception):
    pass


class Changed(Exception):
    pass


ERRORS = WeightErrors(Damaged, Changed)


def in_parts(n_bytes, data=DATA, digest=DIGEST):
    """Return weights in parts of a size, and the list of the parts that were read."""
    parts, read = [data[i : i + n_bytes] for i in range(0, len(data), n_bytes)], []

    def part(number):
        read.append(number)
        return parts[number]

    return ModelWeights([len(one) for one in parts], part, digest, ERRORS), read


@pytest.mark.parametrize("n_bytes", [1, 7, 10, 30, 100])
def test_parts_are_read_each_time_and_one_at_a_time(n_bytes):
    weights, read = in_parts(n_bytes)
    assert weights.n_bytes == len(DATA) and not read, "lengths are known before anything is read"
    assert b"".join(weights) == DATA == b"".join(weights) and len(read) == 2 * len(weights.lengths)
    parts, read = in_parts(n_bytes)
    next(iter(parts))
    assert read == [0]
    assert weights.digest() == DIGEST


@pytest.mark.parametrize("digest", [DIGEST, None])
def test_the_digest_of_all_is_computed_once(monkeypatch, digest):
    """To load a model of a field, each further one would cost seconds."""
    n_hashed, sha256 = [], hashlib.sha256

    class Counted:
        def __init__(self):
            self._of = sha256()

        def update(self, data):
            n_hashed.append(len(data))
            self._of.update(data)

        def hexdigest(self):
            return self._of.hexdigest()

    weights, _ = in_parts(7, digest=digest)
    monkeypatch.setattr("mop_backend.weights.hashlib.sha256", Counted)
    assert weights.digest() == DIGEST and sum(n_hashed) == len(DATA)


def test_weights_of_another_digest_never_give_their_last_part():
    weights, _ = in_parts(7, digest="other")
    found = []
    with pytest.raises(Damaged):
        found.extend(iter_into(weights, found))
    assert b"".join(found) == DATA[:28]
    with pytest.raises(Damaged):
        of_field(DATA, "other", ERRORS)
    assert list(of_field(DATA, DIGEST, ERRORS)) == [DATA]


def iter_into(weights, found):
    """Iterate, and keep what came before an error."""
    for part in weights:
        found.append(part)
    return []


def test_weights_that_change_while_they_are_read_are_told_so():
    weights = ModelWeights([4, 4], lambda number: DATA[:4] if number == 0 else None, None, ERRORS)
    with pytest.raises(Changed):
        list(weights)
    with pytest.raises(Changed):
        list(ModelWeights([4], lambda _: DATA[:5], None, ERRORS))
    weights, _ = in_parts(7, digest=None)
    with pytest.raises(Changed):
        list(weights.only("another"))
    assert b"".join(weights.only(DIGEST)) == DATA


@pytest.mark.parametrize("first", ["iterated over", "hashed", "of an ensemble"])
def test_parts_without_a_recorded_digest_are_the_same_in_each_pass(first):
    """They are read anew; an edit between two passes would mix the weights of two models unnoticed."""
    rows = Rows([{"weights": None, "digest": None}], list(PARTS), None)
    weights = read_stored(rows, PLACE, ERRORS)
    if first == "hashed":
        assert weights.digest() == DIGEST
    else:
        assert b"".join(JoinedWeights([weights]) if first == "of an ensemble" else weights) == DATA
    assert b"".join(weights) == DATA and weights.digest() == DIGEST
    rows.parts[1] = (1, bytes(12))
    found = []
    with pytest.raises(Changed):
        iter_into(JoinedWeights([weights]), found)
    assert len(found) == 2, "the last part is not given out"
    with pytest.raises(Changed):
        weights.digest()


def test_a_pass_that_was_not_ended_says_nothing_of_the_others():
    rows = Rows([{"weights": None, "digest": None}], list(PARTS), None)
    weights = read_stored(rows, PLACE, ERRORS)
    next(iter(weights))
    rows.parts[1] = (1, bytes(12))
    assert b"".join(weights) == DATA[:12] + bytes(12) + DATA[24:]


def test_the_weights_of_several_models_come_one_after_the_other():
    one, _ = in_parts(7)
    other, _ = in_parts(16, DATA[::-1], None)
    both = JoinedWeights([one, other])
    assert b"".join(both) == DATA + DATA[::-1] and both.n_bytes == 60 and len(both.lengths) == 7
    damaged, _ = in_parts(7, digest="other")
    with pytest.raises(Damaged):
        list(JoinedWeights([damaged, one]))


class Rows:
    """A table of models with its parts: the queries are keys of what they return."""

    def __init__(self, field, parts, digest=DIGEST):
        self.field, self.parts, self.digest = field, parts, digest

    def __call__(self, query, params, types):
        assert len(params) == len(types)
        if query == "field":
            return self.field
        if query == "lengths":
            return [{"part": number, "n_bytes": len(data)} for number, data in self.parts]
        return [{"data": data} for number, data in self.parts if number == params[-1]]


PLACE = WeightsPlace("field", "lengths", "part", [5], ["integer"])
PARTS = [(0, DATA[:12]), (1, DATA[12:24]), (2, DATA[24:])]


def test_weights_are_found_in_the_field_or_in_the_parts():
    in_field = Rows([{"weights": DATA, "digest": DIGEST}], [])
    in_table = Rows([{"weights": None, "digest": DIGEST}], PARTS)
    for rows in (in_field, in_table):
        assert b"".join(read_stored(rows, PLACE, ERRORS)) == DATA
    assert list(read_stored(in_table, PLACE, ERRORS).lengths) == [12, 12, 6]
    without = PLACE._replace(lengths_query=None, part_query=None)
    with pytest.raises(Changed):
        read_stored(in_table, without, ERRORS)
    for field in ([], in_field.field * 2):
        with pytest.raises(Changed):
            read_stored(Rows(field, PARTS), PLACE, ERRORS)


@pytest.mark.parametrize("parts", [[], PARTS[1:], PARTS[::2], [*PARTS, PARTS[2]], [(0, DATA[:12]), (1, DATA[:12])]])
def test_parts_that_are_missing_or_doubled_or_of_another_model_are_damage(parts):
    rows = Rows([{"weights": None, "digest": DIGEST}], parts)
    with pytest.raises(Damaged):
        list(read_stored(rows, PLACE, ERRORS))


def test_a_frame_is_written_while_its_blobs_are_made():
    """More than a pipe holds: the second part is read when the first one has been sent."""
    size = 1 << 20
    parts, made = [os.urandom(size) for _ in range(4)], []
    read_fd, write_fd = os.pipe()
    reader, received = Channel(read_fd, -1), []

    def part(number):
        made.append(number)
        return parts[number]

    weights = ModelWeights([size] * 4, part, None, ERRORS)
    assert lengths_of(weights) == [size] * 4 == lengths_of(parts)
    sender = threading.Thread(target=lambda: Channel(-1, write_fd).send({"op": "load"}, weights))
    sender.start()
    header, received = reader.receive()
    sender.join()
    assert header == {"op": "load"} and received == parts and made == [0, 1, 2, 3]
    Channel(-1, write_fd).send({}, ModelWeights([3], lambda _: b"abc", None, ERRORS))
    assert reader.receive() == ({}, [b"abc"])
    for fd in (read_fd, write_fd):
        os.close(fd)


def test_blobs_in_turn_without_any_are_none():
    assert lengths_of(BlobsInTurn()) == []
