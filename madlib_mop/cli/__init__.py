"""The command `madlib-mop`, for people and scripts; the console script and ``python -m madlib_mop.cli`` call `main`."""

import sys


def main() -> None:
    """Run the command line; an expected error prints one sentence and a hint, with exit status 1."""
    # imported to register their commands
    from madlib_mop.catalog.live.words import clean
    from madlib_mop.cli import explain, exports, install, pages, report, runs, simulate, trackers, work  # noqa: F401
    from madlib_mop.cli.app import app
    from madlib_mop.cli.extras import missing_package
    from madlib_mop.cli.watching import command, drift  # noqa: F401
    from madlib_mop.errors import MopError

    try:
        try:
            app()
        except ModuleNotFoundError as error:
            raise missing_package(error) from None
    except MopError as error:
        for text in filter(None, (f"madlib-mop: {error.message}", error.hint and f"  {error.hint}")):
            print("\n".join(clean(line) for line in text.split("\n")), file=sys.stderr)
        sys.exit(1)
