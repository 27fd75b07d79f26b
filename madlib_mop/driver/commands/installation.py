"""What is installed: `version`, read from the packages without importing large ones, and `gpu_configuration`."""

import platform
import socket
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from mop_backend.keras_backends import FACTS

from madlib_mop import __version__
from madlib_mop.catalog.names import statement
from madlib_mop.driver.data import gpus
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import FixedSettings, read_backend


def version(call: Call) -> dict[str, str | None]:
    """Return the versions of the package, Python, Keras, its backends and NumPy; None for what is not installed."""
    return {
        "package": __version__,
        "python": platform.python_version(),
        "keras": _version("keras"),
        "numpy": _version("numpy"),
        **{name: _version(facts.of_cpus or name) or _version(name) for name, facts in FACTS.items()},
    }


def _version(package: str) -> str | None:
    try:
        return installed(package)
    except PackageNotFoundError:
        return None


def gpu_configuration(call: Call) -> None:
    """Write a table with one row for each GPU of the host: hostname, gpu_descr. Without rows, a NOTICE says why."""
    a, session = call.arguments, call.session
    output = session.output(a.get("output_table"), ("",), "output_table")
    found, reason = _listed_by_driver() if a["source"] == "nvidia" else _usable_by_trainers(session)
    if not found:
        session.notice(f"{call.function}: {reason}; {output} has no rows")
    made = statement("CREATE TABLE {t} (hostname pg_catalog.text, gpu_descr pg_catalog.text)", t=output)
    session.execute(made + table_form(session))
    for description in found:
        insert = statement("INSERT INTO {t} (hostname, gpu_descr) VALUES ($1, $2)", t=output)
        session.execute(insert, [socket.gethostname(), description])


def _listed_by_driver() -> tuple[list[str], str]:
    """Return the GPUs that NVIDIA's driver lists, and what is said if there are none."""
    return gpus.list_by_driver(), "nvidia-smi lists no GPU on this host"


def _usable_by_trainers(session: CallerSession) -> tuple[list[str], str]:
    """Return the GPUs that trainers with the session's backend can use, and why if there are none.

    No trainer is started if the reason is known without one.
    """
    backend, n_gpus = read_backend(FixedSettings(session), session), gpus.count_gpus()
    none = f"trainers with the backend {backend} can use no GPU"
    obstacle = gpus.obstacle_to_gpus(backend, n_gpus)
    if obstacle is not None:
        return [], f"{none}: {obstacle.message}"
    with LocalTrainer(session, gpus=range(n_gpus), need_gpus=False, backend=backend) as trainer:
        seen: list[str] = trainer.ask({"op": "stats"})[0]["gpus"]
    reason = f"the CUDA libraries of {backend} are missing or do not fit NVIDIA's driver"
    return seen, f"{none}: the host has {n_gpus} GPU(s), but {reason}"
