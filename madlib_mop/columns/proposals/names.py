"""Names of columns as SQL in hints and reasons; the names in statements are those of `madlib_mop.catalog.names`."""

import re

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")
#: The reserved words of PostgreSQL's grammar: none is a column's name without quotes.
_RESERVED = frozenset(
    """all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
    column concurrently constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze
    from full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary references
    returning right select session_user similar some symmetric system_user table tablesample then to trailing true union
    unique user using variadic verbose when where window with""".split()
)


def sql_name(name: str) -> str:
    """Return the name of a column as SQL has it, quoted if it must be."""
    if _PLAIN.match(name) and name not in _RESERVED:
        return name
    quoted = name.replace('"', '""')
    return f'"{quoted}"'
