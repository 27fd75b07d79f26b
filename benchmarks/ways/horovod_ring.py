"""Data parallelism by Horovod's ring all-reduce (over Gloo), as in the published comparison; otherwise as `all_reduce`.

Horovod 0.28.1, its last release, does not build for TensorFlow 2.21 as it is: xla_mpi_ops.cc ends with "fatal error:
tensorflow/compiler/xla/client/xla_builder.h: No such file or directory". Without xla_mpi_ops.cc, which only XLA needs
(a line of horovod/tensorflow/CMakeLists.txt), it builds and runs; with such a build, this way is available. Its
`DistributedOptimizer` accepts Keras 3's optimizers but reduces nothing, because Keras no longer calls the methods that
it overrides (after a `model.fit` the two workers' weights were different). So our own loop averages the gradients with
`grouped_allreduce`, in one graph.
"""

import contextlib
import functools
import sys
from importlib.metadata import PackageNotFoundError, version

from ways.all_reduce import share_out, train_together
from ways.cluster import Task, be_task, outcome_of, run_cluster
from ways.contract import Outcome, Spec, run_way


def work(spec: Spec) -> Outcome:
    """Distribute the rows, run the workers and their rendezvous server, and collect their results."""
    try:
        release = version("horovod")
    except PackageNotFoundError:
        raise SystemExit(
            "horovod_ring: Horovod is not installed; ways/horovod_ring.py describes how to build it"
        ) from None
    data_bytes = share_out(spec)
    with _meeting_point(spec.n_workers) as environment:
        parts = run_cluster("horovod_ring", spec, {"worker": spec.n_workers}, "worker", environment)
    outcome = outcome_of(parts, data_bytes)
    outcome.versions["Horovod"] = release
    return outcome


@contextlib.contextmanager
def _meeting_point(n_workers: int):
    """Run the rendezvous server of Gloo's workers, as `horovodrun` does; return the environment of each task."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousServer

    slots = get_host_assignments(parse_hosts(f"localhost:{n_workers}"), n_workers)
    server = RendezvousServer()
    port = server.start()
    server.init(slots)

    def environment(tasks: list[Task]) -> dict[Task, dict[str, str]]:
        common = create_run_env_vars("127.0.0.1", ["lo"], str(port))
        return {task: common | create_slot_env_vars(slots[task.index]) for task in tasks}

    try:
        yield environment
    finally:
        server.stop()


class _Horovod:
    """A worker's member of Horovod's ring, with the interface of `all_reduce.Mirrored`."""

    scope = staticmethod(contextlib.nullcontext)

    def __init__(self):
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd

    def run(self, step, args=()):
        """Run a step on this worker."""
        return step(*args)

    def averaged(self, gradients: list) -> list:
        """Return the mean of the workers' gradients."""
        return self._hvd.grouped_allreduce(gradients, op=self._hvd.Average)

    def summed(self, result):
        """Return the sum of the workers' results of `run`."""
        return self._hvd.allreduce(result, op=self._hvd.Sum)


if __name__ == "__main__":
    if "--task" in sys.argv:
        be_task(functools.partial(train_together, _Horovod))
    else:
        run_way(work)
