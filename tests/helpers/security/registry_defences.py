"""The defences, in the format of ``defences.py``, of the registry of models."""

from tests.helpers.security.defence import Defence

_RIGHTS = "tests/security/test_registry.py::"
_REGISTRY = "tests/integration/test_registry.py::"
_CHALLENGER = "tests/integration/test_challenger.py::"
_CHALLENGERS = "tests/security/test_challengers.py::"
_EXPORTS = "tests/security/test_exports.py::"
_LOADING = "tests/unit/client/test_exported.py::"
_DRIFT = "tests/security/test_drift.py::"
_EXPLAINING = "tests/security/test_explaining.py::"

_REGISTERED = "tests/unit/driver/test_registered.py::"
_SIGNATURES = "tests/unit/certainty/test_records.py::"

_HELD_OUT = "tests/integration/test_held_out.py::"
_FINDINGS = "tests/unit/driver/test_findings.py::"

DEFENCES_OF_REGISTRY = (
    Defence(
        "own-findings",
        "a report shows no findings of a version that a role registered by hand as one of another role's run",
        (_HELD_OUT + "test_a_version_of_another_role_is_not_shown_as_a_model_of_the_run",),
    ),
    Defence(
        "findings-by-hand",
        "findings that the owner of a version wrote by hand break no page that others open",
        (_FINDINGS + "test_findings_by_hand_that_no_figure_can_show_are_not_read",),
    ),
    Defence(
        "held-out-by-hand",
        "scores of held-out rows that the owner of a version wrote by hand are an error before any prediction",
        (_REGISTERED + "test_a_record_of_held_out_rows_by_hand_is_one_clear_error",),
    ),
    Defence(
        "held-out-of-a-signature",
        "nor are those of a model's file used, which anybody can have written",
        (_SIGNATURES + "test_a_signature_with_a_damaged_record_is_refused",),
    ),
    Defence(
        "right-to-change",
        "only a role with the right changes a registered model",
        (_RIGHTS + "test_a_stranger_sees_nothing_and_takes_no_name",),
    ),
    Defence(
        "right-to-deploy",
        "a right to predict or to see is no right to deploy",
        (_RIGHTS + "test_a_role_that_may_deploy_moves_aliases_and_reads_no_weights",),
    ),
    Defence(
        "changes-by-role",
        "a change is made for the role that inserted it",
        (_RIGHTS + "test_no_statement_reaches_the_tables_around_the_functions",),
    ),
    Defence(
        "weights-of-owners",
        "the weights are the owner's only",
        (_RIGHTS + "test_a_role_that_may_deploy_moves_aliases_and_reads_no_weights",),
    ),
    Defence(
        "parts-of-owners",
        "parts of weights are the owner's only",
        (_RIGHTS + "test_a_role_that_may_deploy_moves_aliases_and_reads_no_weights",),
    ),
    Defence(
        "owner-of-parts",
        "parts of weights in a table of another role are neither read nor written",
        (
            "tests/security/test_weights_in_parts.py::test_parts_of_another_role_are_not_read",
            "tests/security/test_weights_in_parts.py::test_weights_are_not_written_into_a_table_of_another_role",
        ),
    ),
    Defence(
        "names-of-models",
        "a role without rights sees no name",
        (_RIGHTS + "test_a_stranger_sees_nothing_and_takes_no_name",),
    ),
    Defence(
        "history-of-aliases",
        "a role that may only predict sees no history",
        (_RIGHTS + "test_a_role_with_another_right_sees_no_history",),
    ),
    Defence(
        "right-to-predict",
        "a role that may only see does not predict",
        (_RIGHTS + "test_a_role_that_may_see_sees_and_does_not_predict",),
    ),
    Defence(
        "no-sql-for-internals",
        "what the driver tells a prediction about its model is told to no SQL",
        (_RIGHTS + "test_a_role_that_may_predict_gets_the_model_from_no_command_of_the_driver",),
    ),
    Defence(
        "privileges-to-export",
        "a right to predict or to deploy is no right to export",
        (_EXPORTS + "test_rights_to_predict_to_see_and_to_deploy_are_no_right_to_export",),
    ),
    Defence(
        "right-to-export",
        "an export asks for the right to export",
        (_EXPORTS + "test_rights_to_predict_to_see_and_to_deploy_are_no_right_to_export",),
    ),
    Defence(
        "right-to-export-parts",
        "an export in parts asks for the right to export",
        (_EXPORTS + "test_rights_to_predict_to_see_and_to_deploy_are_no_right_to_export",),
    ),
    Defence(
        "size-before-export",
        "a model that is too large for a value is not converted",
        ("tests/unit/driver/test_exporting.py::test_a_model_that_is_too_large_is_refused_before_any_work",),
    ),
    Defence(
        "size-of-an-export",
        "a file that is too large for a value is not sent to the backend",
        ("tests/unit/driver/test_exporting.py::test_a_file_that_became_too_large_is_refused_before_it_is_copied",),
    ),
    Defence(
        "details-of-an-ensemble",
        "an ensemble that somebody wrote into the details of a version by hand is checked",
        ("tests/unit/driver/test_members.py::test_details_that_are_no_ensemble_are_none",),
    ),
    Defence(
        "details-of-a-run",
        "the run that somebody wrote into the details of a version by hand is checked",
        ("tests/unit/driver/test_members.py::test_details_without_a_readable_run_have_no_origin",),
    ),
    Defence(
        "details-of-a-version",
        "a version that no view could show is not added",
        (_RIGHTS + "test_details_that_a_view_could_not_show_are_refused",),
    ),
    Defence(
        "privileges-to-see",
        "a card asks for the right to see",
        (_EXPORTS + "test_a_card_needs_the_right_to_see",),
    ),
    Defence(
        "no-values-on-cards",
        "a card names no values of rows",
        ("tests/integration/test_exports.py::test_registered_models_and_their_cards",),
    ),
    Defence(
        "architecture-of-an-export",
        "the architecture of an exported file is checked before Keras loads it",
        (_LOADING + "test_a_file_with_code_is_refused_before_keras_sees_it",),
    ),
    Defence(
        "copy-of-an-export",
        "Keras gets the checked copy of an exported file's architecture, not the file",
        (_LOADING + "test_what_the_check_leaves_out_of_a_file_never_reaches_keras",),
    ),
    Defence(
        "text-of-a-card",
        "a card has no control characters",
        ("tests/unit/reports/test_card.py::test_names_do_not_become_markup_or_commands_of_a_terminal",),
    ),
    Defence(
        "report-of-a-model",
        "the report of a registered model needs the right to see it",
        (_EXPORTS + "test_a_report_by_name_needs_the_right_to_see",),
    ),
    Defence(
        "content-of-owners",
        "only the role that owns a version adds its content",
        (_RIGHTS + "test_no_statement_reaches_the_tables_around_the_functions",),
    ),
    Defence(
        "parts-by-owners",
        "only the role that owns a version adds parts of its weights",
        (_RIGHTS + "test_no_statement_reaches_the_tables_around_the_functions",),
    ),
    Defence(
        "documents-by-hand",
        "a document that its owner wrote by hand is checked",
        ("tests/unit/driver/test_registered.py::test_a_document_that_is_none_is_one_clear_error",),
    ),
    Defence(
        "aliased-versions",
        "a version with an alias stays",
        (_REGISTRY + "test_what_is_aliased_cannot_be_dropped_and_numbers_are_not_used_again",),
    ),
    Defence(
        "consent-to-challengers",
        "a challenger predicts only for roles that have agreed, because a network can return its inputs",
        (_CHALLENGERS + "test_the_owner_of_a_model_sees_no_inputs_of_a_role_that_has_not_agreed",),
    ),
    Defence(
        "consent-of-one-role",
        "a role agrees to be recorded for itself alone, not for those who call its functions or are its members",
        (_CHALLENGERS + "test_another_role_agrees_for_nobody_else",),
    ),
    Defence(
        "consent-by-role",
        "an agreement to be recorded is that of the role that inserts it",
        (_CHALLENGERS + "test_another_role_agrees_for_nobody_else",),
    ),
    Defence(
        "challengers-that-write",
        "a challenger writes nothing where that could make the caller's transaction fail",
        (_CHALLENGER + "test_where_a_write_could_harm_nothing_is_recorded",),
    ),
    Defence(
        "own-background",
        "an explanation reads no table of another role that the caller has not named: no code of its owner runs",
        (
            _EXPLAINING + "test_a_registered_model_runs_no_code_of_its_owner",
            _EXPLAINING + "test_a_training_table_of_another_role_is_not_read_unless_it_is_named",
        ),
    ),
    Defence(
        "schema-of-a-background",
        "nor a table that the owner of its schema could replace by a view",
        (
            _EXPLAINING
            + "test_a_training_table_in_the_schema_of_another_role_is_not_read_unless_it_is_named",
        ),
    ),
    Defence(
        "background-of-a-statement",
        "the background that was read for one role is not used for another one",
        (_EXPLAINING + "test_a_background_that_one_role_has_read_is_not_shown_to_another",),
    ),
    Defence(
        "background-of-a-setting",
        "the background of a policy or view that depends on a setting is not used after the setting has changed",
        (_EXPLAINING + "test_rows_that_depend_on_a_setting_are_read_anew_when_it_changes",),
    ),
    Defence(
        "drift-of-rows",
        "a role that may predict, but not see a model, learns nothing of its training rows",
        (_DRIFT + "test_a_role_that_may_only_predict_learns_nothing_of_the_training_rows",),
    ),
    Defence(
        "drift-for-trainers",
        "only functions for training roles read tables for drift",
        (_DRIFT + "test_a_role_that_may_predict_and_see_may_ask",),
    ),
    Defence(
        "profile-of-a-column",
        "a distribution that somebody wrote into a preprocessor is checked",
        ("tests/unit/columns/test_drift.py::test_a_profile_that_somebody_wrote_is_checked",),
    ),
    Defence(
        "recorded-predictions",
        "predictions that somebody wrote into a document are checked",
        ("tests/unit/driver/test_drift_command.py::test_recorded_predictions_that_do_not_fit_are_one_clear_error",),
    ),
    Defence(
        "new-levels",
        "any number of new levels takes bounded memory",
        ("tests/unit/columns/test_drift.py::test_a_hundred_thousand_new_levels_take_little",),
    ),
)
