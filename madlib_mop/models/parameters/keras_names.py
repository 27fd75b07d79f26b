"""Tables of Keras 3's names for compile and fit parameters, which allow checks without TensorFlow.

Each class is listed with the arguments of its constructor in their order. A test compares every table with the Keras
that is installed.
"""

import re

_COMMON = (
    "weight_decay clipnorm clipvalue global_clipnorm use_ema ema_momentum ema_overwrite_frequency"
    " loss_scale_factor gradient_accumulation_steps name"
)
_COMMON_AFTER_DECAY = _COMMON.removeprefix("weight_decay ")


def _table(**signatures: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(arguments.split()) for name, arguments in signatures.items()}


OPTIMIZERS = _table(
    Adadelta=f"learning_rate rho epsilon {_COMMON}",
    Adafactor=f"learning_rate beta_2_decay epsilon_1 epsilon_2 clip_threshold relative_step {_COMMON}",
    Adagrad=f"learning_rate initial_accumulator_value epsilon {_COMMON}",
    Adam=f"learning_rate beta_1 beta_2 epsilon amsgrad {_COMMON}",
    AdamW=f"learning_rate weight_decay beta_1 beta_2 epsilon amsgrad {_COMMON_AFTER_DECAY}",
    Adamax=f"learning_rate beta_1 beta_2 epsilon {_COMMON}",
    Ftrl="learning_rate learning_rate_power initial_accumulator_value l1_regularization_strength"
    f" l2_regularization_strength l2_shrinkage_regularization_strength beta {_COMMON}",
    Lamb=f"learning_rate beta_1 beta_2 epsilon {_COMMON}",
    Lion=f"learning_rate beta_1 beta_2 {_COMMON}",
    Muon=f"learning_rate adam_beta_1 adam_beta_2 adam_weight_decay epsilon {_COMMON} exclude_layers"
    " exclude_embeddings muon_a muon_b muon_c adam_lr_ratio momentum ns_steps nesterov rms_rate",
    Nadam=f"learning_rate beta_1 beta_2 epsilon {_COMMON}",
    RMSprop=f"learning_rate rho momentum epsilon centered {_COMMON}",
    SGD=f"learning_rate momentum nesterov {_COMMON}",
    ScheduleFreeAdamW=f"learning_rate beta_1 beta_2 epsilon warmup_steps {_COMMON}",
)

# Default learning rates of optimizers; needed to convert Keras 2's `decay` to a schedule.
DEFAULT_LEARNING_RATES = {**dict.fromkeys(OPTIMIZERS, 0.001), "SGD": 0.01, "ScheduleFreeAdamW": 0.0025}

SCHEDULES = _table(
    CosineDecay="initial_learning_rate decay_steps alpha name warmup_target warmup_steps",
    CosineDecayRestarts="initial_learning_rate first_decay_steps t_mul m_mul alpha name",
    ExponentialDecay="initial_learning_rate decay_steps decay_rate staircase name",
    InverseTimeDecay="initial_learning_rate decay_steps decay_rate staircase name",
    PiecewiseConstantDecay="boundaries values name",
    PolynomialDecay="initial_learning_rate decay_steps end_learning_rate power cycle name",
)

LOSSES = _table(
    BinaryCrossentropy="from_logits label_smoothing axis reduction name dtype",
    BinaryFocalCrossentropy="apply_class_balancing alpha gamma from_logits label_smoothing axis reduction name dtype",
    CTC="reduction name dtype",
    CategoricalCrossentropy="from_logits label_smoothing axis reduction name dtype",
    CategoricalFocalCrossentropy="alpha gamma from_logits label_smoothing axis reduction name dtype",
    CategoricalGeneralizedCrossEntropy="q reduction name dtype",
    CategoricalHinge="reduction name dtype",
    Circle="gamma margin remove_diagonal reduction name dtype",
    CosineSimilarity="axis reduction name dtype",
    Dice="reduction name axis dtype",
    Hinge="reduction name dtype",
    Huber="delta reduction name dtype",
    KLDivergence="reduction name dtype",
    LogCosh="reduction name dtype",
    MeanAbsoluteError="reduction name dtype",
    MeanAbsolutePercentageError="reduction name dtype",
    MeanSquaredError="reduction name dtype",
    MeanSquaredLogarithmicError="reduction name dtype",
    Poisson="reduction name dtype",
    SparseCategoricalCrossentropy="from_logits ignore_class reduction axis name dtype",
    SquaredHinge="reduction name dtype",
    Tversky="alpha beta reduction name axis dtype",
)

