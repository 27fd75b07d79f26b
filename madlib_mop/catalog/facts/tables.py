"""Statements that return views and tables of a run as they are, for data frames of the client."""

LEADERBOARD = "SELECT * FROM madlib_mop.leaderboard WHERE run_id = %s ORDER BY rank, mst_key"
PARETO = "SELECT * FROM madlib_mop.pareto WHERE run_id = %s ORDER BY rank"
METRICS = """
SELECT mst_key, epoch, data_set, name, value, elapsed_s, at FROM madlib_mop.metric
WHERE run_id = %s ORDER BY mst_key, epoch, data_set, ordinal
"""
VISITS = "SELECT * FROM madlib_mop.timeline WHERE run_id = %s ORDER BY visit_id"
