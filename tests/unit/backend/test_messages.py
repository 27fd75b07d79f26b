"""The messages between driver, writer and trainer: each is read as it was written, and nothing else is."""

import json

import pytest
from mop_backend import messages
from mop_backend.messages import (
    BadMessage,
    ComputeMetrics,
    Done,
    Evaluate,
    EvaluatedMembers,
    EvaluationFigures,
    Failed,
    HostGone,
    LoadShard,
    MetricTotals,
    ModelStart,
    NeedsRows,
    ShardName,
    StartTrainer,
    StateWrite,
    Train,
    TrainRequest,
    VisitsCommitted,
    as_request,
    as_text,
    from_json,
    of_answer,
    of_request,
    read_answer,
    read_order,
    to_json,
)

SHARD = ShardName("training", 3)
TOTALS = MetricTotals((("loss", 2, True), ("auc", 400, False)), "AAAA")
FIGURES = EvaluationFigures(10, 0.5, {"accuracy": 1}, {}, TOTALS, {"compute_s": 0.25, "fused": 3})
ORDERS = [
    StartTrainer(),
    LoadShard(SHARD, None),
    LoadShard(SHARD, 4711),
    Train((StateWrite(1, 1_000_000, 2), None), SHARD, 1, 2, 3, "epoch 1", sample=0, is_staged=True),
    Train((StateWrite(1, 1_000_000, 2),), SHARD, 1, 2, 3, "epoch 1"),
    Evaluate((1, None), (SHARD, ShardName("validation", 0))),
    ComputeMetrics(1, SHARD, {"training": TOTALS}),
]
ANSWERS = [
    Done({"keras": "3.11", "gpus": []}),
    NeedsRows(SHARD, {"address": "a", "at": None}),
    VisitsCommitted({}, (), (), 0.5),
    Failed({"message": "no", "hint": None}, "model"),
    HostGone("alpha", "it is down"),
]


@pytest.mark.parametrize("message", ORDERS, ids=lambda message: type(message).__name__)
def test_an_order_is_read_as_it_was_written(message):
    assert read_order(as_text(message)) == message
    with pytest.raises(BadMessage, match="there is no message"):
        read_answer(as_text(message))


@pytest.mark.parametrize("message", ANSWERS, ids=lambda message: type(message).__name__)
def test_an_answer_is_read_as_it_was_written(message):
    assert read_answer(as_text(message)) == message


def test_a_request_and_its_answer_are_headers_of_frames():
    request = TrainRequest((ModelStart({"arch": {"layers": [1]}}, 2, has_state=True), None), "training:3", 1, 3)
    header = json.loads(json.dumps(as_request(request)))
    assert header["op"] == "train" and of_request(TrainRequest, header) == request
    answer = EvaluatedMembers((FIGURES, None))
    assert of_answer(EvaluatedMembers, json.loads(json.dumps({"ok": True, **to_json(answer)}))) == answer
    assert isinstance(of_answer(EvaluatedMembers, to_json(answer)).members[0].timing["fused"], int)


def test_what_may_be_missing_gets_its_default():
    assert from_json(ModelStart, {"model": {}}) == ModelStart({}, 0, False, False, None, None, None, False)


def figures(**changes) -> dict:
    """Return an answer to an evaluation with other figures."""
    return {"members": [{**to_json(FIGURES), **changes}]}


@pytest.mark.parametrize(
    "answer, reason",
    [
        ({}, "EvaluatedMembers lacks members"),
        ({"members": [], "more": 1}, "EvaluatedMembers has no field 'more'"),
        ({"members": {}}, "EvaluatedMembers.members has not its type. Received: a dict"),
        ({"members": [5]}, r"EvaluatedMembers.members\[0\] is no object. Received: 5"),
        (figures(loss="0.5"), r"members\[0\].loss has not its type. Received: '0.5'"),
        (figures(loss=True), "loss has not its type. Received: True"),
        (figures(loss=10**30), "loss has not its type"),
        (figures(n_rows=1.0), "n_rows has not its type. Received: 1.0"),
        (figures(n_rows=True), "n_rows has not its type"),
        (figures(n_rows=1 << 63), "n_rows has not its type"),
        (figures(n_rows=None), "n_rows has not its type. Received: None"),
        (figures(timing={"compute_s": "long"}), r"timing\['compute_s'\] has not its type. Received: 'long'"),
        (figures(sums={"layout": [["loss", 2]], "data": ""}), r"sums.layout\[0\] has not its type. Received: a list"),
        (figures(sums={"layout": [["loss", 2, 1]], "data": ""}), r"layout\[0\]\[2\] has not its type. Received: 1"),
    ],
)  # fmt: skip
def test_what_a_trainer_sends_is_checked_before_it_is_used(answer, reason):
    with pytest.raises(BadMessage, match=reason):
        of_answer(EvaluatedMembers, answer)


def test_the_reason_is_short_whatever_was_sent():
    for answer in ({"x" * 10**6: 1, "members": []}, figures(loss="x" * 10**6), figures(timing={"x" * 10**6: "x"})):
        with pytest.raises(BadMessage) as caught:
            of_answer(EvaluatedMembers, answer)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["[]", "5", "null", "{}", '{"class": "Visit"}', '{"class": ["Train"]}'])
def test_a_text_that_is_no_message_is_refused(text):
    with pytest.raises(BadMessage, match="there is no message"):
        read_order(text)


def test_every_field_of_every_message_has_a_type_that_is_checked():
    """A type that `from_json` does not know would be refused for every value."""
    kinds = [kind for kind in vars(messages).values() if is_message(kind)]
    assert len(kinds) > 35
    for kind in kinds:
        for name, (hint, _) in messages._fields_of(kind).items():
            assert_known(hint, f"{kind.__name__}.{name}")


def is_message(kind):
    return isinstance(kind, type) and issubclass(kind, messages.Message)


def assert_known(hint, where):
    """Raise AssertionError for a type that has no rule."""
    inner = messages.get_args(hint)
    if messages.get_origin(hint) in (tuple, dict) or type(None) in inner:
        for one in inner:
            assert one in (..., type(None)) or assert_known(one, where) is None
        return
    assert hint in (int, float, bool, str, messages.Any) or is_message(hint), where


def test_the_fields_of_a_message_cannot_be_changed_lacking_or_unknown():
    order = Train((None,), SHARD, epoch=1, position=2, attempt=1, place="here")
    assert order == Train((None,), SHARD, 1, 2, 1, "here", None, False) and hash(order) == hash(order.replace())
    assert order != order.replace(position=3) and order.replace(position=3).position == 3
    assert ShardName("training", 3) != ("training", 3) and Done({}) != Failed({}, "model")
    match SHARD:
        case ShardName("training", number):
            assert number == 3
        case _:
            pytest.fail("the fields have no order")
    assert repr(SHARD) == "ShardName(data_set='training', segment_id=3)"
    for change in (lambda: setattr(order, "epoch", 2), lambda: delattr(order, "epoch"), lambda: setattr(order, "x", 2)):
        with pytest.raises(AttributeError, match="cannot be changed"):
            change()
    wrong = ((), {}), (("training",), {}), (("a", 3, 4), {}), (("a", 3), {"key": 1}), (("a",), {"data_set": "b"})
    for values, named in wrong:
        with pytest.raises(TypeError, match="ShardName"):
            ShardName(*values, **named)