# Losses that compile() takes as a string, in addition to the class names above.
LOSS_STRINGS = frozenset(
    "BCE KLD MAE MAPE MSE MSLE bce kld mae mape mse msle binary_crossentropy binary_focal_crossentropy"
    " categorical_crossentropy categorical_focal_crossentropy categorical_hinge circle cosine_similarity ctc dice hinge"
    " huber kl_divergence log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error"
    " mean_squared_logarithmic_error poisson sparse_categorical_crossentropy squared_hinge tversky"
    " crossentropy ce".split()
)

METRICS = _table(
    AUC="num_thresholds curve summation_method name dtype thresholds multi_label num_labels label_weights from_logits",
    Accuracy="name dtype",
    BinaryAccuracy="name dtype threshold",
    BinaryCrossentropy="name dtype from_logits label_smoothing",
    BinaryIoU="target_class_ids threshold name dtype",
    CategoricalAccuracy="name dtype",
    CategoricalCrossentropy="name dtype from_logits label_smoothing axis",
    CategoricalHinge="name dtype",
    ConcordanceCorrelation="name dtype axis",
    CosineSimilarity="name dtype axis",
    F1Score="average threshold name dtype",
    FBetaScore="average beta threshold name dtype",
    FalseNegatives="thresholds name dtype",
    FalsePositives="thresholds name dtype",
    Hinge="name dtype",
    IoU="num_classes target_class_ids name dtype ignore_class sparse_y_true sparse_y_pred axis",
    KLDivergence="name dtype",
    LogCoshError="name dtype",
    MeanAbsoluteError="name dtype",
    MeanAbsolutePercentageError="name dtype",
    MeanIoU="num_classes name dtype ignore_class sparse_y_true sparse_y_pred axis",
    MeanSquaredError="name dtype",
    MeanSquaredLogarithmicError="name dtype",
    OneHotIoU="num_classes target_class_ids name dtype ignore_class sparse_y_pred axis",
    OneHotMeanIoU="num_classes name dtype ignore_class sparse_y_pred axis",
    PearsonCorrelation="name dtype axis",
    Poisson="name dtype",
    Precision="thresholds top_k class_id name dtype",
    PrecisionAtRecall="recall num_thresholds class_id name dtype",
    R2Score="class_aggregation num_regressors name dtype",
    Recall="thresholds top_k class_id name dtype",
    RecallAtPrecision="precision num_thresholds class_id name dtype",
    RootMeanSquaredError="name dtype",
    SensitivityAtSpecificity="specificity num_thresholds class_id name dtype",
    SparseCategoricalAccuracy="name dtype",
    SparseCategoricalCrossentropy="name dtype from_logits ignore_class axis",
    SparseTopKCategoricalAccuracy="k name dtype from_sorted_ids",
    SpecificityAtSensitivity="sensitivity num_thresholds class_id name dtype",
    SquaredHinge="name dtype",
    TopKCategoricalAccuracy="k name dtype",
    TrueNegatives="thresholds name dtype",
    TruePositives="thresholds name dtype",
)

# Default names of metrics that differ from their classes in snake case.
METRIC_NAMES = {"FBetaScore": "fbeta_score", "LogCoshError": "logcosh"}

METRIC_STRINGS = frozenset(
    "BCE MAE MAPE MSE MSLE bce mae mape mse msle acc accuracy auc binary_accuracy binary_crossentropy binary_io_u"
    " categorical_accuracy categorical_crossentropy categorical_hinge concordance_correlation cosine_similarity"
    " f1_score f_beta_score false_negatives false_positives hinge io_u kl_divergence log_cosh_error"
    " mean_absolute_error mean_absolute_percentage_error mean_io_u mean_squared_error mean_squared_logarithmic_error"
    " one_hot_io_u one_hot_mean_io_u pearson_correlation poisson precision precision_at_recall r2_score recall"
    " recall_at_precision root_mean_squared_error sensitivity_at_specificity sparse_categorical_accuracy"
    " sparse_categorical_crossentropy sparse_top_k_categorical_accuracy specificity_at_sensitivity squared_hinge"
    " top_k_categorical_accuracy true_negatives true_positives".split()
)

