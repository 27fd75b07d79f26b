"""`madlib-mop simulate`: docs/hosts.md shows the output of its commands, and bad options get one clear error."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from madlib_mop.cli import simulate  # noqa: F401 -- registers its command
from madlib_mop.cli.app import app
from madlib_mop.errors import InvalidParameter

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "hosts.md").read_text()
COMMANDS = [line.split()[1:] for line in re.findall(r"^madlib-mop simulate .*$", PAGE, re.MULTILINE)]


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def lines(text: str) -> set[tuple[str, ...]]:
    return {tuple(line.split()) for line in text.splitlines()}


@pytest.mark.slow
def test_the_page_shows_what_its_first_command_prints():
    shown = PAGE.partition("```\n segments")[2].partition("```")[0]
    printed = lines(run(*COMMANDS[0]))
    assert len(lines(shown)) > 8
    assert {line for line in lines(" segments" + shown) if line[0] != "segments"} <= printed


def test_a_large_state_on_long_visits_feeds_what_the_page_says():
    large = next(words for words in COMMANDS if "--state-mb" in words)
    small = [*large[: large.index("64,1000")], "8", "--models", "8", *large[large.index("--segments-per-host") :]]
    assert ("commits", "179") in lines(run(*small)) and "the limit is 179 busy segments" in PAGE


def test_a_slow_segment_is_run_as_on_the_page():
    slow = next(words for words in COMMANDS if "--slow" in words)
    assert ("16", "8", "128") in {line[:3] for line in lines(run(*slow))}


@pytest.mark.parametrize("words", [("--segments", "0"), ("--models", "8,x"), ("--slow", "1x3"), ("--schedule", "best")])
def test_a_bad_option_is_named(words):
    with pytest.raises(InvalidParameter, match=words[1].split(",")[-1]):
        run("simulate", "--segments", "8", "--models", "8", *words)
