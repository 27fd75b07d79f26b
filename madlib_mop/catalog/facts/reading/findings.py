"""Reads what was found about registered models of a run, as far as the viewer may see them."""

from madlib_mop.catalog.facts.findings import VersionFindings, findings_of
from madlib_mop.catalog.facts.reading.shared import FactsReader, Fetch

#: Larger ones are not read: register writes less than a tenth.
_MOST_BYTES = 2_000_000
_MOST_VERSIONS = 20
_HAS_REGISTRY = "SELECT pg_catalog.to_regclass('madlib_mop.version_detail') IS NOT NULL AS there"
_MAY_READ = """
SELECT coalesce(pg_catalog.has_table_privilege(
    pg_catalog.to_regclass('madlib_mop.version_detail')::pg_catalog.oid, 'SELECT'), false) AS may
"""
# Any role can register a model as one of a run, so only roles that act as the owner of the run count.
_FINDINGS = f"""
SELECT v.name, v.version, d.mst_key, d.model_table, d.findings::pg_catalog.text AS findings
FROM madlib_mop.run r
JOIN madlib_mop.version_detail d ON d.run_id = r.run_id OR d.lineage #> '{{ensemble,runs}}' @>
    pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('run_id', r.run_id))
JOIN madlib_mop.model_version v ON v.version_id = d.version_id
JOIN madlib_mop.registered_model m ON m.name = v.name
WHERE r.run_id = $1::pg_catalog.int8 AND d.findings IS NOT NULL
    AND pg_catalog.pg_has_role(m.owner::pg_catalog.oid, r.owner::pg_catalog.oid, 'MEMBER') -- defence: own-findings
    AND pg_catalog.octet_length(d.findings::pg_catalog.text) <= {_MOST_BYTES}
ORDER BY v.registered_at DESC, v.name, v.version DESC LIMIT {_MOST_VERSIONS}
"""


def read_findings(reader: FactsReader, run_id: int) -> tuple[VersionFindings, ...]:
    """Return the findings of versions whose weights or members the run trained.

    They are of the newest version with held-out rows, and of the newest one with the importance of its columns; often
    both are one.
    """
    if not reader.rows(_MAY_READ)[0]["may"]:
        return ()
    kept: list[VersionFindings] = []
    wants_rows = wants_columns = True
    for row in reader.rows(_FINDINGS, run_id):
        found = findings_of(row["findings"])
        if found is not None and (wants_rows and found.held_out or wants_columns and found.importances):
            kept.append(VersionFindings(row["name"], row["version"], row["mst_key"], row["model_table"], found))
            wants_rows = wants_rows and not found.held_out
            wants_columns = wants_columns and not found.importances
    return tuple(kept)


def has_registry(fetch: Fetch) -> bool:
    """Return whether the server has a registry of models."""
    ((there,),) = fetch(_HAS_REGISTRY, [])
    return bool(there)
