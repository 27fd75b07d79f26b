"""The defences, in the format of ``defences.py``, of the registry of models."""

from tests.helpers.security.defence import Defence

_RIGHTS = "tests/security/test_registry.py::"
_REGISTRY = "tests/integration/test_registry.py::"
_CHALLENGER = "tests/integration/test_challenger.py::"
_EXPORTS = "tests/security/test_exports.py::"
_LOADING = "tests/unit/client/test_exported.py::"
_DRIFT = "tests/security/test_drift.py::"

DEFENCES_OF_REGISTRY = (
    Defence(
        "only a role with the right changes a registered model",
        "sql/29-registry-changes.sql",
        "    IF owner IS NOT NULL AND madlib_mop_calls._acts_for(who, owner) OR held && wanted THEN\n",
        "    IF owner IS NOT NULL THEN\n",
        (_RIGHTS + "test_a_stranger_sees_nothing_and_takes_no_name",),
    ),
    Defence(
        "a right to predict or to see is no right to deploy",
        "sql/29-registry-changes.sql",
        "madlib_mop_calls._acts_for(who, owner) OR held && wanted THEN",
        "madlib_mop_calls._acts_for(who, owner) OR held <> '{}' THEN",
        (_RIGHTS + "test_a_role_that_may_deploy_moves_aliases_and_reads_no_weights",),
    ),
    Defence(
        "a change is made for the role that inserted it",
        "sql/90-grants.sql",
        "GRANT INSERT (change, name, alias, version, steps, reason, details) ON madlib_mop.registry_change",
        "GRANT INSERT (change, name, alias, version, steps, reason, details, changed_by) ON madlib_mop.registry_change",
        (_RIGHTS + "test_no_statement_reaches_the_tables_around_the_functions",),
    ),
    Defence(
        "the weights are the owner's only",
        "sql/28-registry.sql",
        "ALTER TABLE madlib_mop.version_content ENABLE ROW LEVEL SECURITY;\n",
        "",
        (_RIGHTS + "test_a_role_that_may_deploy_moves_aliases_and_reads_no_weights",),
    ),
    Defence(
        "a role without rights sees no name",
        "sql/28-registry.sql",
        "ALTER TABLE madlib_mop.registered_model ENABLE ROW LEVEL SECURITY;\n",
        "",
        (_RIGHTS + "test_a_stranger_sees_nothing_and_takes_no_name",),
    ),
    Defence(
        "a role that may only predict sees no history",
        "sql/28-registry.sql",
        "r.name = alias_change.name\n                   AND madlib_mop_calls._model_right(r.owner, r.name,"
        " '{see, deploy}')));",
        "r.name = alias_change.name));",
        (_RIGHTS + "test_a_role_with_another_right_sees_no_history",),
    ),
    Defence(
        "a role that may only see does not predict",
        "plpython/mop_backend/registered.py",
        '    if not row["may_use"]:\n',
        "    if False:\n",
        (_RIGHTS + "test_a_role_that_may_see_sees_and_does_not_predict",),
    ),
    Defence(
        "what the driver tells a prediction about its model is told to no SQL",
        "plpython/mop_backend/call.py",
        "        if function in _INTERNAL:\n",
        "        if False:\n",
        (_RIGHTS + "test_a_role_that_may_predict_gets_the_model_from_no_command_of_the_driver",),
    ),
    Defence(
        "a right to predict or to deploy is no right to export",
        "plpython/mop_backend/registered.py",
        'Right.EXPORT: ("export",),',
        'Right.EXPORT: ("export", "predict", "deploy"),',
        (_EXPORTS + "test_rights_to_predict_to_see_and_to_deploy_are_no_right_to_export",),
    ),
    Defence(
        "an export asks for the right to export",
        "madlib_mop/driver/exports/exporting.py",
        '_find(call, "EXPORT")',
        '_find(call, "PREDICT")',
        (_EXPORTS + "test_rights_to_predict_to_see_and_to_deploy_are_no_right_to_export",),
    ),
    Defence(
        "a model that is too large for a value is not converted",
        "madlib_mop/driver/exports/exporting.py",
        '    _check_size(call, form, source.n_bytes + _LEAST_MORE_BYTES, "at least ")\n',
        "",
        ("tests/unit/driver/test_exporting.py::test_a_model_that_is_too_large_is_refused_before_any_work",),
    ),
    Defence(
        "a file that is too large for a value is not sent to the backend",
        "madlib_mop/driver/exports/exporting.py",
        "    _check_size(call, form, len(file))\n",
        "",
        ("tests/unit/driver/test_exporting.py::test_a_file_that_became_too_large_is_refused_before_it_is_copied",),
    ),
    Defence(
        "an ensemble that somebody wrote into the details of a version by hand is checked",
        "madlib_mop/driver/registry/members.py",
        "    except UNREADABLE:\n        return None\n",
        "    finally:\n        pass\n",
        ("tests/unit/driver/test_members.py::test_details_that_are_no_ensemble_are_none",),
    ),
    Defence(
        "the run that somebody wrote into the details of a version by hand is checked",
        "madlib_mop/driver/exports/origin.py",
        "    except UNREADABLE:\n        return None\n",
        "    finally:\n        pass\n",
        ("tests/unit/driver/test_members.py::test_details_without_a_readable_run_have_no_origin",),
    ),
    Defence(
        "a version that no view could show is not added",
        "sql/29-registry-changes.sql",
        "    ELSIF origin ? 'visits' THEN\n",
        "    ELSIF false THEN\n",
        (_RIGHTS + "test_details_that_a_view_could_not_show_are_refused",),
    ),
    Defence(
        "a card asks for the right to see",
        "plpython/mop_backend/registered.py",
        'Right.SEE: ("see", "deploy", "export"),',
        'Right.SEE: ("see", "deploy", "export", "predict"),',
        (_EXPORTS + "test_a_card_needs_the_right_to_see",),
    ),
    Defence(
        "a card names no values of rows",
        "madlib_mop/driver/exports/exporting.py",
        "InputColumn(column.name, column.spec.sql_type, column.spec.kind)",
        "InputColumn(column.name, column.spec.sql_type, str(column.fit))",
        ("tests/integration/test_exports.py::test_registered_models_and_their_cards",),
    ),
    Defence(
        "the architecture of an exported file is checked before Keras loads it",
        "madlib_mop/imports/keras_files.py",
        "        return check_architecture(config)\n",
        "        return json.loads(config)\n",
        (_LOADING + "test_a_file_with_code_is_refused_before_keras_sees_it",),
    ),
    Defence(
        "Keras gets the checked copy of an exported file's architecture, not the file",
        "madlib_mop/client/exported/runners.py",
        "    model = model_of(file)\n",
        "    import io, keras; model = keras.saving.load_model(io.BytesIO(data), compile=False, safe_mode=True)\n",
        (_LOADING + "test_what_the_check_leaves_out_of_a_file_never_reaches_keras",),
    ),
    Defence(
        "a card has no control characters",
        "madlib_mop/exports/card.py",
        'c if c.isprintable() else c.encode("unicode_escape").decode() for c in words',
        "words",
        ("tests/unit/exports/test_card.py::test_names_do_not_become_markup_or_commands_of_a_terminal",),
    ),
    Defence(
        "the report of a registered model needs the right to see it",
        "madlib_mop/reports/reading/registered.py",
        '    if not row["may_see"]:\n',
        "    if False:\n",
        (_EXPORTS + "test_a_report_by_name_needs_the_right_to_see",),
    ),
    Defence(
        "only the role that owns a version adds its content",
        "sql/28-registry.sql",
        "CREATE POLICY add ON madlib_mop.version_content FOR INSERT\n    WITH CHECK (EXISTS (",
        "CREATE POLICY add ON madlib_mop.version_content FOR INSERT\n    WITH CHECK (true OR EXISTS (",
        (_RIGHTS + "test_no_statement_reaches_the_tables_around_the_functions",),
    ),
    Defence(
        "a document that its owner wrote by hand is checked",
        "madlib_mop/driver/inference/registered.py",
        'check_architecture(json.dumps(document["arch"])),',
        'document["arch"],',
        ("tests/unit/driver/test_registered.py::test_a_document_that_is_none_is_one_clear_error",),
    ),
    Defence(
        "a version with an alias stays",
        "sql/28-registry.sql",
        "    version_id  uuid NOT NULL REFERENCES madlib_mop.model_version,\n    version     integer NOT NULL,",
        "    version_id  uuid NOT NULL,\n    version     integer NOT NULL,",
        (_REGISTRY + "test_what_is_aliased_cannot_be_dropped_and_numbers_are_not_used_again",),
    ),
    Defence(
        "a challenger writes nothing where that could make the caller's transaction fail",
        "plpython/mop_backend/challenger.py",
        "            self._may_write = plpy.execute(_plan(_MAY_WRITE))[0][\"yes\"]\n",
        "            self._may_write = True\n",
        (_CHALLENGER + "test_where_a_write_could_harm_nothing_is_recorded",),
    ),
    Defence(
        "a role that may predict, but not see a model, learns nothing of its training rows",
        "madlib_mop/driver/drift/command.py",
        '        _check_right(session, a["model_table"])\n',
        "        pass\n",
        (_DRIFT + "test_a_role_that_may_only_predict_learns_nothing_of_the_training_rows",),
    ),
    Defence(
        "only functions for training roles read tables for drift",
        "sql/90-grants.sql",
        "drift, drop_alias, drop_challenger",
        "drop_alias, drop_challenger",
        (_DRIFT + "test_a_role_that_may_predict_and_see_may_ask",),
    ),
    Defence(
        "a distribution that somebody wrote into a preprocessor is checked",
        "madlib_mop/columns/preprocessors/checks.py",
        "return _CHECKS[expected](column, fit) or _profile(column)",
        "return _CHECKS[expected](column, fit)",
        ("tests/unit/columns/test_drift.py::test_a_profile_that_somebody_wrote_is_checked",),
    ),
    Defence(
        "predictions that somebody wrote into a document are checked",
        "madlib_mop/driver/drift/command.py",
        "        if problem is not None:\n",
        "        if False:\n",
        ("tests/unit/driver/test_drift_command.py::test_recorded_predictions_that_do_not_fit_are_one_clear_error",),
    ),
    Defence(
        "any number of new levels takes bounded memory",
        "madlib_mop/columns/drift/observed.py",
        "if text in self._new or len(self._new) < _MOST_NEW:",
        "if True:",
        ("tests/unit/columns/test_drift.py::test_a_hundred_thousand_new_levels_take_little",),
    ),
)