# Names of Keras 2 that Keras 3 has changed.
OLD_LOSSES = {
    "cosine": "cosine_similarity",
    "cosine_proximity": "cosine_similarity",
    "huber_loss": "huber",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
}
OLD_METRICS = {
    "cosine": "cosine_similarity",
    "cosine_proximity": "cosine_similarity",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh_error",
}

CALLBACKS = _table(
    EarlyStopping="monitor min_delta patience verbose mode baseline restore_best_weights start_from_epoch",
    LearningRateScheduler="schedule verbose",
    ReduceLROnPlateau="monitor factor patience verbose mode min_delta cooldown min_lr",
    TerminateOnNaN="raise_error",
)

# Types of weights, of tensors and of metrics.
DTYPES = frozenset(
    """
    bfloat16 bool float16 float32 float64 int8 int16 int32 int64 mixed_bfloat16 mixed_float16 uint8 uint16 uint32 uint64
    """.split()
)

# Callbacks that write files for users: trainers write none, because the record has the same values.
RECORDED_CALLBACKS = _table(
    TensorBoard="log_dir histogram_freq write_graph write_images write_steps_per_second update_freq profile_batch"
    " embeddings_freq embeddings_metadata",
)

# Arguments without a default.
REQUIRED = {
    "CosineDecay": ("initial_learning_rate", "decay_steps"),
    "CosineDecayRestarts": ("initial_learning_rate", "first_decay_steps"),
    "ExponentialDecay": ("initial_learning_rate", "decay_steps", "decay_rate"),
    "InverseTimeDecay": ("initial_learning_rate", "decay_steps", "decay_rate"),
    "IoU": ("num_classes", "target_class_ids"),
    "LearningRateScheduler": ("schedule",),
    "MeanIoU": ("num_classes",),
    "OneHotIoU": ("num_classes", "target_class_ids"),
    "OneHotMeanIoU": ("num_classes",),
    "PiecewiseConstantDecay": ("boundaries", "values"),
    "PolynomialDecay": ("initial_learning_rate", "decay_steps"),
    "PrecisionAtRecall": ("recall",),
    "RecallAtPrecision": ("precision",),
    "SensitivityAtSpecificity": ("specificity",),
    "SpecificityAtSensitivity": ("sensitivity",),
}

# The kind of value by the argument's name; `?` also allows None. Arguments that are not listed take any literal.
_KINDS = {
    "bool": "amsgrad apply_class_balancing centered cycle exclude_embeddings from_logits from_sorted_ids multi_label"
    " nesterov raise_error relative_step remove_diagonal restore_best_weights sparse_y_pred sparse_y_true staircase"
    " use_ema write_graph write_images write_steps_per_second",
    "int": "num_classes num_thresholds k ns_steps num_regressors patience cooldown start_from_epoch",
    "int?": "class_id ema_overwrite_frequency gradient_accumulation_steps ignore_class num_labels top_k",
    "number": "adam_beta_1 adam_beta_2 adam_lr_ratio beta beta_1 beta_2 beta_2_decay clip_threshold decay_rate"
    " decay_steps delta ema_momentum end_learning_rate epsilon epsilon_1 epsilon_2 factor first_decay_steps gamma"
    " initial_accumulator_value initial_learning_rate l1_regularization_strength l2_regularization_strength"
    " l2_shrinkage_regularization_strength label_smoothing learning_rate_power m_mul margin min_delta min_lr momentum"
    " muon_a muon_b muon_c power precision q recall rho rms_rate sensitivity specificity t_mul warmup_steps",
    "number?": "adam_weight_decay baseline clipnorm clipvalue global_clipnorm loss_scale_factor threshold"
    " warmup_target weight_decay",
    "numbers": "alpha boundaries target_class_ids values",
    "numbers?": "label_weights thresholds",
    "text": "curve log_dir mode monitor name summation_method",
    "text?": "average class_aggregation dtype embeddings_metadata reduction",
}
ARGUMENT_KINDS = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def snake_case(name: str) -> str:
    """Write a class's name as Keras names its objects, e.g. ``top_k_categorical_accuracy``."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
