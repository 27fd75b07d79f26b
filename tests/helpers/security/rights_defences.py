"""The defences, in the format of ``defences.py``, of roles, rights and locks in the database."""

from tests.helpers.security.defence import Defence

_LOGIN_ROLES = "tests/security/test_login_roles.py::"
_WRITERS = "tests/security/test_writers.py::"
_USERS_RUNS = "tests/security/test_users_runs.py::"
_LOCKS = "tests/security/test_locks.py::"
_RIGHTS = "tests/security/test_rights.py::"
_NAMES = "tests/security/test_reserved_names.py::"
_OWN_RUNS = "tests/security/test_own_runs.py::"
_START_FROM = "tests/integration/test_search_start_from.py::"
_STEERING = "tests/integration/test_steering.py::test_other_roles_cannot_steer"

_SWAPPED = "tests/security/test_swapped_schemas.py::"
_PREDICTING = "tests/security/test_predicting_sessions.py::"
_PATH = "tests/security/test_hostile_path.py::"
_SEATS = "tests/unit/trainer/test_seats.py::"
_TOGETHER = "tests/unit/trainer/test_together.py::"
_FORKSERVER = "tests/unit/trainer/test_forkserver.py::"

DEFENCES_OF_RIGHTS = (
    Defence(
        "schema-of-an-input",
        "a superuser's call takes no table whose schema another role can rename",
        (_SWAPPED + "test_a_schema_that_is_renamed_while_a_superuser_packs_a_table_brings_no_code_along",),
    ),
    Defence(
        "schema-of-an-output",
        "a superuser's call makes no table in a schema that another role can rename",
        (_SWAPPED + "test_a_superusers_call_takes_no_table_that_another_role_could_swap",),
    ),
    Defence(
        "triggers-of-an-output",
        "a table to which a superuser's call adds gets no trigger meanwhile",
        (_SWAPPED + "test_a_trigger_that_a_table_gets_while_a_superuser_adds_to_it_does_not_fire",),
    ),
    Defence(
        "schema-read-ahead",
        "a superuser's predictions read no table ahead whose schema another role can rename",
        (_SWAPPED + "test_a_superusers_predictions_read_no_table_ahead_that_another_role_could_swap",),
    ),
    Defence(
        "owner-of-the-database",
        "a superuser's tracker does not trust the owner of the database",
        (_SWAPPED + "test_a_superusers_tracker_reads_no_table_that_the_owner_of_the_database_could_swap",),
    ),
    Defence(
        "key-of-a-model",
        "no view chooses the key by which a session's trainer knows a model",
        (_PREDICTING + "test_a_view_that_shows_the_version_of_another_model_gets_and_gives_no_answer_of_it",),
    ),
    Defence(
        "kept-snapshots",
        "a right that is revoked ends predictions, also in a transaction that keeps its snapshot",
        (
            "tests/integration/test_shared_trainers.py"
            "::test_a_right_that_is_revoked_ends_predictions_though_the_trainer_has_the_model",
        ),
    ),
    Defence(
        "roles-of-shared-trainers",
        "a session that predicts as another role leaves the trainer that sessions of its role share",
        (
            "tests/integration/test_shared_trainers.py"
            "::test_a_session_that_predicts_as_another_role_shares_no_trainer_any_more",
        ),
    ),
    Defence(
        "errors-of-other-sessions",
        "what a trainer that sessions share writes to its standard error is shown to none of them",
        (_SEATS + "test_a_shared_child_has_no_standard_error_that_anybody_reads",),
    ),
    Defence(
        "logins-of-shared-trainers",
        "sessions of several logins share no trainer, also after SET ROLE to one role",
        ("tests/unit/backend/test_shared_trainers.py::test_sessions_of_several_logins_share_no_trainer",),
    ),
    Defence(
        "trainers-of-others",
        "a session that has lost its connection to a shared trainer does not end the trainer of the others",
        (_SEATS + "test_the_child_of_others_is_not_killed_by_who_has_lost_a_seat",),
    ),
    Defence(
        "sessions-that-stall",
        "a session that stops in the middle of a request or an answer blocks no other one",
        (
            _SEATS + "test_who_stops_in_the_middle_of_a_request_loses_its_seat",
            _SEATS + "test_who_does_not_read_an_answer_loses_its_seat",
        ),
    ),
    Defence(
        "size-of-shared-requests",
        "a request that is too large for a shared trainer is not read",
        (_SEATS + "test_who_sends_too_much_loses_its_seat_before_it_is_read",),
    ),
    Defence(
        "size-of-shared-answers",
        "an answer that is too large for a shared trainer is an error of one session",
        (_FORKSERVER + "test_an_answer_that_is_too_large_for_a_shared_trainer_is_an_error_of_its_client_alone",),
    ),
    Defence(
        "records-predicted-together",
        "a shared trainer holds no more than one large record at once",
        ("tests/unit/trainer/test_protocol.py::test_only_small_records_are_predicted_together",),
    ),
    Defence(
        "fds-of-a-role",
        "sessions of one role leave descriptors of the fork server for other roles",
        (_SEATS + "test_the_shared_children_of_a_role_leave_descriptors_for_those_of_others",),
    ),
    Defence(
        "roles-at-a-fork-server",
        "a fork server gives no process of one role a child of another one, whatever use they name",
        (_SEATS + "test_children_of_several_roles_are_never_the_same",),
    ),
    Defence(
        "rows-of-shared-requests",
        "no session has a shared trainer predict many rows at once, while the others wait",
        (_TOGETHER + "test_a_shared_trainer_predicts_no_more_rows_at_once_than_are_read_ahead",),
    ),
    Defence(
        "descriptors-of-a-fork-server",
        "a fork server forks and shares no more processes than it has descriptors for",
        (_SEATS + "test_a_fork_server_without_descriptors_refuses_and_goes_on",),
    ),
    Defence(
        "seats-of-shared-trainers",
        "a trainer that no sessions share takes no descriptors",
        ("tests/unit/trainer/test_seccomp.py::test_sockets_are_taken_by_trainers_that_sessions_share",),
    ),
    Defence(
        "nested-prediction",
        "a prediction within a prediction is refused",
        (_PREDICTING + "test_a_view_that_a_model_is_read_through_predicts_nothing",),
    ),
    Defence(
        "names-of-sockets",
        "rows go to the sockets of our listeners only",
        ("tests/unit/backend/test_rows.py::test_rows_go_to_no_socket_of_another_kind",),
    ),
    Defence(
        "path-of-commands",
        "a command's session finds no name on the path of the database",
        (
            _PATH + "test_a_command_springs_no_trap",
            "tests/integration/test_watch.py::test_operators_of_other_roles_do_not_serve_its_queries",
        ),
    ),
    Defence(
        "path-of-the-doctor",
        "a session of the doctor finds no name on the path of the database",
        (_PATH + "test_a_command_springs_no_trap",),
    ),
    Defence(
        "revoked-functions",
        "nobody may call a function who was not granted it",
        ("tests/security/test_privileges.py::test_every_function_is_refused_to_who_was_not_granted_it",),
    ),
    Defence(
        "runs-of-own-roles",
        "a user sees the runs of his own roles only",
        (_OWN_RUNS + "test_a_user_sees_the_runs_of_roles_he_is_a_member_of",),
    ),
    Defence(
        "owner-steers",
        "only the owner of a run steers it",
        (_STEERING,),
    ),
    Defence(
        "runs-to-start-from",
        "a search starts from runs that its caller may see",
        (_START_FROM + "test_a_run_of_another_role_is_like_one_that_is_not_there",),
    ),
    Defence(
        "similar-runs",
        "similar runs are those of the caller's roles",
        (_START_FROM + "test_runs_of_other_roles_are_not_similar",),
    ),
    Defence(
        "rights-of-a-policy",
        "a policy has the rights of its run's caller",
        ("tests/security/test_policies.py::test_it_has_the_rights_of_the_caller",),
    ),
    Defence(
        "changes-of-own-runs",
        "a user sees the commands to his own runs only",
        (_OWN_RUNS + "test_a_user_sees_the_runs_of_roles_he_is_a_member_of",),
    ),
    Defence(
        "keys-of-hosts",
        "members of pg_read_all_data read no key",
        ("tests/security/test_limits.py::test_who_reads_all_data_reads_no_key",),
    ),
    Defence(
        "states-of-own-runs",
        "a user sees the states of his own runs only",
        (_OWN_RUNS + "test_a_user_sees_the_runs_of_roles_he_is_a_member_of",),
    ),
    Defence(
        "writer-of-superusers",
        "only a superuser's session is a writer",
        (_WRITERS + "test_even_who_may_execute_it_opens_no_writer_without_being_a_superuser",),
    ),
    Defence(
        "reader-as-caller",
        "a reader acts as the caller",
        (_USERS_RUNS + "test_no_trap_got_more_rights_than_the_caller_has",),
    ),
    Defence(
        "login-of-superusers",
        "a superuser's run has no role that others could join",
        (_WRITERS + "test_a_superusers_run_makes_no_role_that_another_could_join",),
    ),
    Defence(
        "settings-of-the-caller",
        "a run's role has the settings of the caller's",
        (_WRITERS + "test_settings_and_limits_of_the_caller_hold_for_a_runs_role",),
    ),
    Defence(
        "errors-of-a-drop",
        "what a user has a login role own stops nobody else's call",
        (_LOGIN_ROLES + "test_a_role_that_owns_more_than_can_be_locked_stops_nobody",),
    ),
    Defence(
        "holders-of-locks",
        "a lock that every role may take keeps nobody from his run",
        (_OWN_RUNS + "test_a_lock_that_anybody_may_take_keeps_nobody_from_his_run",),
    ),
    Defence(
        "prepared-holders",
        "a lock that a prepared transaction holds keeps nobody from his run",
        (_LOCKS + "test_a_prepared_transaction_keeps_nobody_from_his_run",),
    ),
    Defence(
        "lockers-of-a-role",
        "who locks a login role does not keep it",
        (_LOGIN_ROLES + "test_who_grants_a_login_role_something_does_not_keep_it",),
    ),
    Defence(
        "hidden-activity",
        "what a reader is told is not to be seen by other sessions of its role",
        (_USERS_RUNS + "test_no_trap_got_more_rights_than_the_caller_has",),
    ),
    Defence(
        "viewers-of-own-runs",
        "a user lets others see his own runs only",
        (_RIGHTS + "test_nobody_gives_away_what_is_anothers",),
    ),
    Defence(
        "states-for-members",
        "who may see a run has no right to its states",
        (_RIGHTS + "test_an_owner_lets_another_user_see_but_not_control_his_runs",),
    ),
    Defence(
        "settings-for-members",
        "who may see a run does not see the settings by which its owner reads",
        (_RIGHTS + "test_an_owner_lets_another_user_see_but_not_control_his_runs",),
    ),
    Defence(
        "settings-in-the-plan",
        "who may see a run does not find the settings by which its owner reads in the run's plan",
        ("tests/security/test_policy_settings.py::test_only_the_owner_reads_the_values_of_settings",),
    ),
    Defence(
        "reserved-names",
        "who may not write a table reserves no run's output by its name",
        (_NAMES + "test_who_may_make_no_table_there_reserves_no_name",),
    ),
    Defence(
        "reservations-after-a-crash",
        "a crash frees the names that its transactions had reserved",
        (_NAMES + "test_a_prepared_transaction_keeps_its_names_and_a_crash_frees_the_others",),
    ),
    Defence(
        "waiting-for-locks",
        "who waits for the lock of a run's driver does not get it next",
        (_LOCKS + "test_who_waits_for_the_lock_does_not_get_it_next",),
    ),
    Defence(
        "no-advisory-lock",
        "an advisory lock keeps nobody from adding an architecture to a table",
        (_LOCKS + "test_a_lock_by_a_tables_number_keeps_nobody_from_adding_to_it",),
    ),
    Defence(
        "locks-of-the-record",
        "no user locks a table of the record against others",
        (_LOCKS + "test_no_user_locks_a_table_of_the_record_against_others",),
    ),
    Defence(
        "summary-of-the-owner",
        "a role that may predict by one table gets none that another role has named alike",
        (_RIGHTS + "test_a_table_gives_away_none_that_another_role_has_named_alike",),
    ),
    Defence(
        "locks-of-autovacuum",
        "what autovacuum runs keeps nobody from his run",
        (_LOCKS + "test_what_autovacuum_runs_keeps_nobody_from_his_run",),
    ),
    Defence(
        "rights-of-a-left-role",
        "a login role that cannot be dropped has no rights of the caller's",
        (_LOGIN_ROLES + "test_a_role_that_owns_more_than_can_be_locked_stops_nobody",),
    ),
    Defence(
        "names-of-login-roles",
        "a role that looks like a login role stops no sweep",
        (_LOGIN_ROLES + "test_a_role_that_looks_like_a_login_role_stops_no_sweep",),
    ),
    Defence(
        "roles-by-settings",
        "no setting of a user's chooses the role of the session that makes login roles",
        (_LOGIN_ROLES + "test_no_setting_of_the_callers_reaches_the_session_that_makes_the_role",),
    ),
    Defence(
        "sessions-of-a-reader",
        "a reader whose code takes no cancel, and has another name, ends with the run",
        ("tests/security/test_stuck_readers.py::test_a_reader_that_takes_no_cancel_ends_with_the_run",),
    ),
    Defence(
        "protected-password",
        "the password of a login role is never sent as it is",
        ("tests/security/test_impostor.py::test_an_impostor_at_the_servers_port_gets_no_password",),
    ),
    Defence(
        "no-md5",
        "a login sends no hash of a password by MD5",
        ("tests/security/test_impostor.py::test_an_impostor_at_the_servers_port_gets_no_password",),
    ),
    Defence(
        "password-of-a-host",
        "the password of a host goes to no server that asks for it in plain text",
        ("tests/security/test_impostor.py::test_an_impostor_in_the_place_of_a_host_gets_no_password",),
    ),
    Defence(
        "scram-of-a-host",
        "a host proves by SCRAM that it knows the password",
        ("tests/security/test_impostor.py::"
         "test_a_host_that_lets_everybody_in_is_not_taken_for_the_one_that_knows_the_password",),
    ),
    Defence(
        "used-password",
        "a run logs in at a host with its owner's password, or not at all",
        ("tests/security/test_impostor.py::"
         "test_a_host_that_asks_for_no_password_is_refused_to_a_role_that_is_no_superuser",),
    ),
    Defence(
        "text-of-a-policy",
        "roles that may see a run do not see the text of its policy",
        ("tests/integration/test_policies.py::test_only_the_owner_of_a_run_sees_the_text_of_its_policy",),
    ),
    Defence(
        "no-proof-by-socket",
        "a Unix socket counts as no proof of the server",
        ("tests/unit/catalog/test_passwords.py::test_a_socket_is_no_proof",),
    ),
    Defence(
        "time-to-drop-a-role",
        "grants to a login role do not keep the driver busy that drops it",
        ("tests/security/test_login_roles.py::test_grants_to_a_login_role_do_not_keep_its_driver_busy",),
    ),
    Defence(
        "snapshots-of-others",
        "snapshots of roles that cannot see a run's states do not keep its replaced states on disk",
        ("tests/integration/test_copies.py::test_sessions_that_cannot_see_the_states_keep_none",),
    ),
    Defence(
        "roles-that-are-left",
        "login roles that cannot be dropped do not slow down other calls",
        ("tests/security/test_login_roles.py::test_roles_that_users_keep_from_being_dropped_slow_no_sweep",),
    ),
    Defence(
        "text-of-a-planned-model",
        "the text that stands for a role's model in a plan cannot be guessed by another role in the session",
        ("tests/unit/backend/test_planned_models.py::test_each_plan_has_a_text_of_its_own_and_the_name_of_the_query",),
    ),
    Defence(
        "path-of-the-client",
        "operators of other roles do not serve the statements of the Python client",
        ("tests/security/test_hostile_path.py::test_the_python_client_springs_no_trap",),
    ),
    Defence(
        "path-of-a-client-login",
        "operators of other roles do not serve the statements of SQLAlchemy at a login of the client",
        ("tests/security/test_hostile_path.py::test_the_python_client_springs_no_trap",),
    ),
)
