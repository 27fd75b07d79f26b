"""``madlib-mop work``: the process that runs jobs."""

import sys
from typing import Annotated

import typer
from mop_backend.machine import processors

from madlib_mop.cli.app import Dsn, app

_SLOTS = "Number of jobs to run at once. Default: the number of cores."


_PORT = "Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics. Default: not at all."


@app.command()
def work(
    dsn: Dsn = "",
    slots: Annotated[int | None, typer.Option(min=1, max=100, help=_SLOTS)] = None,
    metrics_port: Annotated[int | None, typer.Option(min=0, max=65535, help=_PORT)] = None,
) -> None:
    """Run jobs of madlib_mop.submit() until SIGTERM or Ctrl-C; jobs at work then continue with the next worker.

    The login must be a superuser's: run it on the server's machine as the server's own operating system user.
    """
    from madlib_mop.jobs.stopping import StopSignals
    from madlib_mop.jobs.working import limit_memory
    from madlib_mop.jobs.working import work as work_until

    limit_memory()  # defence: memory-of-the-worker
    stop = StopSignals()
    stop.install()
    if metrics_port is not None:
        from madlib_mop.jobs.metrics_page import serve_metrics

        _print(f"metrics: http://127.0.0.1:{serve_metrics(dsn, metrics_port).server_port}/metrics")
    n = slots or processors()
    _print(f"running up to {n} jobs at once")
    work_until(dsn, n, _print, stop)


def _print(text: str) -> None:
    print(f"madlib-mop work: {text}", file=sys.stderr, flush=True)
