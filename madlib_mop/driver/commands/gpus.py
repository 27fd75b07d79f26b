"""The command gpu_configuration: lists the GPUs of the server's host, by TensorFlow or NVIDIA's driver."""

import socket

from madlib_mop.catalog.names import statement
from madlib_mop.driver.data import gpus
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.call import Call


def gpu_configuration(call: Call) -> None:
    """Write a table with one row for each GPU of the host: hostname, gpu_descr."""
    a, session = call.arguments, call.session
    source = a["source"]
    output = session.output(a.get("output_table"), ("",), "output_table")
    found = gpus.list_by_driver() if source == "nvidia" else _seen_by_tensorflow(call)
    if not found:
        session.notice(f"{call.function}: {source} found no GPU on this host; {output} has no rows")
    made = statement("CREATE TABLE {t} (hostname pg_catalog.text, gpu_descr pg_catalog.text)", t=output)
    session.execute(made + table_form(session))
    for description in found:
        insert = statement("INSERT INTO {t} (hostname, gpu_descr) VALUES ($1, $2)", t=output)
        session.execute(insert, [socket.gethostname(), description])


def _seen_by_tensorflow(call: Call) -> list[str]:
    """Query a trainer; without a device, none is started."""
    n_gpus = gpus.count_gpus()
    if not n_gpus:
        return []
    with LocalTrainer(call.session, gpus=range(n_gpus), need_gpus=False) as trainer:
        seen: list[str] = trainer.ask({"op": "stats"})[0]["gpus"]
        return seen
