"""The defences of ``defences.py`` that are about ordinary tables: their rows, types and preprocessors."""

from tests.helpers.security.defence import Defence

_COLUMNS = "tests/security/test_columns.py::"
_IMAGES = "tests/security/test_image_columns.py::"
_UNTRUSTED = "tests/security/test_untrusted_tables.py::"
_PREDICTED = "tests/security/test_predicted_types.py::"

DEFENCES_OF_COLUMNS = (
    Defence(
        "who may see a run does not see the statistics of its training rows",
        "sql/22-visibility.sql",
        """CREATE POLICY own_runs ON madlib_mop.preprocessor FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r WHERE madlib_mop_calls.may_own(r.owner)));""",
        """CREATE POLICY own_runs ON madlib_mop.preprocessor FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));""",
        ("tests/security/test_rights.py::test_an_owner_lets_another_user_see_but_not_control_his_runs",),
    ),
    Defence(
        "bytes with a type that does not exist are one clear error",
        "plpython/mop_backend/predict_row.py",
        "if missing := set(oids) - types.keys():",
        "if missing := set():",
        (_COLUMNS + "test_bytes_that_are_no_row_are_one_error",),
    ),
    Defence(
        "an array to predict runs no cast of its type's owner",
        "sql/46-predict.sql",
        "IF pg_typeof(x) <> ALL ('{smallint[]",
        "IF pg_typeof(x) IS NULL AND pg_typeof(x) <> ALL ('{smallint[]",
        (_PREDICTED + "test_arrays_of_a_users_type_are_refused_before_a_cast",),
    ),
    Defence(
        "a row to predict runs no cast of its fields' types to json",
        "sql/46-predict-rows.sql",
        "IF madlib_mop_calls._has_plain_fields(sent) THEN",
        "IF true THEN",
        (_PREDICTED + "test_rows_with_a_users_types_run_no_cast",),
    ),
    Defence(
        "the decoder of a session is shut in",
        "madlib_mop/driver/data/decoders.py",
        "main(list(SANDBOX))",
        "main([])",
        (_IMAGES + "test_the_decoder_of_a_session_is_shut_in_and_ends_with_it",),
    ),
    Defence(
        "the answer for an image of a cancelled call is not taken for that of the next",
        "plpython/mop_backend/row_images.py",
        "except BaseException:  # cancelled: it is still decoding\n            _forget()",
        "except BaseException:  # cancelled: it is still decoding\n            pass",
        (_IMAGES + "test_a_cancelled_prediction_ends_the_decoder",),
    ),
    Defence(
        "reading ahead runs no row policy",
        "plpython/mop_backend/read_ahead.py",
        "    and not pg_catalog.row_security_active(c.oid)\n",
        "",
        (_COLUMNS + "test_reading_ahead_runs_no_policy_that_the_query_does_not_run",),
    ),
    Defence(
        "reading ahead waits for no lock",
        "plpython/mop_backend/read_ahead.py",
        "and exists (select from pg_catalog.pg_locks",
        "or exists (select from pg_catalog.pg_locks",
        (_COLUMNS + "test_reading_ahead_waits_for_no_lock_that_the_query_does_not_need",),
    ),
    Defence(
        "an answer that was read ahead is not one of an earlier version of the model",
        "plpython/mop_backend/predict_row.py",
        "moment.login, model.version)",
        "moment.login, None)",
        ("tests/integration/test_read_ahead.py::test_a_model_that_changes_in_the_middle_of_a_statement",),
    ),
    Defence(
        "a renamed column is not taken for another in rows that are read ahead",
        "plpython/mop_backend/read_ahead.py",
        " or context.names != names",
        "",
        ("tests/integration/test_read_ahead.py::test_a_column_that_is_renamed_in_the_middle_of_a_statement",),
    ),
    Defence(
        "a renamed column is not taken for another in the same session",
        "plpython/mop_backend/predict_row.py",
        "key = (tuple(names), oids)",
        "key = ((), oids)",
        (_COLUMNS + "test_a_renamed_column_is_seen_in_the_same_session",),
    ),
    Defence(
        "a preprocessor that contradicts itself is refused",
        "madlib_mop/columns/preprocessors/preprocessor.py",
        "        check_fitted(columns)\n",
        "",
        (_COLUMNS + "test_a_preprocessor_that_somebody_changed_is_one_error",),
    ),
    Defence(
        "a preprocessor is the one that its digest names",
        "madlib_mop/driver/data/preprocessors.py",
        """if found.digest != rows[0]["digest"]:""",
        "if False:",
        (_COLUMNS + "test_a_changed_document_with_the_old_digest_is_refused",),
    ),
    Defence(
        "an enum is read without the casts of its owner",
        "madlib_mop/driver/columns/source.py",
        """if field.reader == "enum":""",
        "if False:",
        (_COLUMNS + "test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted",),
    ),
    Defence(
        "a type of another schema is not taken for PostgreSQL's of that name",
        "madlib_mop/driver/columns/source.py",
        """reader_of(base) if row["is_enum"] or (known and row["is_superusers"]) else None""",
        "reader_of(base)",
        (_COLUMNS + "test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted",),
    ),
    Defence(
        "a role's limit of temporary files holds for packing",
        "madlib_mop/driver/columns/spool.py",
        "_COPIES * self._written > self._limit_bytes",
        "False",
        (_COLUMNS + "test_a_role_s_limit_of_temporary_files_holds_whatever_its_unit",),
    ),
    Defence(
        "a column of another user's type is not copied into an output table",
        "madlib_mop/driver/data/copied.py",
        "if not (column.is_safe or column.is_enum):",
        "if False:",
        (_COLUMNS + "test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted",),
    ),
    Defence(
        "an enum that is copied is read without the casts of its owner",
        "madlib_mop/driver/data/copied.py",
        "if self.column.is_enum:  # not by a cast, which the enum's owner may have defined",
        "if False:",
        (_COLUMNS + "test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted",),
    ),
    Defence(
        "a preprocessor of another model is refused before any row is read",
        "madlib_mop/driver/inference/fits.py",
        "if outputs != targets:",
        "if False:",
        ("tests/integration/test_using_columns.py::test_a_summary_that_was_changed_is_an_error",),
    ),
    Defence(
        "a view that shows another number of rows when it is read again is one clear error",
        "madlib_mop/driver/session/relations.py",
        """        if len(rows) != 1:
            raise NotReady(""",
        """        if False:
            raise NotReady(""",
        (_UNTRUSTED + "test_a_view_that_has_other_rows_each_time_is_one_error",),
    ),
    Defence(
        "labels of two widths in the validation table of an ensemble are one clear error",
        "madlib_mop/driver/ensembles/predictions.py",
        "if rows[0].shape[1:] != rows[-1].shape[1:]:",
        "if False:",
        (_UNTRUSTED + "test_buffers_that_contradict_themselves_are_one_error",),
    ),
    Defence(
        "ids of architectures that are no integers do not reach the answer of propose_search",
        "madlib_mop/driver/networks/proposing.py",
        """if types["model_id"] not in _KEY_TYPES:""",
        "if False:",
        (_UNTRUSTED + "test_ids_of_architectures_that_are_no_numbers_are_one_error",),
    ),
)
