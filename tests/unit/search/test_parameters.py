"""automl_params: valid texts, defaults, and one clear error for everything else."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from madlib_mop.driver.commands.help import show_help
from madlib_mop.errors import InvalidParameter, MopError, UnreadableText
from madlib_mop.search import make_search, method_name, parse_params
from madlib_mop.search.by_name import METHODS, search_class
from madlib_mop.search.parameters import floor_log
from tests.helpers.unit.searches import space

ROOT = Path(__file__).resolve().parents[3]
#: The manual's table of methods: name, and the parameters with their defaults.
MANUAL = dict(re.findall(r"^\| `(\w+)` \|.*\| `([^`]*)`[^|]*\|$", (ROOT / "docs/automl.md").read_text(), re.MULTILINE))


@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_in_the_help_text_with_its_parameters_and_a_line_of_its_own(method):
    shown = show_help(SimpleNamespace(arguments={"topic": "madlib_keras_automl", "option": "usage"}))
    assert re.search(rf"^    {method} +{re.escape(MANUAL[method])}\n +\S", shown, re.MULTILINE)
    (repeatable,) = re.findall(r"^With (.*),\nthe same random_state", shown, re.MULTILINE)
    assert (method in re.split(", | and ", repeatable)) is search_class(method).repeatable
    others = [search_class(name).summary for name in METHODS if name != method]
    assert search_class(method).summary not in others


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("text", [None, "", "  "])
def test_no_parameters_are_the_defaults(method, text):
    """The defaults of hyperband and hyperopt are MADlib's."""
    assert parse_params(method, text).text == MANUAL[method]


@pytest.mark.parametrize(
    ("method", "given", "text"),
    [
        ("hyperband", "R=9", "R=9, eta=3, skip_last=0"),
        ("hyperband", "skip_last=1,eta=2 , R = 8", "R=8, eta=2, skip_last=1"),
        ("hyperband", "r=9, ETA=3", "R=9, eta=3, skip_last=0"),
        ("hyperband", '{"R": 9, "budget_s": 1.5}', "R=9, eta=3, skip_last=0, budget_s=1.5"),
        ("hyperopt", "algorithm=rand", "num_configs=20, num_iterations=5, algorithm=rand"),
        ("hyperopt", "Algorithm='TPE', num_configs=3", "num_configs=3, num_iterations=5, algorithm=tpe"),
        ("asha", "r=2, R=16, eta=2", "R=16, eta=2, r=2, num_configs=27"),
        ("tpe", "start_from=similar", "num_configs=20, num_iterations=5, start_from=similar"),
        ("tpe", "Start_From='Similar '", "num_configs=20, num_iterations=5, start_from=similar"),
        ("hyperband", "start_from='RUNS 15,12 , 15'", "R=6, eta=3, skip_last=0, start_from='runs 15, 12'"),
        ("asha", '{"start_from": "run 7"}', "R=9, eta=3, r=1, num_configs=27, start_from='runs 7'"),
        ("hyperband", "start_from=None", "R=6, eta=3, skip_last=0"),
        ("pbt", "quantile=0.5, budget_s=60", "population=8, num_iterations=10, interval=2, quantile=0.5, budget_s=60"),
    ],
)
def test_missing_ones_take_their_defaults_and_the_text_reads_back(method, given, text):
    """Any order, spaces, case, or JSON; the written text is read back unchanged."""
    params = parse_params(method, given)
    assert params.text == text
    assert parse_params(method, params.text) == params


def test_runs_to_start_from_are_numbers():
    assert parse_params("tpe", "start_from='runs 15, 12'").runs == (15, 12)
    assert parse_params("tpe", "start_from=similar").runs == parse_params("tpe", None).runs == ()


