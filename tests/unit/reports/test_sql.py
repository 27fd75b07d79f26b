"""The SQL that repeats a run: every argument, quoted so that it is read back as it was."""

from dataclasses import replace

import pytest

from madlib_mop.catalog.facts.run import CallFacts
from madlib_mop.catalog.names import split_name
from madlib_mop.reports.sql import again, call_again, literal, replay
from tests.helpers.reports import HOSTILE, some_facts


def with_arguments(function="madlib_keras_fit_multiple_model", tables=None, **arguments):
    return some_facts(call=CallFacts(function, arguments, tables or {}))


def test_the_call_has_the_used_seed_and_another_output_table():
    assert call_again(some_facts()) == (
        "SELECT madlib.madlib_keras_fit_multiple_model(\n"
        "    source_table => 'public.packed',\n"
        "    model_output_table => 'public.models_again',\n"
        "    model_selection_table => 'configs',\n"
        "    num_iterations => 2,\n"
        "    seed => 11,\n"
        "    schedule => 'rotation'\n"
        ");"
    )


def test_the_replay_names_the_run_and_the_same_table():
    assert replay(some_facts()) == "SELECT madlib_mop.replay(7, output_table => 'public.models_again');"


def test_a_replay_and_a_record_without_arguments_have_no_call():
    assert call_again(some_facts(kind="replay")) is None
    assert call_again(with_arguments()) is None


@pytest.mark.parametrize("text", [*HOSTILE, "it's", "a\\b", "\\'); DROP TABLE t; --", "line\nline"])
def test_a_text_is_one_literal_whatever_it_contains(text):
    written = literal(text)
    if "\\" in text:
        assert written.startswith("E'")
        inner = written[2:-1].replace("''", "\0").replace("\\\\", "\1")
        assert "'" not in inner and "\\" not in inner
        assert inner.replace("\0", "'").replace("\1", "\\") == text
    else:
        assert written.startswith("'") and written[1:-1].replace("''", "\0").count("'") == 0
        assert written[1:-1].replace("''", "'") == text
    assert written in call_again(with_arguments(description=text))


def test_arrays_booleans_and_nulls_keep_their_types():
    call = call_again(
        with_arguments("madlib_keras_automl", model_id_list=[1, 2], use_gpus=True, automl_params=None, object_table="o")
    )
    assert "model_id_list => ARRAY[1, 2]::integer[]" in call and "use_gpus => true" in call
    assert "automl_params" not in call, "it has its default"


def test_an_output_table_is_quoted_if_its_name_needs_it_and_stays_within_63_bytes():
    assert again("public.models") == "public.models_again"
    assert again("Lab.My models") == '"Lab"."My models_again"'
    assert split_name(again("public." + "ä" * 31)) == ("public", "ä" * 24 + "_again")


def test_a_warm_start_is_repeated_as_a_new_run():
    assert "warm_start" not in call_again(with_arguments(source_table="t", warm_start=True))
    assert call_again(replace(some_facts(), schedule="longest_first")) is not None
