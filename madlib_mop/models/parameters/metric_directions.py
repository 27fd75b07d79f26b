"""Whether higher values of a metric are better: the one place that decides it, by the metric's name.

``madlib_mop.higher_is_better`` (sql/23-views.sql) gets the same pattern when the extension is built.
"""

import re
import string

#: What the name of a metric is, or ends with after ``_``, if higher values are better. In a name of Keras, all others
#: are losses, errors or counts of errors. A network with several outputs has names such as ``kind_accuracy``; Keras
#: adds a number to the second metric of a name.
HIGHER = (
    *("acc", "accuracy", "auc", "auroc", "correlation", "f1", "f1_score", "fbeta", "fbeta_score", "f_beta_score"),
    *("io_u", "iou", "precision", "r2", "r2_score", "recall", "sensitivity", "similarity", "specificity"),
    *("true_negatives", "true_positives"),
    # classes of Keras, where a name is that of the class
    *("binaryaccuracy", "binaryiou", "categoricalaccuracy", "concordancecorrelation", "cosinesimilarity", "f1score"),
    *("fbetascore", "meaniou", "onehotiou", "onehotmeaniou", "pearsoncorrelation", "precisionatrecall", "r2score"),
    *("recallatprecision", "sensitivityatspecificity", "sparsecategoricalaccuracy", "sparsetopkcategoricalaccuracy"),
    *("specificityatsensitivity", "topkcategoricalaccuracy", "truenegatives", "truepositives"),
)
#: For names in lower case; an expression of Python and of PostgreSQL.
PATTERN = f"^(.*_)?({'|'.join(HIGHER)})(_[0-9]+)?$"

_PATTERN = re.compile(PATTERN.removesuffix("$") + r"\Z", re.DOTALL)
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def higher_is_better(name: str) -> bool:
    """Return whether higher values of a metric of this name are better; of any other name, lower ones are."""
    return _PATTERN.match(name.translate(_LOWER)) is not None
