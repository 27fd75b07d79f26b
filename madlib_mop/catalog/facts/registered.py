"""The run of a registered model, for reports by names such as ``churn@champion``; read with the viewer's rights."""

from mop_backend.registered_names import NO_REGISTRY, UnreadableName, is_registered, read_name

from madlib_mop.catalog.facts.shared import FactsReader
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter, UnreadableText, Unsupported

_HAS_REGISTRY = "SELECT pg_catalog.to_regclass('madlib_mop.registered_model') IS NOT NULL AS there"
_VERSION = """
SELECT v.version, d.version_id IS NOT NULL AS may_see, d.run_id
FROM madlib_mop.registered_model r
JOIN madlib_mop.model_version v ON v.name = r.name AND (v.version = $3::pg_catalog.int4 OR v.version_id = (
    SELECT a.version_id FROM madlib_mop.model_alias a WHERE a.name = r.name AND a.alias = $2))
LEFT JOIN madlib_mop.version_detail d ON d.version_id = v.version_id
WHERE r.name = $1
"""


def run_of(reader: FactsReader, text: str) -> int:
    """Return the run of a text: the number of a run, or a registered model with an alias or a version.

    Raises
    ------
    MopError
        If the text is neither, there is no such version, the viewer may not see it, or no run of it is known.
    """
    if text.strip().isdecimal():
        return int(text)
    if not is_registered(text):
        raise InvalidParameter(
            f"run_id must be the number of a run, or a registered model such as 'churn@champion'. Received: {text!r}",
            hint="SELECT run_id, state FROM madlib_mop.progress;",
        )
    try:
        name = read_name(text)
    except UnreadableName as error:
        raise UnreadableText(str(error), hint=error.hint) from None
    if not reader.rows(_HAS_REGISTRY)[0]["there"]:
        raise Unsupported(NO_REGISTRY)
    rows = reader.rows(_VERSION, name.name, name.alias, name.version)
    if not rows:
        raise InvalidParameter(
            f"there is no registered model with this version or alias that you may use. Received: {text!r}",
            hint="SELECT name, version FROM madlib_mop.model_version;",
        )
    (row,) = rows
    if not row["may_see"]:  # defence: report-of-a-model
        raise InsufficientPrivilege(
            f"you may use registered model {name.name}, but not see its run",
            hint=f"Its owner can let you: SELECT madlib_mop.grant_model('{name.name}', 'your_role', 'see');",
        )
    if row["run_id"] is None:
        raise InvalidParameter(
            f"version {row['version']} of {name.name} has no run: its weights were not trained by one"
        )
    found: int = row["run_id"]
    return found
