"""Plain Keras, the reference: n_workers parallel processes over one copy of the rows, each with its share of the grid.

Worker w trains the configurations w, w + n_workers, ... of the list.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from workloads import Rows

from ways.contract import Outcome, Spec, now, run_way
from ways.training import one_thread, outcome_of, train


def work(spec: Spec) -> Outcome:
    """Start the workers and collect their results."""
    data_bytes = Rows.load(Path(spec.rows)).save_training(_copy(spec))
    told = [Path(spec.directory, f"worker_{number}.json") for number in range(spec.n_workers)]
    text = json.dumps(dataclasses.asdict(spec))
    workers = [
        subprocess.Popen([sys.executable, "-m", "ways.plain", "--worker", text, str(number), path])
        for number, path in enumerate(told)
    ]
    if any([worker.wait() for worker in workers]):
        raise SystemExit("a worker failed")
    parts = {key: part for path in told for key, part in json.loads(path.read_text()).items()}
    return outcome_of(parts, data_bytes, {})


def _work_as_worker(text: str, number: str, path: str) -> None:
    spec = Spec(**json.loads(text))
    one_thread()
    rows = Rows.load(Path(spec.rows), _copy(spec))
    ready_at = now()
    mst_keys = spec.mst_keys[int(number) :: spec.n_workers]
    models = {key: train(spec.workload, rows, key, spec.n_epochs, spec.seed, int(number)) for key in mst_keys}
    Path(path).write_text(json.dumps({key: model.told(ready_at) for key, model in models.items()}))


def _copy(spec: Spec) -> Path:
    return Path(spec.directory, "training.npz")


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        _work_as_worker(*sys.argv[2:])
    else:
        run_way(work)
