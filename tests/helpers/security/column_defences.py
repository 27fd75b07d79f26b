"""The defences of ``defences.py`` that are about ordinary tables: their rows, types and preprocessors."""

from tests.helpers.security.defence import Defence

_COLUMNS = "tests/security/test_columns.py::"
_IMAGES = "tests/security/test_image_columns.py::"
_UNTRUSTED = "tests/security/test_untrusted_tables.py::"
_PREDICTED = "tests/security/test_predicted_types.py::"

DEFENCES_OF_COLUMNS = (
    Defence(
        "own-held-out-tables",
        "gradient_boosting reads tables that the caller has not named only if they are the caller's own",
        ("tests/integration/test_gradient_boosting.py::test_tables_of_others_beside_the_packed_one_are_not_read",),
    ),
    Defence(
        "statistics-for-members",
        "who may see a run does not see the statistics of its training rows",
        ("tests/security/test_rights.py::test_an_owner_lets_another_user_see_but_not_control_his_runs",),
    ),
    Defence(
        "missing-types",
        "bytes with a type that does not exist are one clear error",
        (_COLUMNS + "test_bytes_that_are_no_row_are_one_error",),
    ),
    Defence(
        "types-of-arrays",
        "an array to predict runs no cast of its type's owner",
        (_PREDICTED + "test_arrays_of_a_users_type_are_refused_before_a_cast",),
    ),
    Defence(
        "types-of-fields",
        "a row to predict runs no cast of its fields' types to json",
        (_PREDICTED + "test_rows_with_a_users_types_run_no_cast",),
    ),
    Defence(
        "decoder-of-a-session",
        "the decoder of a session is shut in",
        (_IMAGES + "test_the_decoder_of_a_session_is_shut_in_and_ends_with_it",),
    ),
    Defence(
        "cancelled-images",
        "the answer for an image of a cancelled call is not taken for that of the next",
        (_IMAGES + "test_a_cancelled_prediction_ends_the_decoder",),
    ),
    Defence(
        "policies-read-ahead",
        "reading ahead runs no row policy",
        (_COLUMNS + "test_reading_ahead_runs_no_policy_that_the_query_does_not_run",),
    ),
    Defence(
        "locks-read-ahead",
        "reading ahead waits for no lock",
        (_COLUMNS + "test_reading_ahead_waits_for_no_lock_that_the_query_does_not_need",),
    ),
    Defence(
        "version-read-ahead",
        "an answer that was read ahead is not one of an earlier version of the model",
        ("tests/integration/test_read_ahead.py::test_a_model_that_changes_in_the_middle_of_a_statement",),
    ),
    Defence(
        "names-read-ahead",
        "a renamed column is not taken for another in rows that are read ahead",
        ("tests/integration/test_read_ahead.py::test_a_column_that_is_renamed_in_the_middle_of_a_statement",),
    ),
    Defence(
        "names-of-columns",
        "a renamed column is not taken for another in the same session",
        (_COLUMNS + "test_a_renamed_column_is_seen_in_the_same_session",),
    ),
    Defence(
        "consistent-preprocessor",
        "a preprocessor that contradicts itself is refused",
        (_COLUMNS + "test_a_preprocessor_that_somebody_changed_is_one_error",),
    ),
    Defence(
        "digest-of-a-preprocessor",
        "a preprocessor is the one that its digest names",
        (_COLUMNS + "test_a_changed_document_with_the_old_digest_is_refused",),
    ),
    Defence(
        "enums-without-casts",
        "an enum is read without the casts of its owner",
        (_COLUMNS + "test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted",),
    ),
    Defence(
        "types-of-postgresql",
        "a type of another schema is not taken for PostgreSQL's of that name",
        (_COLUMNS + "test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted",),
    ),
    Defence(
        "temporary-files",
        "a role's limit of temporary files holds for packing",
        (_COLUMNS + "test_a_role_s_limit_of_temporary_files_holds_whatever_its_unit",),
    ),
    Defence(
        "types-that-are-copied",
        "a column of another user's type is not copied into an output table",
        (_COLUMNS + "test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted",),
    ),
    Defence(
        "enums-that-are-copied",
        "an enum that is copied is read without the casts of its owner",
        (_COLUMNS + "test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted",),
    ),
    Defence(
        "preprocessor-of-the-model",
        "a preprocessor of another model is refused before any row is read",
        ("tests/integration/test_using_columns.py::test_a_summary_that_was_changed_is_an_error",),
    ),
    Defence(
        "rows-of-a-view",
        "a view that shows another number of rows when it is read again is one clear error",
        (_UNTRUSTED + "test_a_view_that_has_other_rows_each_time_is_one_error",),
    ),
    Defence(
        "width-of-labels",
        "labels of two widths in the validation table of an ensemble are one clear error",
        (_UNTRUSTED + "test_buffers_that_contradict_themselves_are_one_error",),
    ),
    Defence(
        "ids-of-architectures",
        "ids of architectures that are no integers do not reach the answer of propose_search",
        (_UNTRUSTED + "test_ids_of_architectures_that_are_no_numbers_are_one_error",),
    ),
)
