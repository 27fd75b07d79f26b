"""The report of the comparison: a table as text, a static HTML page and CSV files, from measurements of ways to train.

``python -m report DIRECTORY`` renders again what comparison.py has measured; nothing is run for it.
"""
