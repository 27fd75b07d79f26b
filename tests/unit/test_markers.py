"""A defence is taken out by its name, wherever its line is and however it is written."""

import pytest

from tests.helpers.security.markers import BadMarker, Source

CODE = '''
def read(path, names, limit):
    check(path)  # defence: path
    if len(names) > limit:  # defence: limit
        raise TooMany
    elif path in names:  # defence: other = path is None
        raise Taken
    for name in names:  # defence: names
        check(name)
    try:
        # defence: safe = load(path, False)
        text = load(path, True)
    except (ValueError, KeyError):  # defence: errors
        return None
    found = [
        "a",
        "b",  # defence: element
    ]
    options = {
        "ä": 1, "b": 2,  # defence: entry
        **forced(names),  # defence: unpacked
        "c": 3,  # defence: value = 4
    }
    if (
        text is None
        or len(text) > 9  # defence: operand
        or (path == "x" and names)  # defence: parentheses
    ):
        raise TooLong
    return call(
        text,  # defence: argument
        found,
        safe=True,  # defence: keyword = False
        timeout=3,  # defence: missing
        **options,
    )
'''
OUT = {
    "path": ("check(path)", "pass"),
    "limit": ("if len(names) > limit:", "if False:"),
    "other": ("elif path in names:", "elif path is None:"),
    "names": ("in names:  # defence: n", "in ():  # defence: n"),
    "safe": ("text = load(path, True)", "text = load(path, False)"),
    "errors": ("except (ValueError, KeyError):", "except ():"),
    "element": ('"b",  # defence: el', "  # defence: el"),
    "entry": ('"ä": 1, "b"', ' "b"'),
    "unpacked": ("**forced(names),", ""),
    "value": ('"c": 3', '"c": 4'),
    "operand": ("or len(text) > 9", "or False"),
    "parentheses": ('or (path == "x" and names)', "or (False)"),
    "argument": ("text,  # defence: a", "  # defence: a"),
    "keyword": ("safe=True", "safe=False"),
    "missing": ("timeout=3,", ""),
}
# The same function in other forms.
MOVED = {
    "marker above": """
def f(a):
    # defence: limit
    if a > 9:
        raise TooMany
    return a
""",
    "on another line": """
def g(a):
    return a


def f(a):
    b = g(a)
    if b > 9:  # defence: limit
        raise TooMany
    return b
""",
    "over several lines": """
class A:
    def f(self, a):
        if (  # defence: limit
            a
            > 9
        ):
            raise TooMany
        return a


f = A().f
""",
    "another condition": """
def f(a):
    if a is None:
        return 0
    # defence: limit
    # A comment of another kind.

    elif not a <= 9:
        raise TooMany
    return a
""",
}
SQL = """\
ALTER TABLE t ENABLE ROW LEVEL SECURITY;  -- defence: policies
CREATE POLICY p ON t
    -- defence: own = USING (true)
    -- defence: quick = USING (owner = 'a')
    USING (may_see(owner));
"""


@pytest.mark.parametrize("name", OUT)
def test_each_kind_of_part_is_taken_out(name):
    old, new = OUT[name]
    assert CODE.count(old) == 1
    without = Source(CODE, is_python=True).without(name)
    assert without == CODE.replace(old, new)
    compile(without, "read.py", "exec")


def test_each_marker_has_a_case():
    assert [marker.name for marker in Source(CODE, is_python=True).markers] == list(OUT)


@pytest.mark.parametrize("moved", MOVED.values(), ids=list(MOVED))
def test_a_defence_that_moves_or_is_written_otherwise_is_taken_out_by_its_name(moved):
    class TooMany(Exception):
        pass

    names = {"TooMany": TooMany}
    exec(moved, names)
    with pytest.raises(TooMany):
        names["f"](10)
    exec(Source(moved, is_python=True).without("limit"), names)
    assert names["f"](10) == 10


def test_a_line_of_sql_is_left_out_or_is_the_laxer_one():
    source = Source(SQL, is_python=False)
    assert [marker.name for marker in source.markers] == ["policies", "own", "quick"]
    assert source.without("policies") == SQL.replace(SQL.split("\n")[0], "")
    assert source.without("own") == SQL.replace("USING (may_see(owner));", "USING (true)")
    assert source.without("quick") == SQL.replace("USING (may_see(owner));", "USING (owner = 'a')")


def test_a_line_of_sql_in_a_string_of_python_is_left_out():
    text = 'QUERY = """\nSELECT *\nFROM t\n     WHERE owner = 1  -- defence: owner\n"""  # defence: query = "a"\n'
    with pytest.raises(BadMarker, match="nothing that can be taken out begins here"):
        Source(text, is_python=True).without("query")
    names = {}
    exec(Source(text, is_python=True).without("owner"), names)
    assert names["QUERY"] == "\nSELECT *\nFROM t\n\n"


def test_a_long_laxer_value_goes_on_in_the_comments_below():
    text = "# defence: sum = 1\n#     + 2\n# Not a part of it.\na = 0\n"
    assert Source(text, is_python=True).without("sum") == text.replace("a = 0", "a = 1 + 2")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a = 1  # defence: No name\n", "line 1: this is no marker"), ("a = 1  # defence:\n", "line 1: this is no marker"),
     ("a = 1\n# defence: last\n", "line 2: no line follows")],
)  # fmt: skip
def test_what_looks_like_a_marker_and_is_none_is_refused(text, problem):
    with pytest.raises(BadMarker, match=problem):
        Source(text, is_python=True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a = 1\n", "has 0 markers"), ("a = 1  # defence: one\nb = 1  # defence: one\n", "has 2 markers"),
     ("a = f(\n    1 +\n    2  # defence: one\n)\n", "line 3: nothing that can be taken out begins here"),
     ("def f():\n    raise E  # defence: one = 2\n", "line 2: what begins here has no value")],
)  # fmt: skip
def test_a_defence_that_cannot_be_taken_out_is_refused(text, problem):
    with pytest.raises(BadMarker, match=problem):
        Source(text, is_python=True).without("one")
