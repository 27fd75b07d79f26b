"""The defences, in the format of ``defences.py``, of trackers: names in paths, links, passwords."""

from tests.helpers.security.defence import Defence

_TENSORBOARD = "tests/unit/trackers/test_tensorboard.py::"
_ADDRESSES = "tests/unit/trackers/test_addresses.py::"
_HANDLES = "tests/unit/client/test_handles.py::"
_MODELS = "tests/integration/test_mlflow_models.py::"
_MLFLOW_MODELS = "tests/unit/trackers/test_mlflow_models.py::"

DEFENCES_OF_TRACKERS = (
    Defence(
        "link-of-a-directory",
        "a directory of a tracker that is a link is not written to",
        (_TENSORBOARD + "test_a_link_is_not_followed",),
    ),
    Defence(
        "link-of-an-event-file",
        "an event file that became a link is not written to",
        (_TENSORBOARD + "test_an_event_file_that_became_a_link_is_replaced_or_refused",),
    ),
    Defence(
        "directories-of-others",
        "the directory of another run or another program is kept",
        (_TENSORBOARD + "test_files_of_another_program_are_kept",),
    ),
    Defence(
        "histograms-for-members",
        "training states are for members of the owner's role",
        (_TENSORBOARD + "test_histograms_are_refused_to_one_who_may_not_see_states",),
    ),
    Defence(
        "names-in-mlflow",
        "a name is no path in MLflow",
        ("tests/unit/trackers/test_names.py::test_hostile_names_become_different_keys_without_paths",),
    ),
    Defence(
        "tags-of-tensorboard",
        "a tag of TensorBoard has no control characters",
        ("tests/unit/trackers/test_names.py::test_a_tag_shows_control_characters",),
    ),
    Defence(
        "no-password-in-arguments",
        "a tracker takes no password as an argument",
        (_ADDRESSES + "test_a_password_in_an_argument_is_refused_and_not_repeated",),
    ),
    Defence(
        "no-password-in-messages",
        "no message of a tracker has a password",
        (_ADDRESSES + "test_no_message_has_users_and_passwords_of_addresses",),
    ),
    Defence(
        "journals-only",
        "a file that is no journal is not written to",
        ("tests/unit/trackers/test_optuna.py::test_a_file_that_is_no_journal_is_kept",),
    ),
    Defence(
        "studies-of-others",
        "a study of another run is kept",
        ("tests/unit/trackers/test_optuna.py::test_a_study_of_another_run_is_kept",),
    ),
    Defence(
        "no-telemetry",
        "MLflow sends nothing to its authors",
        ("tests/unit/trackers/test_mlflow.py::test_nothing_is_printed_and_nothing_is_sent_to_mlflow_s_authors",),
    ),
    Defence(
        "tables-of-others",
        "an output table of another role is read only on request",
        (_MODELS + "test_the_table_of_another_role_is_not_read_without_a_request",),
    ),
    Defence(
        "tables-checked-again",
        "an output table is checked again by the transaction that exports it",
        (_MODELS + "test_what_was_replaced_after_the_table_was_found_is_not_read",),
    ),
    Defence(
        "tables-locked",
        "an output table is locked while it is checked and exported",
        (_MODELS + "test_what_is_exported_cannot_be_replaced_meanwhile",),
    ),
    Defence(
        "companions-of-tables",
        "the companions of an output table are checked, too",
        (_MODELS + "test_what_was_replaced_after_the_table_was_found_is_not_read[lent_summary]",),
    ),
    Defence(
        "schemas-of-tables",
        "an output table whose schema others may rename is read only on request",
        (_MODELS + "test_a_table_in_a_schema_that_others_may_rename_is_not_read",),
    ),
    Defence(
        "weights-of-the-run",
        "a model in MLflow has the weights of its run",
        (_MODELS + "test_weights_of_another_run_are_not_written",),
    ),
    Defence(
        "cut-dsn",
        "a password with an @ is not read as a host, which errors show",
        (_HANDLES + "test_a_dsn_that_cannot_be_read_is_not_repeated",),
    ),
    Defence(
        "library-of-a-signature",
        "a hostile database adds nothing to what MLflow installs",
        ("tests/unit/exports/test_signature.py::test_a_signature_names_a_version_and_nothing_else",),
    ),
    Defence(
        "reasons-in-mlflow",
        "why a model is not written has no control characters",
        (_MLFLOW_MODELS + "test_what_cannot_be_exported_is_one_line_and_the_rest_is_written",),
    ),
)
