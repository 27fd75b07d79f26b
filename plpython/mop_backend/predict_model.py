"""A model as a session of madlib_mop.predict uses it: found by a driver; for predict.py.

A model of a table may change, so its version is read in the session. A version of a registered model does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plpy

from mop_backend import call, classes, registered
from mop_backend.frames import Header
from mop_backend.rights import Moment
from mop_backend.weights import WEIGHTS_DAMAGED, WRITE_AGAIN, ModelWeights, WeightErrors, WeightsPlace, read_stored

# Resets the pinned search_path before the next lookup; arguments are evaluated from left to right.
_LOOK_UP = (
    "select case when pg_catalog.set_config('search_path', $1, true) is not null then pg_catalog.concat("
    "pg_catalog.to_regclass($2)::pg_catalog.oid,"
    " pg_catalog.left(pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), 0)) end as oid"
)
# Whether all of these are heap tables whose rows depend on the snapshot only.
_PLAIN = """
select count(*) = pg_catalog.cardinality($1) as plain
from pg_catalog.pg_class c join pg_catalog.pg_am m on m.oid = c.relam
where c.oid::int8 = any ($1) and c.relkind = 'r' and m.amname = 'heap' and not c.relrowsecurity and not c.relhassubclass
"""

_MAX_FORMS = 100


def are_plain(oids: Sequence[int]) -> bool:
    """Return whether relations are tables whose rows depend on nothing but what a statement sees, such as a setting."""
    return bool(plpy.execute(plpy.prepare(_PLAIN, ["int8[]"]), [oids])[0]["plain"])


class FoundModel:
    """A found model.

    Parameters
    ----------
    found : dict
        The answer of the driver's command predict.
    origin : str
        Where the model is: a table by its oid, or a version of a registered model.

    Attributes
    ----------
    version : str or None
        The version that was found. A view can show anything as its version.
    key : str or None
        The key by which the trainer knows the model; None before it was loaded. It is made in this process, from what
        the trainer gets: a session can have models of several roles, and none may use or replace that of another.
    """

    def __init__(self, found: Header, origin: str):
        self.found = found
        self.origin = origin
        self.version: str | None = None
        self.key: str | None = None
        self._text_functions: dict[object, classes.TextOf] = {}

    def text_of(
        self,
        form: str,
        widths: Sequence[int],
        functions: classes.Functions = classes.OF_ARRAYS,
        coverage: float | None = None,
    ) -> classes.TextOf:
        """Return the function from a row's values to its text in a form of `classes.FORMS` or `HELD_OUT_FORMS`."""
        key = (form, tuple(widths), functions, coverage)
        if key not in self._text_functions:
            outputs = self.found["outputs"]
            if len(self._text_functions) >= _MAX_FORMS:  # a column can have many coverages
                self._text_functions.clear()
            self._text_functions[key] = (
                classes.FORMS[form](outputs, widths, functions)
                if form in classes.FORMS
                else classes.HELD_OUT_FORMS[form](outputs, widths, functions, coverage)
            )
        return self._text_functions[key]

    def refuse_arrays(self, name: str) -> None:
        """Raise CallError if the model takes rows: its network would take the numbers of an array as encoded ones."""
        if self.found.get("preprocessor"):
            raise call.CallError(
                f"predict: {name} was trained on a table of pack_columns, so it takes rows, not arrays",
                "22023",
                hint="Pass the row: madlib_mop.predict(model_table, mst_key, t.*). Without .*, t is a column of the"
                " table, if there is one of that name.",
            )

    def weights(self) -> ModelWeights:
        """Return the weights."""
        raise NotImplementedError


class VersionModel(FoundModel):
    """A version of a registered model.

    Parameters
    ----------
    found : dict
        The answer of the driver's command predict.
    of : Found
        The version.
    """

    def __init__(self, found: Header, of: registered.Found):
        super().__init__(found, f"version {of.version_id}")
        self.version = self.origin
        self._of = of

    @property
    def name(self) -> str:
        """The name of the version."""
        return str(self._of.of_version)

    def weights(self) -> ModelWeights:
        """Return the weights; `registered.look_up` has checked the caller's rights in this snapshot."""
        return registered.read_weights(self._of)


class TableModel(FoundModel):
    """A model of a table: its queries and its version.

    Parameters
    ----------
    found : dict
        The answer of the driver's command predict.
    caller_path : str
        The search_path on which the table's name is looked up.
    """

    def __init__(self, found: Header, caller_path: str):
        super().__init__(found, f"table {found['oid']}")
        self._caller_path = caller_path
        self._found_at: tuple[object, ...] | None = None
        self._is_plain: bool | None = None
        self._version_plan = plpy.prepare(found["version_query"], found["types"])
        self._look_up = found["name"] and plpy.prepare(_LOOK_UP, ["text", "text"])

    def current_version(self) -> str | None:
        """Return the current version; None if the model was dropped, or its name now refers to another table."""
        if self._look_up is not None:
            row = plpy.execute(self._look_up, [self._caller_path, self.found["name"]])[0]
            if row["oid"] != str(self.found["oid"]):
                return None
        rows = plpy.execute(self._version_plan, self.found["params"])
        return rows[0]["version"] if rows.nrows() == 1 else None

    def found_at(self, moment: Moment) -> None:
        """Note that the version was the current one at a moment."""
        self._found_at, self._is_plain = moment.seen, None

    def is_known_at(self, moment: Moment) -> bool:
        """Return whether `current_version` would return the version again, without a query of the model's tables.

        With the same snapshot, it returns the same if the model's tables are ordinary ones. A view or a row policy
        could depend on something else, such as a setting.
        """
        if moment.snapshot is None or moment.seen != self._found_at:
            return False
        if self._is_plain is None:
            self._is_plain = are_plain(self.found["oids"])
        return self._is_plain

    def weights(self) -> ModelWeights:
        """Return the weights; a view may have others each time that they are read."""
        return read_stored(_rows, WeightsPlace(*self.found["weights"]), WeightErrors(self._damaged, _changed))

    def _damaged(self) -> call.CallError:
        message = f"predict: {self.found['label']} is damaged: {WEIGHTS_DAMAGED}"
        return call.CallError(message, "XX001", hint=WRITE_AGAIN)


def _rows(query: str, params: Sequence[Any], types: Sequence[str]) -> list[Mapping[str, Any]]:
    return list(plpy.execute(plpy.prepare(query, types), params))


def _changed() -> call.CallError:
    return call.CallError("predict: the model was changed while it was being read", "55000", hint="Call again.")
