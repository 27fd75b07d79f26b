"""The defences, in the format of ``defences.py``, of roles, rights and locks in the database."""

from tests.helpers.security.defence import Defence

_LOGIN_ROLES = "tests/security/test_login_roles.py::"
_WRITERS = "tests/security/test_writers.py::"
_USERS_RUNS = "tests/security/test_users_runs.py::"
_LOCKS = "tests/security/test_locks.py::"
_RIGHTS = "tests/security/test_rights.py::"
_NAMES = "tests/security/test_reserved_names.py::"
_OWN_RUNS = "tests/security/test_own_runs.py::"
_START_FROM = "tests/integration/test_start_from.py::"
_STEERING = "tests/integration/test_steering.py::test_other_roles_cannot_steer"

_SWAPPED = "tests/security/test_swapped_schemas.py::"
_PREDICTING = "tests/security/test_predicting_sessions.py::"
_PATH = "tests/security/test_hostile_path.py::"

DEFENCES_OF_RIGHTS = (
    Defence(
        "a superuser's call takes no table whose schema another role can rename",
        "madlib_mop/driver/session/rights.py",
        "pg_catalog.quote_ident(n.nspname), {owner} FROM pg_catalog.pg_namespace n WHERE n.oid = (",
        "pg_catalog.quote_ident(n.nspname), {owner} FROM pg_catalog.pg_namespace n WHERE 0 = (",
        (_SWAPPED + "test_a_schema_that_is_renamed_while_a_superuser_packs_a_table_brings_no_code_along",),
    ),
    Defence(
        "a superuser's call makes no table in a schema that another role can rename",
        "madlib_mop/driver/session/relations.py",
        "        check_schema(self, target.schema, str(target), what)\n",
        "",
        (_SWAPPED + "test_a_superusers_call_takes_no_table_that_another_role_could_swap",),
    ),
    Defence(
        "a table to which a superuser's call adds gets no trigger meanwhile",
        "madlib_mop/driver/session/relations.py",
        """        self.existing(table.sql, what)

    def output(""",
        """
    def output(""",
        (_SWAPPED + "test_a_trigger_that_a_table_gets_while_a_superuser_adds_to_it_does_not_fire",),
    ),
    Defence(
        "a superuser's predictions read no table ahead whose schema another role can rename",
        "plpython/mop_backend/read_ahead.py",
        "o.oid = {owner_of_schema} and o.rolsuper) or not exists (",
        "o.oid = {owner_of_schema}) or not exists (",
        (_SWAPPED + "test_a_superusers_predictions_read_no_table_ahead_that_another_role_could_swap",),
    ),
    Defence(
        "a superuser's tracker does not trust the owner of the database",
        "madlib_mop/trackers/exported.py",
        "AND (u.rolsuper OR NOT pg_catalog.pg_has_role(o.oid, d.datdba, 'MEMBER'))",
        "AND NOT pg_catalog.pg_has_role(o.oid, d.datdba, 'MEMBER')",
        (_SWAPPED + "test_a_superusers_tracker_reads_no_table_that_the_owner_of_the_database_could_swap",),
    ),
    Defence(
        "no view chooses the key by which a session's trainer knows a model",
        "plpython/mop_backend/predict.py",
        'model.key = f"{model.origin} {digest}"',
        "model.key = model.version",
        (_PREDICTING + "test_a_view_that_shows_the_version_of_another_model_gets_and_gives_no_answer_of_it",),
    ),
    Defence(
        "a prediction within a prediction is refused",
        "plpython/mop_backend/predict.py",
        "        if self._busy:\n",
        "        if False:\n",
        (_PREDICTING + "test_a_view_that_a_model_is_read_through_predicts_nothing",),
    ),
    Defence(
        "rows go to the sockets of our listeners only",
        "plpython/mop_backend/rows.py",
        "        if not address.startswith(_PREFIX):\n",
        "        if False:\n",
        ("tests/unit/backend/test_rows.py::test_rows_go_to_no_socket_of_another_kind",),
    ),
    Defence(
        "a command's session finds no name on the path of the database",
        "madlib_mop/cli/sessions.py",
        "    search_path, _ = _row(connection, PIN_SEARCH_PATH)\n",
        "    search_path, _ = _row(connection, \"SELECT 'public', ''\")\n",
        (_PATH + "test_a_command_springs_no_trap",),
    ),
    Defence(
        "nor does the doctor's",
        "madlib_mop/cli/doctor/__init__.py",
        "        context.row(PIN_SEARCH_PATH)\n",
        "",
        (_PATH + "test_a_command_springs_no_trap",),
    ),
    Defence(
        "nobody may call a function who was not granted it",
        "sql/90-grants.sql",
        "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA madlib, madlib_mop, madlib_mop_calls, madlib_mop_internal FROM PUBLIC;",
        "",
        ("tests/security/test_privileges.py::test_every_function_is_refused_to_who_was_not_granted_it",),
    ),
    Defence(
        "a user sees the runs of his own roles only",
        "sql/22-visibility.sql",
        "CREATE POLICY own_runs ON madlib_mop.run FOR SELECT USING (madlib_mop_calls.may_see(owner));",
        "CREATE POLICY own_runs ON madlib_mop.run FOR SELECT USING (true);",
        (_OWN_RUNS + "test_a_user_sees_the_runs_of_roles_he_is_a_member_of",),
    ),
    Defence(
        "only the owner of a run steers it",
        "madlib_mop/driver/changes/people.py",
        "    run = find_run(record, call)\n",
        "    run = record.known_run(call.arguments['run_id'])\n",
        (_STEERING,),
    ),
    Defence(
        "a search starts from runs that its caller may see",
        "madlib_mop/driver/experience/runs.py",
        "    runs = [visible_run(record, session.info, run_id, _WHAT) for run_id in run_ids]\n",
        "    runs = [record.known_run(run_id) for run_id in run_ids]\n",
        (_START_FROM + "test_a_run_of_another_role_is_like_one_that_is_not_there",),
    ),
    Defence(
        "similar runs are those of the caller's roles",
        "madlib_mop/driver/experience/runs.py",
        "may_use[owner] = record.may_see(session.info.role_oid, owner)",
        "may_use[owner] = True",
        (_START_FROM + "test_runs_of_other_roles_are_not_similar",),
    ),
    Defence(
        "a policy has the rights of its run's caller",
        "madlib_mop/engines/sessions/access.py",
        "reader = self.reader()",
        "reader = self.writer(0)",
        ("tests/security/test_policies.py::test_it_has_the_rights_of_the_caller",),
    ),
    Defence(
        "a user sees the commands to his own runs only",
        "sql/22-visibility.sql",
        "ALTER TABLE madlib_mop.change ENABLE ROW LEVEL SECURITY;\n",
        "",
        (_OWN_RUNS + "test_a_user_sees_the_runs_of_roles_he_is_a_member_of",),
    ),
    Defence(
        "members of pg_read_all_data read no key",
        "sql/21-hosts.sql",
        "ALTER TABLE madlib_mop.host ENABLE ROW LEVEL SECURITY;\n",
        "",
        ("tests/security/test_limits.py::test_who_reads_all_data_reads_no_key",),
    ),
    Defence(
        "a user sees the states of his own runs only",
        "sql/22-visibility.sql",
        "ALTER TABLE madlib_mop.model_state ENABLE ROW LEVEL SECURITY;\n",
        "",
        (_OWN_RUNS + "test_a_user_sees_the_runs_of_roles_he_is_a_member_of",),
    ),
    Defence(
        "only a superuser's session is a writer",
        "plpython/mop_backend/writer.py",
        """if not plpy.execute(_IS_SUPERUSER)[0]["rolsuper"]:""",
        "if False:",
        (_WRITERS + "test_even_who_may_execute_it_opens_no_writer_without_being_a_superuser",),
    ),
    Defence(
        "a reader acts as the caller",
        "madlib_mop/engines/sessions/access.py",
        """, (BECOME, [self.caller])]""",
        "]",
        (_USERS_RUNS + "test_no_trap_got_more_rights_than_the_caller_has",),
    ),
    Defence(
        "a superuser's run has no role that others could join",
        "madlib_mop/engines/sessions/login.py",
        "if is_superuser(catalog, caller):",
        "if False:",
        (_WRITERS + "test_a_superusers_run_makes_no_role_that_another_could_join",),
    ),
    Defence(
        "a run's role has the settings of the caller's",
        "madlib_mop/engines/sessions/login.py",
        "_copy_settings(cursor, caller, role)\n",
        "pass\n",
        (_WRITERS + "test_settings_and_limits_of_the_caller_hold_for_a_runs_role",),
    ),
    Defence(
        "what a user has a login role own stops nobody else's call",
        "madlib_mop/engines/sessions/login.py",
        "except psycopg2.DatabaseError as error:",
        "except errors.UndefinedObject as error:",
        (_LOGIN_ROLES + "test_a_role_that_owns_more_than_can_be_locked_stops_nobody",),
    ),
    Defence(
        "a lock that every role may take keeps nobody from his run",
        "madlib_mop/catalog/sessions/lock_holders.py",
        "cursor.execute(_SESSIONS.format(lock=lock), params)",
        "pass",
        (_OWN_RUNS + "test_a_lock_that_anybody_may_take_keeps_nobody_from_his_run",),
    ),
    Defence(
        "nor does one that a prepared transaction holds",
        "madlib_mop/catalog/sessions/lock_holders.py",
        "for (gid,) in cursor.fetchall():",
        "for (gid,) in ():",
        (_LOCKS + "test_a_prepared_transaction_keeps_nobody_from_his_run",),
    ),
    Defence(
        "who locks a login role does not keep it",
        "madlib_mop/engines/sessions/login.py",
        "end_holders(catalog, _LOCK_OF_ROLE, [role])",
        "pass",
        (_LOGIN_ROLES + "test_who_grants_a_login_role_something_does_not_keep_it",),
    ),
    Defence(
        "what a reader is told is not to be seen by other sessions of its role",
        "madlib_mop/engines/sessions/login.py",
        "SET track_activities = off",
        "SET track_activities = on",
        (_USERS_RUNS + "test_no_trap_got_more_rights_than_the_caller_has",),
    ),
    Defence(
        "a user lets others see his own runs only",
        "sql/21-viewers.sql",
        "CREATE POLICY give ON madlib_mop.viewer_change FOR INSERT WITH CHECK (madlib_mop_calls.acts_as(owner));",
        "CREATE POLICY give ON madlib_mop.viewer_change FOR INSERT WITH CHECK (true);",
        (_RIGHTS + "test_nobody_gives_away_what_is_anothers",),
    ),
    Defence(
        "who may see a run has no right to its states",
        "sql/22-visibility.sql",
        """CREATE POLICY own_runs ON madlib_mop.model_state FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r WHERE madlib_mop_calls.may_own(r.owner)));""",
        """CREATE POLICY own_runs ON madlib_mop.model_state FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));""",
        (_RIGHTS + "test_an_owner_lets_another_user_see_but_not_control_his_runs",),
    ),
    Defence(
        "who may see a run does not see the settings by which its owner reads",
        "sql/22-visibility.sql",
        """CREATE POLICY own_runs ON madlib_mop.caller_setting FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r WHERE madlib_mop_calls.may_own(r.owner)));""",
        """CREATE POLICY own_runs ON madlib_mop.caller_setting FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));""",
        (_RIGHTS + "test_an_owner_lets_another_user_see_but_not_control_his_runs",),
    ),
    Defence(
        "nor does he find them in the run's plan",
        "madlib_mop/driver/planning/run_data.py",
        "shares={server: settings.share_at_host(n) for server, n in self.source.n_at_hosts.items()},",
        "shares=self.settings,",
        ("tests/security/test_policy_settings.py::test_only_the_owner_reads_the_values_of_settings",),
    ),
    Defence(
        "who may not write a table reserves no run's output by its name",
        "madlib_mop/driver/outputs/reserved_names.py",
        "if not record.may_write(session.info.role_oid, table):",
        "if False:",
        (_NAMES + "test_who_may_make_no_table_there_reserves_no_name",),
    ),
    Defence(
        "a crash frees the names that its transactions had reserved",
        "madlib_mop/catalog/reservations.py",
        "is_active[holder] = holder == self.holder(holder.pid)",
        "is_active[holder] = True",
        (_NAMES + "test_a_prepared_transaction_keeps_its_names_and_a_crash_frees_the_others",),
    ),
    Defence(
        "who waits for the lock of a run's driver does not get it next",
        "madlib_mop/catalog/sessions/lock_holders.py",
        "WHERE l.pid <> pg_catalog.pg_backend_pid()",
        "WHERE l.granted AND l.pid <> pg_catalog.pg_backend_pid()",
        (_LOCKS + "test_who_waits_for_the_lock_does_not_get_it_next",),
    ),
    Defence(
        "an advisory lock keeps nobody from adding an architecture to a table",
        "madlib_mop/driver/commands/architectures.py",
        'session.execute(statement(f"LOCK TABLE {{table}} IN {mode} MODE", table=table))',
        'session.execute("SELECT pg_catalog.pg_advisory_xact_lock($1)", [0x6D6F70 << 32 | table.oid], ["bigint"])',
        (_LOCKS + "test_a_lock_by_a_tables_number_keeps_nobody_from_adding_to_it",),
    ),
    Defence(
        "no user locks a table of the record against others",
        "sql/90-grants.sql",
        "GRANT INSERT ON madlib_mop.viewer_change TO %I",
        "GRANT INSERT ON madlib_mop.viewer_change TO %1$I; GRANT DELETE ON madlib_mop.viewer TO %1$I",
        (_LOCKS + "test_no_user_locks_a_table_of_the_record_against_others",),
    ),
    Defence(
        "a role that may predict by one table gets none that another role has named alike",
        "sql/90-grants.sql",
        "WHERE c.oid = model_table AND beside.relname = c.relname || '_summary' AND beside.relowner = c.relowner;",
        "WHERE c.oid = model_table AND beside.relname = c.relname || '_summary';",
        (_RIGHTS + "test_a_table_gives_away_none_that_another_role_has_named_alike",),
    ),
    Defence(
        "what autovacuum runs keeps nobody from his run",
        "madlib_mop/catalog/sessions/lock_holders.py",
        "AND o.rolsuper IS NOT TRUE AND",
        "AND NOT o.rolsuper AND",
        (_LOCKS + "test_what_autovacuum_runs_keeps_nobody_from_his_run",),
    ),
    Defence(
        "a login role that cannot be dropped has no rights of the caller's",
        "madlib_mop/engines/sessions/login.py",
        "for granted, grantor in cursor.fetchall():",
        "for granted, grantor in ():",
        (_LOGIN_ROLES + "test_a_role_that_owns_more_than_can_be_locked_stops_nobody",),
    ),
    Defence(
        "a role that looks like a login role stops no sweep",
        "madlib_mop/engines/sessions/login.py",
        '_NUMBERS = "([0-9]{1,10})_([0-9]{1,19})_[0-9a-f]{8}"',
        '_NUMBERS = r"(\\d+)_(.+)_[0-9a-f]{8}"',
        (_LOGIN_ROLES + "test_a_role_that_looks_like_a_login_role_stops_no_sweep",),
    ),
    Defence(
        "no setting of a user's chooses the role of the session that makes login roles",
        "madlib_mop/engines/sessions/login.py",
        """"transaction_timeout", "role", "session_authorization"]""",
        """"transaction_timeout"]""",
        (_LOGIN_ROLES + "test_no_setting_of_the_callers_reaches_the_session_that_makes_the_role",),
    ),
    Defence(
        "a reader whose code takes no cancel, and has another name, ends with the run",
        "madlib_mop/engines/sessions/login.py",
        "cursor.execute(_END_SESSIONS, [role])",
        "pass",
        ("tests/security/test_stuck_readers.py::test_a_reader_that_takes_no_cancel_ends_with_the_run",),
    ),
    Defence(
        "the password of a login role is never sent as it is",
        "madlib_mop/engines/sessions/login.py",
        "return found | protecting(found, libpq_version())",
        "return found",
        ("tests/security/test_impostor.py::test_an_impostor_at_the_servers_port_gets_no_password",),
    ),
    Defence(
        "a login sends no hash of a password by MD5",
        "madlib_mop/catalog/sessions/passwords.py",
        '("password", "md5")',
        '("password",)',
        ("tests/security/test_impostor.py::test_an_impostor_at_the_servers_port_gets_no_password",),
    ),
    Defence(
        "the password of a host goes to no server that asks for it in plain text",
        "madlib_mop/engines/hosts/login.py",
        "        **protected,\n",
        "",
        ("tests/security/test_impostor.py::test_an_impostor_in_the_place_of_a_host_gets_no_password",),
    ),
    Defence(
        "a host proves by SCRAM that it knows the password",
        "madlib_mop/catalog/sessions/passwords.py",
        "if not may_be_let_in and not is_proven:",
        "if False:",
        ("tests/security/test_impostor.py::"
         "test_a_host_that_lets_everybody_in_is_not_taken_for_the_one_that_knows_the_password",),
    ),
    Defence(
        "a run logs in at a host with its owner's password, or not at all",
        "madlib_mop/engines/hosts/login.py",
        "if must_use_password and not connection.pgconn.used_password:",
        "if False:",
        ("tests/security/test_impostor.py::"
         "test_a_host_that_asks_for_no_password_is_refused_to_a_role_that_is_no_superuser",),
    ),
    Defence(
        "roles that may see a run do not see the text of its policy",
        "madlib_mop/catalog/record.py",
        "query = insert(t.run).values(**hide_policy(run.as_row()))",
        "query = insert(t.run).values(**run.as_row())",
        ("tests/integration/test_policies.py::test_only_the_owner_of_a_run_sees_the_text_of_its_policy",),
    ),
    Defence(
        "a Unix socket counts as no proof of the server",
        "madlib_mop/catalog/sessions/passwords.py",
        'all(name and name[0] not in "/@" for name in named)',
        "True",
        ("tests/unit/catalog/test_passwords.py::test_a_socket_is_no_proof",),
    ),
    Defence(
        "grants to a login role do not keep the driver busy that drops it",
        "madlib_mop/engines/sessions/login.py",
        'cursor.execute("SET statement_timeout = %s", [limit_ms])',
        'cursor.execute("SET statement_timeout = 0")',
        ("tests/security/test_login_roles.py::test_grants_to_a_login_role_do_not_keep_its_driver_busy",),
    ),
    Defence(
        "snapshots of roles that cannot see a run's states do not keep its replaced states on disk",
        "madlib_mop/catalog/old_snapshots.py",
        "WHERE (o.rolsuper OR o.rolbypassrls OR o.oid",
        "WHERE (true OR o.rolbypassrls OR o.oid",
        ("tests/integration/test_copies.py::test_sessions_that_cannot_see_the_states_keep_none",),
    ),
    Defence(
        "login roles that cannot be dropped do not slow down other calls",
        "madlib_mop/engines/sessions/login.py",
        "        if n_left > _MOST_LEFT and not has_rights:\n",
        "        if False:\n",
        ("tests/security/test_login_roles.py::test_roles_that_users_keep_from_being_dropped_slow_no_sweep",),
    ),
    Defence(
        "the text that stands for a role's model in a plan cannot be guessed by another role in the session",
        "plpython/mop_backend/predict.py",
        "secrets.token_hex(16)",
        "str(len(_planned))",
        ("tests/unit/backend/test_planned_models.py::test_each_plan_has_a_text_of_its_own_and_the_name_of_the_query",),
    ),
)
