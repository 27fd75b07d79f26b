"""What is installed: `version`, read from the packages without importing large ones, and `gpu_configuration`."""

import platform
import socket
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from madlib_mop import __version__
from madlib_mop.catalog.names import statement
from madlib_mop.driver.data import gpus
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.call import Call


def version(call: Call) -> dict[str, str | None]:
    """Return the versions of the package, Python, Keras, its backends and NumPy; None for what is not installed."""
    return {
        "package": __version__,
        "python": platform.python_version(),
        "tensorflow": _version("tensorflow-cpu") or _version("tensorflow"),
        "keras": _version("keras"),
        "numpy": _version("numpy"),
        "jax": _version("jax"),
        "torch": _version("torch"),
    }


def _version(package: str) -> str | None:
    try:
        return installed(package)
    except PackageNotFoundError:
        return None


def gpu_configuration(call: Call) -> None:
    """Write a table with one row for each GPU of the host: hostname, gpu_descr."""
    a, session = call.arguments, call.session
    source = a["source"]
    output = session.output(a.get("output_table"), ("",), "output_table")
    found = gpus.list_by_driver() if source == "nvidia" else _seen_by_trainers(call)
    if not found:
        session.notice(f"{call.function}: {source} found no GPU on this host; {output} has no rows")
    made = statement("CREATE TABLE {t} (hostname pg_catalog.text, gpu_descr pg_catalog.text)", t=output)
    session.execute(made + table_form(session))
    for description in found:
        insert = statement("INSERT INTO {t} (hostname, gpu_descr) VALUES ($1, $2)", t=output)
        session.execute(insert, [socket.gethostname(), description])


def _seen_by_trainers(call: Call) -> list[str]:
    """Query a trainer; without a device, none is started."""
    n_gpus = gpus.count_gpus()
    if not n_gpus:
        return []
    with LocalTrainer(call.session, gpus=range(n_gpus), need_gpus=False) as trainer:
        seen: list[str] = trainer.ask({"op": "stats"})[0]["gpus"]
        return seen
