"""Packages that the library does not install: one error with the command that installs them."""

import sys
import tomllib
from pathlib import Path

import pytest

from madlib_mop.errors import NotReady
from madlib_mop.trackers.requirements import REQUIREMENTS, package

ROOT = Path(__file__).resolve().parents[3]


def test_the_errors_ask_for_what_the_extras_have():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra: [requirement] for extra, requirement in REQUIREMENTS.items()} == {e: extras[e] for e in REQUIREMENTS}
    assert set(REQUIREMENTS.values()) <= set(extras["test"])


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_a_missing_package_is_one_error_with_the_command(monkeypatch, name):
    loaded = [module for module in sys.modules if module == name or module.startswith(f"{name}.")]
    for module in loaded:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NotReady) as raised:
        package(name, "tracking")
    assert raised.value.message == f"the package {name} is not installed"
    assert raised.value.hint == f"Install it: {sys.executable} -m pip install '{REQUIREMENTS[name]}'"


def test_a_package_that_cannot_be_imported_is_not_called_missing():
    with pytest.raises(NotReady, match="the package tensorboard cannot be imported: No module named 'tensorboard.no'"):
        package("tensorboard", "no")
