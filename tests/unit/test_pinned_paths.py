"""Each place that opens a session pins its search_path: tests/security/test_hostile_path.py shows why."""

import ast
import re
from pathlib import Path

import pytest

from madlib_mop.catalog.sessions.session_settings import (
    CATALOG_OPTIONS,
    KEPT_PATH,
    LIFT_NEW_TIMEOUTS,
    PIN_AND_KEEP_PATH,
    PIN_AND_KEEP_SCHEMAS,
    PIN_FOR_TRANSACTION,
    PIN_SEARCH_PATH,
)
from madlib_mop.client import tables
from madlib_mop.engines.sessions.access import SESSION_OPTIONS

LIBRARY = Path(__file__).resolve().parents[2] / "madlib_mop"
#: Module that opens a session -> module and text by which its path is pinned; None where the session runs no statement,
#: or is the person's own.
PINNED_BY = {
    "catalog/sessions/connection.py": ("catalog/sessions/connection.py", "options=CATALOG_OPTIONS"),
    "cli/doctor/__init__.py": ("cli/doctor/__init__.py", "context.row(PIN_SEARCH_PATH)"),
    "cli/doctor/logins.py": None,
    "cli/sessions.py": ("cli/sessions.py", "_row(connection, PIN_SEARCH_PATH)"),
    "client/calling/sessions.py": ("client/calling/sessions.py", "execute(connection, PIN_AND_KEEP_PATH)"),
    "dash/logins.py": ("dash/logins.py", "-c search_path=pg_catalog,pg_temp"),
    "engines/hosts/login.py": ("engines/hosts/login.py", "OPTIONS_BUT_PATH if own_path else SESSION_OPTIONS"),
    "engines/sessions/session.py": ("engines/sessions/access.py", "return _EVERYWHERE + _PATH"),
    "catalog/facts/reader.py": ("catalog/facts/reader.py", "connection.execute(_PIN)"),
    "trackers/following.py": ("trackers/following.py", '.execute("SET search_path = pg_catalog, pg_temp")'),
}


def modules_with(word: str) -> list[Path]:
    """Return the library's modules with a word in their text: to parse all of them takes a second."""
    return [path for path in LIBRARY.rglob("*.py") if word in path.read_text()]


def opens_a_session(node: ast.AST) -> bool:
    """Return whether a node calls the connect function of psycopg or psycopg2."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "connect":
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id in ("psycopg", "psycopg2")


def test_every_place_that_opens_a_session_is_known():
    found = {
        str(path.relative_to(LIBRARY))
        for path in modules_with("psycopg")
        if any(opens_a_session(node) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert found == PINNED_BY.keys()


@pytest.mark.parametrize("module", [module for module, pin in PINNED_BY.items() if pin is not None])
def test_its_path_is_pinned(module):
    place, text = PINNED_BY[module]
    assert text in (LIBRARY / place).read_text()


def test_sessions_at_hosts_with_the_path_of_the_role_pin_it_before_any_other_statement():
    text = (LIBRARY / "engines/hosts/login.py").read_text()
    opened = text.index("OPTIONS_BUT_PATH if own_path else SESSION_OPTIONS\n")
    assert text.index("connection.execute(", opened) == text.index("connection.execute(PIN_AND_KEEP_SCHEMAS)")


def test_the_pins_name_everything_with_its_schema_and_use_no_operator():
    """They run while the path is still that of the login."""
    lift = LIFT_NEW_TIMEOUTS.replace("OPERATOR(pg_catalog.<>)", "")
    pins = (PIN_SEARCH_PATH, PIN_AND_KEEP_SCHEMAS, PIN_AND_KEEP_PATH, PIN_FOR_TRANSACTION, KEPT_PATH, lift)
    for pin in pins:
        without_texts = re.sub(r"'[^']*'", "", pin)
        assert not re.search(r"(?<![.\w])(?!SELECT\b|false\b|true\b)[a-z_]+\s*\(", without_texts), pin
        assert re.findall(r"::(\S+?)[,)\s]", without_texts) in ([], ["pg_catalog.text"])
        assert not re.search(r"[-+*/<>=~!@#%^&|`?]|\b(?:IN|LIKE|BETWEEN)\b", without_texts), pin
    assert "-c search_path=pg_catalog" in CATALOG_OPTIONS and "-c search_path=pg_catalog" in SESSION_OPTIONS


#: Function of the client -> the statement that it runs with the person's search_path; None: the person wrote it.
OWN_PATH = {
    "client/calls.py: query": None,
    "client/predicting.py: _of_table": "SELECT t.k, madlib_mop.predict(%s, %s, t.*) FROM s.r AS t",
    "client/predicting.py: explained": "SELECT t.k AS k, e.output FROM s.r AS t, madlib_mop.explain_prediction(%s, t.*,"
    " %s, background => %s) WITH ORDINALITY AS e ORDER BY t.k, e.ordinality",
    "client/predicting.py: _of_table, option": "SELECT t.k, (SELECT ARRAY[i.prediction, i.lower, i.upper] FROM"
    " madlib_mop.predict_interval(%s, t.*, coverage => %s) AS i) FROM s.r AS t",
    "client/tables.py: find_table": tables._LOOK_UP,
    "client/tables.py: _to_be_created": tables._FIRST_SCHEMA,
    "client/tables.py: drop_tables": "DROP TABLE IF EXISTS r",
}


def uses_own_path(node: ast.AST) -> bool:
    """Return whether a node is a call of `own_path`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "own_path"


def test_every_place_that_returns_to_the_persons_path_is_known():
    found = {
        f"{path.relative_to(LIBRARY)}: {function.name}"
        for path in modules_with("own_path")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and any(map(uses_own_path, ast.walk(function)))
    }
    assert found == {place.partition(",")[0] for place in OWN_PATH}


def test_statements_with_the_persons_path_name_everything_with_its_schema_and_use_no_operator():
    for statement in filter(None, OWN_PATH.values()):
        bare = statement.replace("%s", "").replace("t.*", "t").replace("::", " ").replace("=>", "")
        assert not re.search(r"(?<![.\w])(?!SELECT\b)[a-z_]+\s*\(", bare), statement
        assert re.findall(r"::(\S+)", statement) in ([], ["pg_catalog.oid"]), statement
        assert not re.search(r"[-+*/<>=~!@#%^&|`?]|\b(?:IN|LIKE|BETWEEN|CAST)\b", bare), statement
