"""The benchmark of ordinary tables: the columns that it packs, and the tables that it drops."""

import re

from benchmarks import columns


def test_the_packed_table_has_as_many_columns_as_its_text_says():
    names = re.findall(r" AS (\w+)(?=[,\n])", columns._MIXED.partition("FROM generate_series")[0])
    assert len(set(names)) == len(names)
    assert names[-1] == "y"
    assert len(names) - 1 == columns.WIDTH


def test_a_packed_table_is_dropped_with_its_validation_table_and_summaries():
    assert columns._dropped("p") == "DROP TABLE IF EXISTS p, p_summary, p_validation, p_validation_summary"
