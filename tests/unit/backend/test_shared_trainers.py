"""When a session that predicts leaves the trainer that it shares with others, and what it says then."""

import json
import subprocess
import sys

from tests.helpers.clones import ROOT

#: A process without PostgreSQL. `answers` has the answer, or death, of each request to predict, of any trainer.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
plpy.prepare = plpy.execute = plpy.cursor = plpy.log = lambda *_: [{{"yes": False}}]
sys.modules["plpy"] = plpy
from mop_backend import __version__, predict, rights
from mop_backend.forkserver import TooMany
from mop_backend.predict_model import FoundModel
from mop_backend.process import ChildDied
from mop_backend.weights import ModelWeights, WeightErrors
log, uses, answers, loads = [], [], [], []
class Trainer:
    alive = True
    def __init__(self, is_shared):
        self.is_shared = is_shared
        log.append("joins" if is_shared else "starts")
    def ask(self, header, blobs=()):
        request = json.loads(header) if isinstance(header, bytes) else header
        if request["op"] == "predict_load":
            loads.append(self.is_shared)
            return {{"ok": True, "loaded": [request["key"]]}}, []
        if request["op"] == "start":
            return {{"ok": True}}, []
        log.append([sum(map(len, blobs)), self.is_shared])
        answer = answers.pop(0) if answers else {{"ok": True}}
        if isinstance(answer, Exception):
            raise answer
        return answer, [b"values"]
    def stop(self):
        self.alive = False
        log.append("leaves" if self.is_shared else "ends")
def join(role, use, *_):
    uses.append((role, use))
    return Trainer(True)
predict.join_trainer, predict.start_trainer = join, lambda *_: Trainer(False)
class Model(FoundModel):
    n_bytes = 10
    def weights(self):
        return ModelWeights([self.n_bytes], bytes_of_model, None, WeightErrors(Exception, Exception))
def bytes_of_model(number):
    return bytes(Model.n_bytes)
def error(kind):
    return {{"error": {{"message": kind, "sqlstate": "53000"}}, "kind": kind, "ending": False}}
session = predict.session(__version__)
start = {{"memory_limit_bytes": 8 << 20}}
model = Model({{"start": start, "shares": True, "model": {{}}, "normalizing_const": 1}}, "table 1")
callers = [(10, 10)]
def find(name, moment):
    session._moment(rights.Moment("a", "a", 0.0, None, callers[0]))
    return model