BAD = [
    ("hyperband", "R=2, eta=3", InvalidParameter, "R must not be less than eta. Received: R=2, eta=3"),
    ("hyperband", "R=9, eta=1", InvalidParameter, "eta must be a whole number of 2 or more. Received: 1"),
    ("hyperband", "R=9, eta=3, skip_last=3", InvalidParameter, "skip_last must be at most 2"),
    ("hyperband", "R=9, skip_last=-1", InvalidParameter, "skip_last must be a whole number of 0 or more. Received: -1"),
    ("hyperband", "R=9.0", InvalidParameter, "R must be a whole number from 1 to 1,000,000. Received: 9.0"),
    ("hyperband", "R=nine", InvalidParameter, "Received: 'nine'"),
    ("hyperband", "R=True", InvalidParameter, "Received: True"),
    ("hyperband", "R=9, r=9", InvalidParameter, "R occurs twice"),
    ("hyperband", "R=9, R=9", UnreadableText, "R occurs twice"),
    (
        "hyperband",
        "num_configs=9",
        InvalidParameter,
        "hyperband has no parameter of that name. Received: 'num_configs'",
    ),
    ("hyperband", "9", UnreadableText, "every value needs a name"),
    ("hyperband", "R==9", UnreadableText, "automl_params"),
    ("hyperband", "R=__import__('os')", InvalidParameter, "R must be a whole number"),
    ("hyperband", "R=9, budget_s=0", InvalidParameter, "budget_s must be a number of seconds above 0. Received: 0"),
    ("hyperopt", "num_configs=-2, num_iterations=5, algorithm=rand", InvalidParameter, "Received: -2"),
    ("hyperopt", "num_configs=2, num_iterations=0", InvalidParameter, "num_iterations must be"),
    ("hyperopt", "algorithm=random", InvalidParameter, "algorithm must be tpe or rand. Received: 'random'"),
    ("tpe", "algorithm=tpe", InvalidParameter, "tpe has no parameter of that name"),
    ("asha", "ETA=3, Num_Configs=0", InvalidParameter, "num_configs must be a whole number from 1 to 100,000"),
    ("asha", "r=10", InvalidParameter, "r must not be more than R. Received: r=10, R=9"),
    ("tpe", "start_from=alike", InvalidParameter, "start_from must be 'similar' or a list of runs"),
    ("tpe", "start_from=12", InvalidParameter, "such as 'runs 12, 15'. Received: 12"),
    ("tpe", "start_from='12'", InvalidParameter, "Received: '12'"),
    ("tpe", "start_from='runs'", InvalidParameter, "Received: 'runs'"),
    ("tpe", "start_from='runs 12 15'", InvalidParameter, "Received: 'runs 12 15'"),
    ("tpe", "start_from='runs -1'", InvalidParameter, "Received: 'runs -1'"),
    ("tpe", "start_from='runs 1, 9999999999999999999'", InvalidParameter, "Received: 'runs 1, 9999999999999999999'"),
    ("tpe", "start_from=runs 12", UnreadableText, "automl_params"),
    ("pbt", "population=1", InvalidParameter, "population must be a whole number from 2"),
    ("pbt", "quantile=0.6", InvalidParameter, "quantile must be above 0 and at most 0.5. Received: 0.6"),
]


@pytest.mark.parametrize(("method", "text", "error", "message"), BAD, ids=[f"{m}: {t}" for m, t, *_ in BAD])
def test_bad_parameters_are_one_clear_error(method, text, error, message):
    """It names automl_params, the value received, and the solution."""
    with pytest.raises(error) as caught:
        parse_params(method, text)
    assert message in caught.value.message and caught.value.message.startswith("automl_params")
    assert caught.value.hint


def test_a_method_is_found_in_any_case_but_not_by_how_it_begins():
    """'hyper' is ambiguous."""
    assert [method_name(text) for text in (None, "HyperBand", " asha ")] == ["hyperband", "hyperband", "asha"]
    for text in ("hyper", "", "random"):
        with pytest.raises(InvalidParameter, match="automl_method is unknown") as caught:
            method_name(text)
        assert "hyperband" in caught.value.hint


def test_a_search_is_made_of_a_text_or_of_what_was_parsed():
    """Both result in the same search; without a random_state it could not be resumed, so it is an error."""
    texts = make_search("asha", "num_configs=3", space(), 1), make_search("ASHA", parse_params("asha", "num_configs=3"),
                                                                          space(), 1)  # fmt: skip
    assert texts[0].start(2) == texts[1].start(2)
    with pytest.raises(MopError, match="random_state must be"):
        make_search("asha", None, space(), -1)
    with pytest.raises(ValueError, match="needs a random_state"):
        make_search("asha", None, space(), None)


@pytest.mark.parametrize(("number", "base", "expected"), [(1, 2, 0), (7, 2, 2), (8, 2, 3), (242, 3, 4), (243, 3, 5)])
def test_logarithms_are_exact(number, base, expected):
    """The integer part of the logarithm, also at powers."""
    assert floor_log(number, base) == expected


@pytest.mark.parametrize("method", METHODS)
def test_each_parameter_has_a_meaning_for_the_manual(method):
    fields = dataclasses.fields(search_class(method).params_class)
    assert [field.name for field in fields if not field.metadata.get("meaning")] == []
