"""The columns of the tables: heading, format, and notes on measurement and exclusions."""

from collections.abc import Callable
from dataclasses import dataclass

from report import formats
from report.summary import Row


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes
    ----------
    head : str
        With the unit.
    show : callable
        Row -> str.
    note : str
        How the figure was measured and what it excludes: a footnote of the page.
    """

    head: str
    show: Callable[[Row], str]
    note: str


@dataclass(frozen=True)
class Group:
    """The columns for one question; they form a table of their own, because the page is narrow."""

    title: str
    columns: tuple[Column, ...]


def _makespans(row: Row) -> str:
    return f"{formats.seconds(row.makespan_low_s)} – {formats.seconds(row.makespan_high_s)}"


TIME = Group(
    "How long it takes",
    (
        Column(
            "makespan, s",
            lambda row: formats.seconds(row.makespan_s),
            "Wall time from the start of the work to its end, start-up and all evaluations included; the median of the"
            " runs. The work of a program starts with its process: it copies the rows from a file and starts its"
            " workers. The ways in the database (the hopper and model averaging) are calls on a server that runs"
            " already, with rows that are packed already, since that is where the rows live: starting the server and"
            " loading and packing the rows are not counted; importing TensorFlow for the workers is, though a server"
            " that has just packed rows would have begun with it.",
        ),
        Column(
            "least – most, s",
            _makespans,
            "The shortest and the longest makespan of the runs. No interval of confidence: the runs are few.",
        ),
        Column(
            "× hopper’s",
            lambda row: formats.times(row.ratio),
            "This way’s median makespan in those of the hopper: above 1, the hopper is faster.",
        ),
        Column(
            "hopper’s × its",
            lambda row: formats.times(row.hopper_ratio),
            "The hopper’s median makespan in those of this way: the former figure’s inverse.",
        ),
        Column(
            "published, × hopper’s",
            lambda row: formats.times(row.published_ratio),
            "The same ratio as published: ImageNet, 8 nodes with a GPU each, 16 configurations of VGG16 and ResNet50,"
            " 10 epochs. Other hardware, other networks, other data: what can be compared is the order of the ways, not"
            " the digits.",
        ),
        Column(
            "start-up, s",
            lambda row: formats.seconds(row.startup_s),
            "From the start of the work until everything was loaded and started (at the latest, the start of the "
            "first training);"
            " part of the makespan. What is compiled later, with a network’s first mini-batch, is not in it.",
        ),
        Column(
            "compute, worker-s",
            lambda row: formats.seconds(row.compute_s),
            "The sum over workers of the time in which they trained or evaluated, as each way reports it: wall time, "
            "so a"
            " worker that waits for another within a mini-batch counts as computing.",
        ),
        Column(
            "idle",
            lambda row: formats.percent(row.idle_share),
            "1 − compute / (workers × (makespan − start-up)): the share of the workers’ time after the start-up that"
            " was neither training nor evaluation.",
        ),
    ),
)
BYTES = Group(
    "How many bytes it stores and sends",
    (
        Column(
            "training rows stored",
            lambda row: formats.size(row.data_bytes),
            "All copies of the training rows, as they are stored while the way trains; in the database the packed"
            " table, without the source table that was there before. Not test rows, nor models. 1 MB is 10⁶ bytes.",
        ),
        Column(
            "copies",
            lambda row: formats.times(row.copies),
            "The bytes stored in those of plain Keras, which has one copy of the rows in one file.",
        ),
        Column(
            "over sockets",
            lambda row: formats.size(row.socket_bytes),
            "What the kernel counted on the loopback interface of a network of the way’s own, in which its processes"
            " can reach nothing else, during the makespan; with TCP/IP headers and acknowledgements. Each byte counts"
            " once, when it is sent. Not what goes through pipes, shared memory, files or Unix sockets.",
        ),
        Column(
            "written by database",
            lambda row: formats.size(row.written_bytes),
            "What the server wrote while it worked, between two checkpoints: write-ahead log and pages of relations,"
            " mostly the states of models. Nothing is known here of the files that other ways write.",
        ),
        Column(
            "database, after",
            lambda row: formats.size(row.database_bytes),
            "Size of the database at the end: source tables, packed tables, the models and the record of the run.",
        ),
    ),
)
MODELS = Group(
    "How good the models are",
    (
        Column(
            "best test error",
            lambda row: formats.percent(row.best_error),
            "The share of test rows that the best configuration after its last epoch gets wrong; the median of the"
            " runs. The best of many on the rows by which it is chosen: an optimistic figure, for every way alike.",
        ),
        Column(
            "mean test error",
            lambda row: formats.percent(row.mean_error),
            "The mean of that over all configurations, good and bad, then over seeds, each of which counts once.",
        ),
        Column(
            "above plain, points",
            lambda row: formats.points(row.points_above_plain),
            "By how many percentage points the mean test error is above that of plain Keras, the mean over the seeds"
            " that both ran with. Negative is better than plain; a few seeds do not show small differences.",
        ),
        Column(
            "time to same error, × hopper’s",
            lambda row: formats.times(row.same_error_ratio),
            "How many times as long as the hopper it takes until the search is at or below one test error: until all"
            " configurations are known and the mean of their least errors so far is at most the worse one of those that"
            " the two ways end with, which both reach. The median of the pairs of runs with one seed. From the begin of"
            " the work; known is an error when it is evaluated, after an epoch.",
        ),
        Column(
            "same bits twice",
            lambda row: formats.yes(row.same_bits),
            "Whether runs with one seed ended with the same SHA-256 of every configuration’s weights. The hopper’s"
            " schedule depends on the measured costs of visits, unless schedule rotation is chosen; the order is "
            "recorded, and replay"
            " repeats it with the same bits.",
        ),
        Column(
            "runs (seeds)",
            lambda row: f"{row.n_runs} ({row.n_seeds})",
            "How often it was run, and with how many seeds. The ways take turns, run by run, so that what disturbs the"
            " machine for a while disturbs all of them.",
        ),
    ),
)
GROUPS = (TIME, BYTES, MODELS)
