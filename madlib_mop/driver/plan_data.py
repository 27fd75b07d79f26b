"""The packed tables of a run, read and checked, and what plan, record and outputs need of them."""

from dataclasses import dataclass

from madlib_mop.catalog.record import Record
from madlib_mop.driver.call import Call
from madlib_mop.driver.packed import PackedTable, read_packed_table
from madlib_mop.driver.plan import check_same_data, check_seen_by_workers, segment_rows


@dataclass(frozen=True)
class Data:
    """The packed tables of a run."""

    source: PackedTable
    validation: PackedTable | None

    def segments(self) -> list[dict]:
        """Give rows of `madlib_mop.segment`."""
        return segment_rows(self.source, self.validation)

    def run_columns(self) -> dict:
        """Give the columns of `madlib_mop.run` that name them."""
        return {
            "source_table": str(self.source.relation),
            "validation_table": str(self.validation.relation) if self.validation else None,
            "n_segments": len(self.source.shards),
        }

    def plan(self) -> dict:
        """Give what the workers need of them."""
        return {
            "training": self.source.as_plan(),
            "validation": self.validation.as_plan() if self.validation else None,
        }

    def summary(self) -> dict:
        """Give the columns of an output's summary that describe them."""
        source = self.source
        return {
            "dependent_varname": source.dependent,
            "independent_varname": source.independent,
            "dependent_vartype": source.dependent_vartype,
            "num_classes": source.num_classes,
            "class_values": source.class_values,
            "normalizing_const": source.normalizing_const,
        }


def read_data(call: Call, record: Record) -> Data:
    """Read the packed tables that a call names.

    Raises
    ------
    MopError
        If one is not there or not packed, does not go with the other, or would not be seen by the workers.
    """
    a, session = call.arguments, call.session
    source = read_packed_table(session, a.get("source_table"), "source_table")
    validation = None
    if (a.get("validation_table") or "").strip():
        validation = read_packed_table(session, a["validation_table"], "validation_table")
        check_same_data(source, validation)
    for what, packed in (("source_table", source), ("validation_table", validation)):
        if packed is not None:
            check_seen_by_workers(record, packed, what, call.info.pid)
    return Data(source, validation)
