"""``python -m report DIRECTORY``: print the tables of its measurements; write page and CSV files there."""

import argparse
from pathlib import Path

from report.csv_files import write_csv_files
from report.measurement import Comparison
from report.page import write_page
from report.text import print_tables


def report(directory: Path) -> Path:
    """Report a directory's measurements; return the page's path."""
    comparison = Comparison.read(directory)
    print_tables(comparison)
    write_csv_files(comparison, directory)
    return write_page(comparison, directory)


def main() -> None:
    """Report the directory that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m report", description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    try:
        print(f"\n{report(directory)}")
    except FileNotFoundError as missing:
        parser.exit(1, f"no report: {missing}\n")


if __name__ == "__main__":
    main()
