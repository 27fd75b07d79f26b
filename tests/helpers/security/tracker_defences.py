"""The defences, in the format of ``defences.py``, of trackers: names in paths, links, passwords."""

from tests.helpers.security.defence import Defence

_TENSORBOARD = "tests/unit/trackers/test_tensorboard.py::"
_ADDRESSES = "tests/unit/trackers/test_addresses.py::"
_HANDLES = "tests/unit/client/test_handles.py::"
_MODELS = "tests/integration/test_mlflow_models.py::"
_MLFLOW_MODELS = "tests/unit/trackers/test_mlflow_models.py::"
_EVENT_FILES = "madlib_mop/trackers/event_files.py"

DEFENCES_OF_TRACKERS = (
    Defence(
        "a directory of a tracker that is a link is not written to",
        _EVENT_FILES,
        "path.lstat()",
        "path.stat()",
        (_TENSORBOARD + "test_a_link_is_not_followed",),
    ),
    Defence(
        "an event file that became a link is not written to",
        _EVENT_FILES,
        " | os.O_NOFOLLOW",
        "",
        (_TENSORBOARD + "test_an_event_file_that_became_a_link_is_replaced_or_refused",),
    ),
    Defence(
        "the directory of another run or another program is kept",
        "madlib_mop/trackers/tensorboard.py",
        "if os.listdir(path) and _key_of(marker) != run.origin.key:",
        "if False:",
        (_TENSORBOARD + "test_files_of_another_program_are_kept",),
    ),
    Defence(
        "training states are for members of the owner's role",
        "madlib_mop/trackers/tensorboard.py",
        "if self._histograms and not run.may_own:",
        "if False:",
        (_TENSORBOARD + "test_histograms_are_refused_to_one_who_may_not_see_states",),
    ),
    Defence(
        "a name is no path in MLflow",
        "madlib_mop/trackers/names.py",
        'plain = _NO_KEY.sub("_", name).replace("..", "__")[:_MAX_KEY]',
        "plain = name[:_MAX_KEY]",
        ("tests/unit/trackers/test_names.py::test_hostile_names_become_different_keys_without_paths",),
    ),
    Defence(
        "a tag of TensorBoard has no control characters",
        "madlib_mop/trackers/names.py",
        "_{clean(point.name)}",
        "_{point.name}",
        ("tests/unit/trackers/test_names.py::test_a_tag_shows_control_characters",),
    ),
    Defence(
        "a tracker takes no password as an argument",
        "madlib_mop/trackers/addresses.py",
        'has_password = ":" in',
        'has_password = "no such text" in',
        (_ADDRESSES + "test_a_password_in_an_argument_is_refused_and_not_repeated",),
    ),
    Defence(
        "no message of a tracker has a password",
        "madlib_mop/trackers/addresses.py",
        '_USER_INFO.sub("//", address)',
        "address",
        (_ADDRESSES + "test_no_message_has_users_and_passwords_of_addresses",),
    ),
    Defence(
        "a file that is no journal is not written to",
        "madlib_mop/trackers/optuna_study.py",
        'if file.read(1) not in (b"", b"{"):',
        "if False:",
        ("tests/unit/trackers/test_optuna.py::test_a_file_that_is_no_journal_is_kept",),
    ),
    Defence(
        "a study of another run is kept",
        "madlib_mop/trackers/optuna_study.py",
        "if self._study.user_attrs.get(_KEY) != run.origin.key:",
        "if False:",
        ("tests/unit/trackers/test_optuna.py::test_a_study_of_another_run_is_kept",),
    ),
    Defence(
        "MLflow sends nothing to its authors",
        "madlib_mop/trackers/mlflow_runs.py",
        '    "MLFLOW_DISABLE_TELEMETRY": "true",\n',
        "",
        ("tests/unit/trackers/test_mlflow.py::test_nothing_is_printed_and_nothing_is_sent_to_mlflow_s_authors",),
    ),
    Defence(
        "an output table of another role is read only on request",
        "madlib_mop/trackers/exported.py",
        "    if not of_others:\n        _check_own(connection, table)\n",
        "",
        (_MODELS + "test_the_table_of_another_role_is_not_read_without_a_request",),
    ),
    Defence(
        "an output table is checked again by the transaction that exports it",
        "madlib_mop/trackers/exported.py",
        "                _check_own(connection, table)\n",
        "",
        (_MODELS + "test_what_was_replaced_after_the_table_was_found_is_not_read",),
    ),
    Defence(
        "an output table is locked while it is checked and exported",
        "madlib_mop/trackers/exported.py",
        'connection.execute(_LOCK.format(tables=", ".join(one.sql for one in table.relations)))',
        "pass",
        (_MODELS + "test_what_is_exported_cannot_be_replaced_meanwhile",),
    ),
    Defence(
        "the companions of an output table are checked, too",
        "madlib_mop/trackers/exported.py",
        "suffixes = (\"\", \"_info\", \"_summary\") if self.has_keys",
        "suffixes = (\"\",) if self.has_keys",
        (_MODELS + "test_what_was_replaced_after_the_table_was_found_is_not_read[lent_summary]",),
    ),
    Defence(
        "an output table whose schema others may rename is read only on request",
        "madlib_mop/trackers/exported.py",
        "elif renamer is not None:",
        "elif False:",
        (_MODELS + "test_a_table_in_a_schema_that_others_may_rename_is_not_read",),
    ),
    Defence(
        "a model in MLflow has the weights of its run",
        "madlib_mop/trackers/exported.py",
        "if model.weights_digest is not None and signature.weights_digest != model.weights_digest:",
        "if False:",
        (_MODELS + "test_weights_of_another_run_are_not_written",),
    ),
    Defence(
        "a password with an @ is not read as a host, which errors show",
        "madlib_mop/catalog/sessions/dsn.py",
        "    is_cut = ",
        "    is_cut = False and ",
        (_HANDLES + "test_a_dsn_that_cannot_be_read_is_not_repeated",),
    ),
    Defence(
        "a hostile database adds nothing to what MLflow installs",
        "madlib_mop/imports/signatures.py",
        "if not _VERSION.fullmatch(signature.library):",
        "if False:",
        ("tests/unit/exports/test_signature.py::test_a_signature_names_a_version_and_nothing_else",),
    ),
    Defence(
        "why a model is not written has no control characters",
        "madlib_mop/trackers/mlflow_runs.py",
        "failed.setdefault(clean(error.message), [])",
        "failed.setdefault(error.message, [])",
        (_MLFLOW_MODELS + "test_what_cannot_be_exported_is_one_line_and_the_rest_is_written",),
    ),
)