session._model = find
def use(n_bytes=5):
    predict.note_error(None)
    try:
        work = lambda model, values: values(lambda key: {{"op": "predict", "key": key}}, [bytes(n_bytes)])
        return bytes(session.use(("m", 1, ""), work, None)[1]).decode()
    except Exception as problem:
        predict.note_error(problem)
        return predict.last_error()
{code}
print(json.dumps([result, log, uses]))
"""


def run(code: str) -> tuple[object, list, list]:
    script = _CODE.format(paths=[str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SHARED, OWN = [5, True], [5, False]


def test_a_session_shares_a_trainer():
    assert run("result = [use(), use()]")[:2] == [2 * ["values"], ["joins", SHARED, SHARED]]


def test_a_request_that_is_too_large_for_a_shared_trainer_is_sent_to_none():
    result, log, _ = run("result = [use(), use((1 << 20) + 1), use()]")
    assert result == 3 * ["values"]
    assert log == ["joins", SHARED, "leaves", "starts", [(1 << 20) + 1, False], OWN]


def test_weights_that_are_too_large_for_a_shared_trainer_are_sent_to_none():
    result, log, _ = run("Model.n_bytes = 2 << 20; result = use()")
    assert (result, log) == ("values", ["joins", "leaves", "starts", OWN])


def test_what_a_shared_trainer_cannot_do_one_of_the_sessions_own_does():
    for kind in ("memory", "not shared"):
        result, log, _ = run(f"answers.append(error({kind!r})); result = use()")
        assert (result, log) == ("values", ["joins", SHARED, "leaves", "starts", OWN])


def test_a_model_that_has_given_way_to_those_of_others_is_loaded_there_again_once():
    again = "answers.append(error('not loaded')); result.append(use())"
    result, log, _ = run(f"result = [use()]; {again}; result.append(loads[:]); {again}; result.append(loads)")
    assert result == ["values", "values", [True, True], "values", [True, True, False]]
    assert log == ["joins", *4 * [SHARED], "leaves", "starts", OWN]


def test_an_error_of_the_sessions_own_trainer_is_the_calls():
    result, log, _ = run("answers.extend([error('memory'), error('memory')]); result = use()")
    assert (result["message"], result["sqlstate"]) == ("predict: memory", "53000")
    assert log == ["joins", SHARED, "leaves", "starts", OWN]


def test_a_session_asks_again_where_others_have_ended_its_trainer_and_then_one_of_its_own():
    result, log, _ = run("answers.extend(4 * [ChildDied(-9, '', True)]); result = use()")
    assert (result, log) == ("values", [*4 * ["joins", SHARED, "leaves"], "joins", SHARED])
    result, log, _ = run("answers.extend(3 * [ChildDied(-9, '', True)] + 2 * [ChildDied(0, '')]); result = use()")
    assert (result, log) == ("values", [*5 * ["joins", SHARED, "leaves"], "starts", OWN])


def test_a_crash_is_one_error_and_the_next_call_joins_again_but_not_after_another_one():
    result, log, _ = run("answers.extend(2 * [ChildDied(-9, '')]); result = [use(), use(), use()]")
    assert [(one["sqlstate"], one["detail"]) for one in result[:2]] == 2 * [("53000", None)]
    assert (result[2], log) == ("values", [*2 * ["joins", SHARED, "leaves"], "starts", OWN])


def test_a_session_shares_again_when_its_own_trainer_has_ended_after_its_idle_time():
    code = "answers.append(error('memory')); result = [use()]; answers.append(ChildDied(0, '')); result += [use()]"
    result, log, _ = run(code)
    assert result == 2 * ["values"]
    assert log == ["joins", SHARED, "leaves", "starts", OWN, OWN, "ends", "joins", SHARED]


def test_a_session_whose_own_trainer_has_crashed_shares_none():
    code = "answers.append(error('memory')); result = [use()]; answers.append(ChildDied(-9, '')); result += "
    result, log, _ = run(code + "[use(), use()]")
    assert (result[0], result[1]["sqlstate"], result[2]) == ("values", "53000", "values")
    assert log == ["joins", SHARED, "leaves", "starts", OWN, OWN, "ends", "starts", OWN]


def test_a_setting_prevents_that_a_session_shares_a_trainer():
    assert run("model.found['shares'] = False; result = [use(), use()]")[:2] == [2 * ["values"], ["starts", OWN, OWN]]


def test_a_model_that_may_not_be_shared_leaves_the_trainer_that_another_one_shares():
    code = "result = [use()]; model = Model({**model.found, 'shares': False}, 'table 2'); result += [use(), use()]"
    result, log, _ = run(code)
    assert (result, log) == (3 * ["values"], ["joins", SHARED, "leaves", "starts", OWN, OWN])


def test_a_session_that_is_cancelled_while_a_shared_trainer_works_shares_none_after_the_second_time():
    """The trainer ends, and with it the models of all who share it."""
    code = "answers.extend(2 * [RuntimeError('canceled')]); result = [use(), use(), use()]"
    result, log, _ = run(code)
    assert result[2] == "values" and log == [*2 * ["joins", SHARED, "leaves"], "starts", OWN]


def test_a_session_whose_role_or_login_changes_has_a_trainer_of_its_own():
    for caller in ((11, 10), (10, 11)):
        changed = f"callers[0] = {caller}; result.append(use()); callers[0] = (10, 10); use()"
        result, log, _ = run(f"result = [use()]; {changed}")
        assert result == 2 * ["values"]
        assert log == ["joins", SHARED, "leaves", "starts", OWN, OWN]


def test_sessions_of_several_logins_share_no_trainer():
    uses = [run(f"callers[0] = {caller}; result = use()")[2] for caller in ((10, 10), (10, 11), (12, 10), (10, 10))]
    assert uses[0] == uses[3] and len({tuple(use) for ((*use,),) in uses}) == 3
    assert [role for ((role, _),) in uses] == [10, 10, 12, 10]


def test_too_many_sessions_are_one_clear_error():
    code = (
        "def refuse(*_): raise TooMany('too many sessions of this role predict at once')\n"
        "predict.join_trainer = refuse\n"
        "result = use()"
    )
    result, log, _ = run(code)
    assert (result["sqlstate"], result["message"], log) == (
        "53300", "predict: too many sessions of this role predict at once", []
    )  # fmt: skip
