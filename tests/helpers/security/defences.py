"""The defences that ``test_mutations.py`` removes, one row each: place of the defence, and the tests that then fail.

To add one, write a sentence that describes the defence, the file, a text that the file contains exactly once, its
replacement without the defence, and tests of which at least one must then fail. Choose fast tests. Defences of roles,
rights and locks are in ``rights_defences.py``, those of ordinary tables in ``column_defences.py``, those of jobs in
``job_defences.py``, those of monitoring in ``monitoring_defences.py``, those of reports in ``report_defences.py``,
those of the registry in ``registry_defences.py``, those of imports in ``import_defences.py``, and those of the live
page in ``dash_defences.py``.
"""

from tests.helpers.security.column_defences import DEFENCES_OF_COLUMNS
from tests.helpers.security.dash_defences import DEFENCES_OF_DASH
from tests.helpers.security.defence import Defence
from tests.helpers.security.import_defences import DEFENCES_OF_IMPORTS
from tests.helpers.security.job_defences import DEFENCES_OF_JOBS
from tests.helpers.security.monitoring_defences import DEFENCES_OF_MONITORING
from tests.helpers.security.registry_defences import DEFENCES_OF_REGISTRY
from tests.helpers.security.report_defences import DEFENCES_OF_REPORTS
from tests.helpers.security.rights_defences import DEFENCES_OF_RIGHTS
from tests.helpers.security.tracker_defences import DEFENCES_OF_TRACKERS

_SECCOMP = "tests/unit/trainer/test_seccomp.py::"
_SANDBOX = "tests/unit/trainer/test_sandbox.py::"
_SOCKETS = "tests/unit/trainer/test_sockets.py::"
_FRAMES = "tests/unit/backend/test_frames.py::"
_WRITER = "tests/unit/backend/test_writer.py::"
_WHAT_RUNS = "tests/security/test_what_runs.py::"
_DANGERS = "tests/unit/models/test_architecture.py::test_dangerous_constructs_are_refused_and_nothing_runs"
_CUSTOM = "tests/security/test_custom_functions.py::"
_WRITERS = "tests/security/test_writers.py::"
_RELAY = "tests/unit/engines/test_relay.py::"
_SEGMENTS = "tests/hosts/test_segments.py::"
_SUPERUSERS = "tests/security/test_superusers.py::"
_TYPES = "tests/security/test_types.py::"
_SYSCALLS = "madlib_mop/trainer/process/syscalls.py"

