"""The preprocessor that a summary carries: of tables that pack_columns packed, and of models that trained on them."""

from collections.abc import Mapping

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.rows.preprocessor import PreprocessorRow
from madlib_mop.driver.session.relations import RelationLookup
from madlib_mop.errors import InvalidParameter

#: The columns of a summary that hold the preprocessor, with their types.
COLUMNS = (("preprocessor_digest", "text"), ("preprocessor", "text"))


def read_preprocessor_row(
    session: RelationLookup, summary: Relation, types: Mapping[str, str] | None = None
) -> PreprocessorRow | None:
    """Return the preprocessor of a summary; None if it has none.

    Parameters
    ----------
    session : RelationLookup
    summary : Relation
    types : mapping of str to str, optional
        The types of its columns, where the caller of this function has them.

    Raises
    ------
    InvalidParameter
        If the document is not the one that its digest names.
    UnreadableText
        If it is no preprocessor.
    """
    if types is None:
        types = {column.name: column.type_sql for column in session.columns(summary)}
    if any(types.get(name) != sql_type for name, sql_type in COLUMNS):
        return None
    query = "SELECT preprocessor_digest AS digest, preprocessor AS document FROM {summary}"
    rows = session.execute(statement(query, summary=summary))
    if len(rows) != 1 or rows[0]["document"] is None:
        return None
    from madlib_mop.columns.preprocessors.preprocessor import Preprocessor  # imports NumPy

    found = Preprocessor.from_json(rows[0]["document"])
    if found.digest != rows[0]["digest"]:  # defence: digest-of-a-preprocessor
        raise InvalidParameter(
            f"the preprocessor in {summary} was changed: its SHA-256 is {found.digest}, not {rows[0]['digest']}",
            hint="Pack the table again.",
        )
    return PreprocessorRow(found.digest, rows[0]["document"])
