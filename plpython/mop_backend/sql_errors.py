"""Reads errors of PostgreSQL as PL/Python raises them. No other module of this folder knows their attributes."""

from __future__ import annotations

from typing import NoReturn

import plpy

ErrorFields = dict[str, str | None]  # message, sqlstate, detail and hint, as PostgreSQL's RAISE takes them

#: Exceptions of PL/Python for PostgreSQL's errors: of a statement, and of a message, after which PostgreSQL checks for
#: interrupts.
SQL_ERRORS = (plpy.SPIError, plpy.Error)
#: Of a cancel, a timeout, and the end of the session or the server.
STOP_STATES = ("57014", "57P01", "57P02", "57P03")
_INTERNAL = "XX000"
_MOST_CHARACTERS = 10_000  # of a text; users' code can raise one of a gigabyte, which is copied in each process


def sqlstate_of(error: plpy.Error | plpy.SPIError) -> str | None:
    """Return the SQLSTATE of an error; None if it has none.

    PL/Python has an exception class, with the attribute ``sqlstate``, for each of PostgreSQL's own states. For another
    state, such as RAISE ... USING ERRCODE = 'MY001', it raises SPIError itself, with the state in ``spidata`` as the
    number that it is in PostgreSQL's source: six bits a character.
    """
    state: str | None = getattr(error, "sqlstate", None)
    if state is None and (data := getattr(error, "spidata", None)):
        state = "".join(chr((data[0] >> 6 * place & 0x3F) + ord("0")) for place in range(5))
    return state


def fields_of(error: plpy.Error | plpy.SPIError) -> ErrorFields:
    """Return the fields of an error, cut to 10,000 characters each."""
    _, detail, hint, *_ = getattr(error, "spidata", None) or (None, None, None)
    texts = {
        "message": str(error),
        "detail": detail or getattr(error, "detail", None),
        "hint": hint or getattr(error, "hint", None),
    }
    cut = {name: text and text[:_MOST_CHARACTERS] for name, text in texts.items()}
    return {**cut, "sqlstate": sqlstate_of(error) or _INTERNAL}


def is_stop(error: plpy.Error | plpy.SPIError) -> bool:
    """Return whether an error ends the statement: a cancel, a timeout, the end of the server."""
    state = sqlstate_of(error)
    return state is None or state in STOP_STATES


def raise_cut(error: plpy.SPIError) -> NoReturn:
    """Raise an error of users' code again, cut if its texts are long: the session's client copies them many times."""
    found = fields_of(error)
    texts = [str(error), *(getattr(error, "spidata", None) or ())[1:3]]
    if sum(len(text or "") for text in texts) <= _MOST_CHARACTERS:
        raise error
    others = {name: text for name in ("detail", "hint", "sqlstate") if (text := found[name]) is not None}
    plpy.error(str(found["message"]), **others)