DEFENCES = (
    Defence(
        "a trainer cannot signal another process by kill",
        _SYSCALLS,
        '"kill": Checked((62, 129), 0, values=(), own_pid=True)',
        '"kill": Checked((62, 129), 0)',
        (_SECCOMP + "test_no_other_process_can_be_signalled",),
    ),
    Defence(
        "a trainer cannot signal another process by tgkill",
        _SYSCALLS,
        '"tgkill": Checked((234, 131), 0, values=(), own_pid=True)',
        '"tgkill": Checked((234, 131), 0)',
        (_SECCOMP + "test_no_other_process_can_be_signalled",),
    ),
    Defence(
        "a trainer cannot have the kernel signal another process by fcntl",
        _SYSCALLS,
        "_FCNTL = (0, 1, 2, 3,",
        "_FCNTL = (0, 1, 2, 3, 8, 10, 15,",
        (_SECCOMP + "test_no_other_process_can_be_signalled",),
    ),
    Defence(
        "a trainer makes threads, but no processes",
        _SYSCALLS,
        "mask=_CLONE_MORE, needed=_CLONE_THREAD",
        "mask=_CLONE_MORE",
        (_SECCOMP + "test_no_other_process_can_be_looked_at_or_changed_and_nothing_is_got_that_is_not_needed",),
    ),
    Defence(
        "a system call that is not on the list is refused",
        "madlib_mop/trainer/process/seccomp.py",
        "_MISSING, _REFUSE]",
        "_MISSING, _ALLOW]",
        (_SECCOMP + "test_no_other_process_can_be_looked_at_or_changed_and_nothing_is_got_that_is_not_needed",),
    ),
    Defence(
        "a trainer maps no shared memory, which its limit does not count",
        _SYSCALLS,
        "Checked((9, 222), 3, mask=_MAP_SHARED, only_with=_MAP_ANONYMOUS)",
        "Checked((9, 222), 3)",
        (_SECCOMP + "test_no_memory_is_got_that_the_limit_does_not_count",),
    ),
    Defence(
        "a trainer makes no files in memory, which its limit does not count",
        "madlib_mop/trainer/process/seccomp.py",
        "*(syscalls.SHARED_MEMORY.values() if with_gpus else ())",
        "*syscalls.SHARED_MEMORY.values()",
        (_SECCOMP + "test_no_memory_is_got_that_the_limit_does_not_count",),
    ),
    Defence(
        "what a trainer can write into the file of its messages is limited",
        "madlib_mop/trainer/process/lifetime.py",
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_WRITTEN, _MOST_WRITTEN))\n",
        "",
        ("tests/unit/trainer/test_lifetime.py::test_what_it_can_write_into_a_file_is_limited",),
    ),
    Defence(
        "a trainer opens no file to write, in kernels without Landlock too",
        _SYSCALLS,
        '"openat": Checked((257, 56), 2, mask=_O_WRITING)',
        '"openat": Checked((257, 56), 2)',
        (_SECCOMP + "test_the_filter_of_each_architecture",),
    ),
    Defence(
        "a trainer reads no file but its libraries'",
        "madlib_mop/trainer/process/sandbox.py",
        "return no_new_privileges() and _libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0",
        "return True",
        (_SANDBOX + "test_files_cannot_be_read",),
    ),
    Defence(
        "a trainer without GPUs writes to no file of its threads",
        "madlib_mop/trainer/process/sandbox.py",
        "        if with_gpus:\n",
        "        if True:\n",
        (_SANDBOX + "test_only_a_trainer_with_gpus_names_its_threads",),
    ),
    Defence(
        "a trainer's PyTorch loads compiled code from no directory that another user can write to",
        "madlib_mop/trainer/backends/torch/environment.py",
        '"TORCHINDUCTOR_CACHE_DIR": "/"',
        '"TORCHINDUCTOR_CACHE_DIR": "/tmp"',
        ("tests/unit/trainer/test_backends.py::test_pytorch_looks_for_compiled_code_where_only_root_can_write",),
    ),
    Defence(
        "a run that has begun takes no state of another backend",
        "madlib_mop/trainer/graphs/migration.py",
        "if not begins:",
        "if False:",
        ("tests/unit/trainer/test_migration.py::test_a_run_that_has_begun_refuses_it",),
    ),
    Defence(
        "a trainer gives up system calls when it starts",
        "madlib_mop/trainer/server.py",
        'in_force["seccomp"] = seccomp.restrict_calls(with_gpus=bool(gpu_numbers))',
        'in_force["seccomp"] = False',
        (_SANDBOX + "test_both_are_in_force_where_the_kernel_has_them",),
    ),
    Defence(
        "images are decoded by processes that are shut in",
        "madlib_mop/driver/data/decoders.py",
        "DecoderPool(guards=SANDBOX)",
        "DecoderPool()",
        ("tests/unit/packing/test_images.py::test_the_drivers_decoders_are_shut_in",),
    ),
    Defence(
        "a backend asks whose the socket is before it requests a trainer there",
        "plpython/mop_backend/sockets.py",
        "if owner_of(peer)[1] != os.geteuid():",
        "if owner_of(peer)[1] == -1:",
        (_SOCKETS + "test_an_impostor_leads_to_no_fork_at_once",),
        as_root=True,
    ),
    Defence(
        "the fork server forks for its own operating system user alone",
        "plpython/mop_backend/forking.py",
        "if user != os.geteuid():",
        "if user == -1:",
        (_SOCKETS + "test_other_users_get_nothing_by_an_abstract_name",),
        as_root=True,
    ),
    Defence(
        "a directory that others can write to is no place for the fork server's socket",
        "plpython/mop_backend/sockets.py",
        "if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:",
        "if status.st_uid != os.geteuid():",
        (_SOCKETS + "test_a_directory_that_others_can_write_to_is_not_used",),
    ),
    Defence(
        "a connect to a socket that lets nobody in does not block",
        "plpython/mop_backend/sockets.py",
        "peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)",
        "peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        (_SOCKETS + "test_an_impostor_who_lets_nobody_connect_does_not_keep_us_waiting",),
        as_root=True,
    ),
    Defence(
        "an architecture is made of layers of the list: StringLookup, which reads files, is not taken",
        "madlib_mop/models/keras_layers.py",
        '    "StringLookup": "it can read files of the server as its vocabulary",\n',
        '}\nLAYERS |= {"StringLookup"}\nREFUSED_LAYERS |= {\n',
        (_DANGERS + "[StringLookup]",),
    ),
    Defence(
        "Keras gets the checked copy of an architecture only",
        "madlib_mop/models/build.py",
        "    document = check_architecture(config)\n",
        "    import json; document = json.loads(config) if isinstance(config, str) else config\n",
        ("tests/unit/models/test_build.py::test_keras_never_sees_what_is_refused",),
    ),
    Defence(
        "what shows in review is the list of layers",
        "madlib_mop/models/keras_layers.py",
        "    Activation ActivityRegularization ",
        "    Activation ActivityRegularization AnyLayerOfKeras ",
        (_WHAT_RUNS + "test_what_architectures_are_made_of_is_in_the_file",),
    ),
    Defence(
        "a class of another module than Keras' is refused",
        "madlib_mop/models/architecture.py",
        "if given is not None and not (isinstance(given, str) and OWN_MODULE.match(given)):",
        "if False:",
        (_DANGERS + "[allowed class of another module]", _DANGERS + "[module with a path]"),
    ),
    Defence(
        "custom functions come from a table that is a superuser's",
        "madlib_mop/driver/data/custom_functions.py",
        'if not rights["is_superusers"]:',
        "if False:",
        (_CUSTOM + "test_a_table_that_is_not_a_superusers_is_refused",),
    ),
    Defence(
        "custom functions come from a table that nobody but superusers may write to",
        "madlib_mop/driver/data/custom_functions.py",
        'if rights["writer"] is not None:',
        "if False:",
        (_CUSTOM + "test_a_table_that_others_may_write_to_is_refused",),
    ),
    Defence(
        "custom functions come from an ordinary table",
        "madlib_mop/driver/data/custom_functions.py",
        'if rights["kind"] != "r":',
        "if False:",
        (_CUSTOM + "test_a_view_is_refused",),
    ),
    Defence(
        "a pickle is not opened unless a superuser allowed it",
        "madlib_mop/driver/data/custom_functions.py",
        '            check_pickle(f"custom function {name!r}", functions.pickles)',
        "            pass",
        (_CUSTOM + "test_a_pickle_in_the_table_is_opened_by_nobody",),
    ),
    Defence(
        "a session that is a superuser's in part is refused",
        "plpython/mop_backend/rights.py",
        'if row["any_superuser"] and not row["all_superusers"]:',
        "if False:",
        (_SUPERUSERS + "test_a_superusers_session_that_took_another_role_is_refused",),
    ),
    Defence(
        "who can become a superuser counts as one",
        "plpython/mop_backend/rights.py",
        "WHERE x.rolsuper AND pg_catalog.pg_has_role(coalesce(o.oid, s.oid), x.oid, 'MEMBER')) AS is_superuser",
        "WHERE x.rolsuper AND x.oid = coalesce(o.oid, s.oid)) AS is_superuser",
        (_SUPERUSERS + "test_nor_does_the_call_of_who_can_become_one",),
    ),
    Defence(
        "a superuser's call takes only what superusers own",
        "madlib_mop/driver/session/relations.py",
        "            check_owners(self, found, what)\n",
        "",
        (_SUPERUSERS + "test_a_superusers_call_runs_no_code_of_another_role",),
    ),
    Defence(
        "what a relation uses must be superusers' too",
        "madlib_mop/driver/session/rights.py",
        "WHERE d.classid = u.classid AND d.objid = u.objid AND",
        "WHERE false AND",
        (_SUPERUSERS + "test_a_superusers_call_runs_no_code_of_another_role[our view with her function]",),
    ),
    Defence(
        "tables of ours have no columns of users' types",
        "madlib_mop/driver/session/relations.py",
        "                check_types(self, found, what)\n",
        "                pass\n",
        (_TYPES + "test_a_packed_table_with_a_users_type_is_refused",),
    ),
    Defence(
        "a type counts by its schema, not by its name",
        "madlib_mop/driver/session/relations.py",
        "CASE WHEN tn.nspname <> 'pg_catalog' THEN tn.nspname || '.' ELSE '' END || t.typname AS type_name",
        "t.typname::pg_catalog.text AS type_name",
        (_TYPES + "test_a_users_type_of_a_known_name_is_not_packed",),
    ),
    Defence(
        "rows are taken from the reader's process alone",
        "plpython/mop_backend/rows.py",
        "if peer_user == os.geteuid() and pid in (None, peer_pid):",
        "if peer_user == os.geteuid():",
        (_WRITERS + "test_another_process_is_not_heard_even_one_of_the_servers_user",),
    ),
    Defence(
        "rows are taken from the server's operating system user alone",
        "plpython/mop_backend/rows.py",
        "if peer_user == os.geteuid() and pid in (None, peer_pid):",
        "if pid in (None, peer_pid):",
        (_WRITERS + "test_another_operating_system_user_neither_sends_nor_takes_rows",),
        as_root=True,
    ),
    Defence(
        "rows are given to the server's operating system user alone",
        "plpython/mop_backend/rows.py",
        "if owner_of(self._socket)[1] != os.geteuid():",
        "if False:",
        (_WRITERS + "test_another_operating_system_user_neither_sends_nor_takes_rows",),
        as_root=True,
    ),
    Defence(
        "nothing is trained on rows that are not the run's",
        "madlib_mop/driver/running/segment_sessions.py",
        """        self._shared.consistency.check_shard(wanted.shard, answer.shard)\n""",
        "",
        ("tests/faults/test_changed_rows.py",),
    ),
    Defence(
        "a host does work that is signed with its key alone",
        "plpython/mop_backend/segment.py",
        " if seals.is_signed(self._key, header, signature) else {}",
        "",
        (_SEGMENTS + "test_users_at_the_host_can_do_nothing_by_hand",),
    ),
    Defence(
        "a host takes the blobs that a message names and no others",
        "plpython/mop_backend/segment.py",
        """ or message.pop("blobs", None) != digests:""",
        """ or message.pop("blobs", None) is None:""",
        (_SEGMENTS + "test_blobs_are_those_that_the_message_names",),
    ),
    Defence(
        "a host signs its answers",
        "madlib_mop/engines/hosts/relay.py",
        "if not seals.is_signed(self._answer_key, answer, signature):",
        "if False:",
        (_RELAY + "test_a_forged_answer_is_refused",),
    ),
    Defence(
        "a message to a host is no answer of it",
        "plpython/mop_backend/seals.py",
        'return hmac.digest(own_key, b"answer", "sha256")',
        "return own_key",
        (_RELAY + "test_a_forged_answer_is_refused",),
    ),
    Defence(
        "an answer of a host belongs to the message before it",
        "madlib_mop/engines/hosts/relay.py",
        'if fields.pop("number") != self._n_messages:',
        'if fields.pop("number") is None:',
        (_RELAY + "test_a_forged_answer_is_refused",),
    ),
    Defence(
        "the blobs of a host are those that its answer names",
        "madlib_mop/engines/hosts/relay.py",
        "or seals.digest_of(part) != digest:",
        "or False:",
        (_RELAY + "test_a_forged_answer_is_refused",),
    ),
    Defence(
        "an answer of a host that is too large is not parsed",
        "madlib_mop/engines/hosts/relay.py",
        "        of_answers().check_header(answer.encode())\n",
        "",
        (_RELAY + "test_an_answer_that_is_too_large_is_not_parsed",),
    ),
    Defence(
        "the blobs of a host have a limit together",
        "madlib_mop/engines/hosts/relay.py",
        "            limits.check_blobs([len(part) for part in parts])\n",
        "",
        (_RELAY + "test_blobs_that_are_too_large_together_are_not_kept",),
    ),
    Defence(
        "the relay to a host has a limit of memory",
        "madlib_mop/engines/hosts/relay.py",
        "    resource.setrlimit(resource.RLIMIT_DATA, (most, most))\n",
        "    del most\n",
        (_RELAY + "test_a_relay_has_a_limit_of_memory",),
    ),
    Defence(
        "a process that is not trusted sends no more values than can be parsed",
        "plpython/mop_backend/frames.py",
        "self.values is not None and sum(",
        "False and sum(",
        (_FRAMES + "test_a_header_with_too_many_values_is_not_parsed",),
    ),
    Defence(
        "a process that is not trusted sends no blobs without end",
        "plpython/mop_backend/frames.py",
        "        self.limits.check_blobs(lengths)\n",
        "",
        (_FRAMES + "test_blobs_that_are_too_large_together_are_not_read",),
    ),
    Defence(
        "the relay, the trainers and the decoders are not trusted",
        "plpython/mop_backend/process.py",
        "limits = of_answers() if limits is None else limits",
        "limits = Limits()",
        (_FRAMES + "test_a_trainer_that_sends_no_frame_is_killed",),
    ),
    Defence(
        "a relay that asks whether a host is up sends it no password",
        "madlib_mop/engines/hosts/login.py",
        """make_conninfo(**without)""",
        """make_conninfo(**options)""",
        ("tests/security/test_impostor.py::"
         "test_an_impostor_gets_no_password_from_the_question_whether_a_host_is_up",),
    ),
    Defence(
        "a reader sends the shapes of a buffer, and not more",
        "plpython/mop_backend/rows.py",
        "limits = replace(of_answers(), header_bytes=_MOST_HEADER_BYTES)",
        "limits = of_answers()",
        ("tests/unit/backend/test_rows.py::test_a_reader_that_sends_too_much_is_dropped",),
    ),
    Defence(
        "code of users at a host does not answer for the trainer",
        "madlib_mop/engines/hosts/relay.py",
        "self._cursor.execute(query, values, prepare=False)",
        "self._cursor.execute(query, values, prepare=True)",
        (_SEGMENTS + "test_code_of_users_at_a_host_answers_for_no_trainer",),
    ),
    Defence(
        "a host's trainer is in a sandbox unless the host's superusers want none",
        "plpython/mop_backend/segment.py",
        """{**message, "sandbox": self._settings.get(_SANDBOX) != "off"}""",
        "message",
        (_SEGMENTS + "test_a_host_decides_what_code_runs_there",),
    ),
    Defence(
        "a host runs the custom functions that its superusers accept",
        "plpython/mop_backend/segment.py",
        """if not accepted & {"any", digest}:""",
        "if False:",
        (_SEGMENTS + "test_a_host_decides_what_code_runs_there",),
    ),
    Defence(
        "a trainer that only claims to send much takes no memory of the server",
        "plpython/mop_backend/frames.py",
        "_AT_FIRST_BYTES = 1 << 26",
        "_AT_FIRST_BYTES = 1 << 30",
        (_FRAMES + "test_a_blob_that_is_only_claimed_takes_no_memory",),
    ),
    Defence(
        "a header of a trainer has a greatest length",
        "plpython/mop_backend/frames.py",
        "n_head > self.limits.header_bytes or ",
        "",
        (_FRAMES + "test_a_header_that_is_too_long_is_not_read",),
    ),
    Defence(
        "a session survives a trainer's header that is nested deeply",
        "plpython/mop_backend/frames.py",
        "except (ValueError, RecursionError):",
        "except ValueError:",
        (_FRAMES + "test_what_is_no_header",),
    ),
    Defence(
        "the errors of a trainer have texts of a limited length",
        "plpython/mop_backend/refusals.py",
        "value[:_LONGEST]",
        "value",
        (_FRAMES + "test_a_trainers_error_is_made_readable",),
    ),
    Defence(
        "a trainer's answer does not choose its shard",
        "plpython/mop_backend/messages.py",
        "if unknown or missing:",
        "if missing:",
        (_WRITER + "test_an_answer_does_not_say_which_shard_it_is_about",),
    ),
    Defence(
        "a trainer's answer is about the models that it was asked about",
        "plpython/mop_backend/writer.py",
        "if [model is None for model in models] != [member is None for member in answered]:",
        "if False:",
        (_WRITER + "test_an_answer_that_cannot_be_read_ends_the_trainer_and_keeps_nothing",),
    ),
    Defence(
        "a field of a trainer's answer has the type that it must have",
        "plpython/mop_backend/messages.py",
        "elif kind in (bool, str) and type(value) is kind:",
        "elif kind in (bool, str):",
        (_WRITER + "test_an_answer_that_cannot_be_read_ends_the_trainer_and_keeps_nothing",),
    ),
    Defence(
        "the error of one model of several that a trainer sends can be shown and recorded",
        "plpython/mop_backend/writer.py",
        """error = readable({"error": trained.error})["error"]""",
        "error = trained.error",
        (_WRITER + "test_of_models_that_are_trained_together_each_is_kept_or_has_failed",),
    ),
    *DEFENCES_OF_RIGHTS,
    *DEFENCES_OF_COLUMNS,
    *DEFENCES_OF_JOBS,
    *DEFENCES_OF_DASH,
    *DEFENCES_OF_MONITORING,
    *DEFENCES_OF_REPORTS,
    *DEFENCES_OF_TRACKERS,
    *DEFENCES_OF_REGISTRY,
    *DEFENCES_OF_IMPORTS,
)
