"""The report of the comparison: a table as text, a static HTML page and CSV files, from measurements of ways to train.

``python -m report DIRECTORY`` renders the measurements of comparison.py again, without new measurements.
"""
