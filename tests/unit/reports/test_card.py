"""The card of a model: it says what the record knows, leaves the rest to people, and shows names as they are."""

import dataclasses
from math import inf

from madlib_mop.reports.card import (
    CardFacts,
    CardMember,
    CardOrigin,
    CardVisit,
    Ensemble,
    InputColumn,
    MemberRun,
    Registration,
    card,
    plain,
)
from tests.unit.exports.test_signature import SIGNATURE

ORIGIN = CardOrigin(
    7, 2, "fit_multiple_model", "public.train_packed", "public.valid_packed", 1, None, 3, {"keras": "3.15.1"},
    {"validation_accuracy": 0.875, "training_loss": inf},
    (CardVisit(1, 0, 60, "aa"), CardVisit(1, 1, 40, "bb"), CardVisit(2, 0, 60, "aa"), CardVisit(2, 1, 40, "bb")),
)  # fmt: skip
FACTS = CardFacts(
    SIGNATURE, "Flatten → Dense 2", 1234, "loss='mse'", "batch_size=8",
    (InputColumn("age", "integer", "number"),), ORIGIN, Registration("churn", 3, "ann", "2026-01-02", "the best"),
)  # fmt: skip


def test_it_says_what_the_record_knows():
    text = card(FACTS)
    for part in (
        "# Model churn@3", "Version 3 of the registered model churn", "> the best", "| training rows | 100 |",
        "| training table (packed) | public.train\\_packed |", "| validation | accuracy | 0.875 |",
        "| training | loss | inf |", "| layers | Flatten → Dense 2 |", "| age | integer | number |",
        "| churned | churned | text | NULL, yes, nö |",
        "| y | y | real | none: numbers |", "| weights | 1,234 |", "| run | 7 |", "| clone of model | 3 |",
        "| kind of the run | model hopping |", "| function | madlib\\_keras\\_fit\\_multiple\\_model |",
        "| 1 | 40 | bb |", "| numbers | float32 | 4 | numbers | 255 |",
    ):  # fmt: skip
        assert part in text, part
    assert "continues run" not in text


def test_it_leaves_to_people_what_only_they_know():
    assert card(FACTS).count("*To be filled in.*") == 6


def test_without_a_run_it_says_so():
    text = card(dataclasses.replace(FACTS, origin=None, registration=None))
    assert "is not there, or you may not see it" in text and "No metrics are recorded." in text
    assert SIGNATURE.weights_digest in text


def test_an_ensemble_has_its_members_and_their_runs():
    members = (CardMember(3, 0.75, 0.5, 7), CardMember(12, 0.25, None, None))
    runs = (MemberRun(7, "public.train_packed", None, 1200),)
    ensemble = Ensemble('public."odd|name"', "loss", members, runs, {"validation_loss": 0.25})
    text = card(dataclasses.replace(FACTS, origin=None, ensemble=ensemble))
    for part in (
        "| 7 | public.train\\_packed | none | 1,200 |", "| validation | loss | 0.25 |",
        'The model averages the outputs of these models of public."odd\\|name":',
        "| mst_key | share | validation loss | run |", "| 3 | 0.75 | 0.5 | 7 |", "| 12 | 0.25 | nan | unknown |",
    ):  # fmt: skip
        assert part in text, part
    assert "These runs trained its members:" in text and "that trained these weights" not in text
    text = card(dataclasses.replace(FACTS, origin=None, ensemble=dataclasses.replace(ensemble, runs=())))
    assert "The record of the runs that trained its members is not there, or you may not see it." in text
    odd = card(dataclasses.replace(FACTS, ensemble=dataclasses.replace(ensemble, metric="a|b")))
    assert "| share | validation a\\|b | run |" in odd
    both = card(dataclasses.replace(FACTS, ensemble=ensemble))  # one member: its weights are those of a run
    assert "| run | 7 |" in both and "| 3 | 0.75 | 0.5 | 7 |" in both and "| validation | accuracy | 0.875 |" in both


def test_names_do_not_become_markup_or_commands_of_a_terminal():
    assert plain("a|b\n<script> *x* [y](z)") == "a\\|b \\<script\\> \\*x\\* \\[y\\](z)"
    assert plain("\x1bc\x07a\u009b31m\u202eé") == r"\\x1bc\\x07a\\x9b31m\\u202eé"
    assert len(plain("x" * 9999)) == 500
    rows = card(dataclasses.replace(FACTS, columns=(InputColumn("a|b", "text\n| x", "<b>"),)))
    assert "| a\\|b | text \\| x | \\<b\\> |" in rows
