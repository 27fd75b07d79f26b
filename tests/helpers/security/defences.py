"""The defences that ``test_mutations.py`` takes out, one row each: name, guarantee, and the tests that then fail.

A marker in the sources says where the defence is, and what is there without it (``markers.py``). To add a defence, mark
it, and write a row with the name, a sentence that describes the guarantee, and tests of which at least one must then
fail. Choose fast tests. Defences of roles, rights and locks are in ``rights_defences.py``, those of ordinary tables in
``column_defences.py``, those of jobs in ``job_defences.py``, those of monitoring in ``monitoring_defences.py``, those
of reports in ``report_defences.py``, those of trackers in ``tracker_defences.py``, those of the registry in
``registry_defences.py``, those of imports in ``import_defences.py``, and those of the live page in
``dash_defences.py``.
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
_HOPS = "tests/unit/backend/test_hops.py::"
_HOST_STATES = "tests/unit/backend/test_host_states.py::"
_SUPERUSERS = "tests/security/test_superusers.py::"
_TYPES = "tests/security/test_types.py::"

DEFENCES = (
    Defence(
        "consent-to-hops",
        "hosts listen for each other only if a superuser has allowed it",
        ("tests/unit/driver/test_settings.py::test_states_go_from_host_to_host_only_if_a_superuser_has_allowed_it",),
    ),
    Defence(
        "one-pull-a-ticket",
        "states that are offered to another host are sent once",
        (_HOPS + "test_a_ticket_is_worth_one_pull",),
    ),
    Defence(
        "ticket-of-a-hop",
        "states go only to the host that has the ticket",
        (_HOPS + "test_nobody_without_the_ticket_gets_anything_and_the_right_one_still_does",),
    ),
    Defence(
        "sender-of-a-hop",
        "a host takes states only from the one that has the ticket",
        (_HOPS + "test_a_listener_that_does_not_know_the_ticket_is_not_believed",),
    ),
    Defence(
        "certificate-of-a-hop",
        "with TLS, a host takes states only from the server whose certificate the coordinator has named",
        (_HOPS + "test_another_certificate_is_not_accepted",),
    ),
    Defence(
        "parts-of-a-hop",
        "a host takes no more parts than a state may have",
        (_HOPS + "test_another_state_than_the_recorded_one_is_not_taken",),
    ),
    Defence(
        "bytes-of-a-hop",
        "a host takes no more bytes than the recorded ones of a state",
        (_HOPS + "test_another_state_than_the_recorded_one_is_not_taken",),
    ),
    Defence(
        "growth-of-a-state",
        "a trainer that sends a state of any size does not fill the disk",
        (_WRITER + "test_a_state_that_grows_without_end_is_not_kept",),
    ),
    Defence(
        "bytes-of-a-held-state",
        "a host that lies about the size of a new state is not believed",
        (_WRITER + "test_a_host_that_lies_about_the_size_of_a_state_is_not_believed",),
    ),
    Defence(
        "memory-of-a-hop",
        "a host takes no more bytes at once than a quarter of its memory, whatever the record says",
        (_HOPS + "test_more_than_a_host_takes_at_once_is_not_taken",),
    ),
    Defence(
        "place-of-a-hop",
        "a host connects to an address and a port that another one names, and looks up no names",
        (_HOPS + "test_a_place_is_an_address_and_a_port",),
    ),
    Defence(
        "proof-of-a-hop",
        "leading parts of a state arrive as they were sent, also without TLS",
        (_HOPS + "test_leading_parts_that_were_changed_on_the_way_are_not_taken",),
    ),
    Defence(
        "tls-of-a-hop",
        "states do not go from host to host without TLS where the coordinator's connection to one of them demands it",
        (_HOST_STATES + "test_no_state_goes_directly_without_tls_where_a_connection_demands_it",),
    ),
    Defence(
        "parts-of-a-fetch",
        "a host that sends empty parts, or another number of them than it has said, does not hold the state",
        (_HOPS + "test_a_host_that_sends_something_else_does_not_hold_the_state",),
    ),
    Defence(
        "bytes-of-a-fetch",
        "the coordinator takes no more bytes from a host than the recorded ones of a state",
        (_HOPS + "test_a_host_that_sends_more_than_the_state_does_not_hold_it",),
    ),
    Defence(
        "absent-states",
        "a session at a host can only lack states that the host has to hold or that it has kept",
        (_HOST_STATES + "test_a_session_that_lacks_what_it_was_sent_is_not_believed",),
    ),
    Defence(
        "grants-on-held-states",
        "default privileges give nobody rights to the tables of states, here and at hosts",
        ("tests/security/test_own_runs.py::test_default_privileges_give_nobody_rights_to_the_partitions_of_states",),
    ),
    Defence(
        "steps-of-segments",
        "users of a host read and write no states that it holds for a coordinator",
        ("tests/hosts/test_held_states.py::test_users_of_the_host_reach_no_state",),
    ),
    Defence(
        "masked-tickets",
        "the ticket of a hop is in no statement",
        (_RELAY + "test_tickets_are_sent_masked_with_another_mask_each",),
    ),
    Defence(
        "digest-of-a-hop",
        "a state that arrives has the digest that the record names",
        (_HOPS + "test_another_state_than_the_recorded_one_is_not_taken",),
    ),
    Defence(
        "no-kill",
        "a trainer cannot signal another process by kill",
        (_SECCOMP + "test_no_other_process_can_be_signalled",),
    ),
    Defence(
        "no-tgkill",
        "a trainer cannot signal another process by tgkill",
        (_SECCOMP + "test_no_other_process_can_be_signalled",),
    ),
    Defence(
        "no-signals-by-fcntl",
        "a trainer cannot have the kernel signal another process by fcntl",
        (_SECCOMP + "test_no_other_process_can_be_signalled",),
    ),
    Defence(
        "threads-only",
        "a trainer makes threads, but no processes",
        (_SECCOMP + "test_no_other_process_can_be_looked_at_or_changed_and_nothing_is_got_that_is_not_needed",),
    ),
    Defence(
        "unlisted-calls",
        "a system call that is not on the list is refused",
        (_SECCOMP + "test_no_other_process_can_be_looked_at_or_changed_and_nothing_is_got_that_is_not_needed",),
    ),
    Defence(
        "no-shared-maps",
        "a trainer maps no shared memory, which its limit does not count",
        (_SECCOMP + "test_no_memory_is_got_that_the_limit_does_not_count",),
    ),
    Defence(
        "no-files-in-memory",
        "a trainer makes no files in memory, which its limit does not count",
        (_SECCOMP + "test_no_memory_is_got_that_the_limit_does_not_count",),
    ),
    Defence(
        "space-for-trainers-with-files",
        "a trainer without a file for rows reserves no space in files",
        (_SECCOMP + "test_the_filter_of_each_architecture",),
    ),
    Defence(
        "temporary-files-of-trainers",
        "a role's limit of temporary files holds for the files of its trainers",
        ("tests/unit/driver/test_settings.py::test_a_trainer_s_file_is_a_temporary_file_of_the_caller",),
    ),
    Defence(
        "rows-in-files-of-idle-trainers",
        "a trainer in whose file rows are left serves no other run",
        ("tests/unit/trainer/test_large_shards.py::test_a_trainer_serves_no_other_run_if_rows_stay_in_its_file",),
    ),
    Defence(
        "directory-of-a-host",
        "a coordinator does not choose the directory in which a host makes files",
        ("tests/unit/backend/test_memory.py::test_a_host_s_own_settings_say_where_files_are_and_how_large",),
    ),
    Defence(
        "size-of-messages-file",
        "what a trainer can write into the file of its messages is limited",
        ("tests/unit/trainer/test_lifetime.py::test_what_it_can_write_into_a_file_is_limited",),
    ),
    Defence(
        "no-files-to-write",
        "a trainer opens no file to write, in kernels without Landlock too",
        (_SECCOMP + "test_the_filter_of_each_architecture",),
    ),
    Defence(
        "landlock",
        "a trainer reads no file but its libraries'",
        (_SANDBOX + "test_files_cannot_be_read",),
    ),
    Defence(
        "no-names-of-threads",
        "a trainer without GPUs writes to no file of its threads",
        (_SANDBOX + "test_only_a_trainer_with_gpus_names_its_threads",),
    ),
    Defence(
        "cache-of-pytorch",
        "a trainer's PyTorch loads compiled code from no directory that another user can write to",
        ("tests/unit/trainer/test_backends.py::test_pytorch_looks_for_compiled_code_where_only_root_can_write",),
    ),
    Defence(
        "state-of-another-backend",
        "a run that has begun takes no state of another backend",
        ("tests/unit/trainer/test_migration.py::test_a_run_that_has_begun_refuses_it",),
    ),
    Defence(
        "seccomp",
        "a trainer gives up system calls when it starts",
        (_SANDBOX + "test_both_are_in_force_where_the_kernel_has_them",),
    ),
    Defence(
        "files-of-boosting",
        "the process of gradient boosting reads no file but its libraries'",
        (_SANDBOX + "test_both_are_in_force_where_the_kernel_has_them",),
    ),
    Defence(
        "calls-of-boosting",
        "the process of gradient boosting gives up system calls before it gets rows",
        (_SANDBOX + "test_both_are_in_force_where_the_kernel_has_them",),
    ),
    Defence(
        "decoders-of-the-driver",
        "images are decoded by processes that are shut in",
        ("tests/unit/packing/test_images.py::test_the_drivers_decoders_are_shut_in",),
    ),
    Defence(
        "peer-of-a-trainer",
        "a backend asks whose the socket is before it requests a trainer there",
        (_SOCKETS + "test_an_impostor_leads_to_no_fork_at_once",),
        as_root=True,
    ),
    Defence(
        "user-of-a-fork",
        "the fork server forks for its own operating system user alone",
        (_SOCKETS + "test_other_users_get_nothing_by_an_abstract_name",),
        as_root=True,
    ),
    Defence(
        "trainers-of-one-role",
        "a trainer that waits serves only the role whose run has used it",
        ("tests/security/test_idle_trainers.py::test_another_role_gets_trainers_of_its_own",),
    ),
    Defence(
        "trainers-of-one-call",
        "a trainer in which code of users ran serves no other call",
        ("tests/security/test_idle_trainers.py::test_trainers_of_calls_in_which_code_of_users_ran_do_not_wait",),
    ),
    Defence(
        "trainers-of-one-run",
        "a trainer in which code of users ran serves no other run",
        ("tests/security/test_idle_trainers.py::test_trainers_in_which_code_of_users_ran_do_not_wait",),
    ),
    Defence(
        "directory-of-sockets",
        "a directory that others can write to is no place for the fork server's socket",
        (_SOCKETS + "test_a_directory_that_others_can_write_to_is_not_used",),
    ),
    Defence(
        "connect-without-waiting",
        "a connect to a socket that lets nobody in does not block",
        (_SOCKETS + "test_an_impostor_who_lets_nobody_connect_does_not_keep_us_waiting",),
        as_root=True,
    ),
    Defence(
        "listed-layers",
        "an architecture is made of layers of the list",
        (_DANGERS + "[other class of keras]",),
    ),
    Defence(
        "checked-copy",
        "Keras gets the checked copy of an architecture only",
        ("tests/unit/models/test_build.py::test_keras_never_sees_what_is_refused",),
    ),
    Defence(
        "reviewed-layers",
        "what shows in review is the list of layers",
        (_WHAT_RUNS + "test_what_architectures_are_made_of_is_in_the_file",),
    ),
    Defence(
        "modules-of-keras",
        "a class of another module than Keras' is refused",
        (_DANGERS + "[allowed class of another module]", _DANGERS + "[module with a path]"),
    ),
    Defence(
        "functions-of-superusers",
        "custom functions come from a table that is a superuser's",
        (_CUSTOM + "test_a_table_that_is_not_a_superusers_is_refused",),
    ),
    Defence(
        "writers-of-functions",
        "custom functions come from a table that nobody but superusers may write to",
        (_CUSTOM + "test_a_table_that_others_may_write_to_is_refused",),
    ),
    Defence(
        "functions-in-a-table",
        "custom functions come from an ordinary table",
        (_CUSTOM + "test_a_view_is_refused",),
    ),
    Defence(
        "no-pickles",
        "a pickle is not opened unless a superuser allowed it",
        (_CUSTOM + "test_a_pickle_in_the_table_is_opened_by_nobody",),
    ),
    Defence(
        "superuser-in-part",
        "a session that is a superuser's in part is refused",
        (_SUPERUSERS + "test_a_superusers_session_that_took_another_role_is_refused",),
    ),
    Defence(
        "members-of-superusers",
        "who can become a superuser counts as one",
        (_SUPERUSERS + "test_nor_does_the_call_of_who_can_become_one",),
    ),
    Defence(
        "owners-of-relations",
        "a superuser's call takes only what superusers own",
        (_SUPERUSERS + "test_a_superusers_call_runs_no_code_of_another_role",),
    ),
    Defence(
        "what-relations-use",
        "what a relation uses must be superusers' too",
        (_SUPERUSERS + "test_a_superusers_call_runs_no_code_of_another_role[our view with her function]",),
    ),
    Defence(
        "types-of-our-tables",
        "tables of ours have no columns of users' types",
        (_TYPES + "test_a_packed_table_with_a_users_type_is_refused",),
    ),
    Defence(
        "schema-of-a-type",
        "a type counts by its schema, not by its name",
        (_TYPES + "test_a_users_type_of_a_known_name_is_not_packed",),
    ),
    Defence(
        "process-of-the-reader",
        "rows are taken from the reader's process alone",
        (_WRITERS + "test_another_process_is_not_heard_even_one_of_the_servers_user",),
    ),
    Defence(
        "user-of-the-reader",
        "rows are taken from the server's operating system user alone",
        (_WRITERS + "test_another_operating_system_user_neither_sends_nor_takes_rows",),
        as_root=True,
    ),
    Defence(
        "user-of-the-rows-socket",
        "rows are given to the server's operating system user alone",
        (_WRITERS + "test_another_operating_system_user_neither_sends_nor_takes_rows",),
        as_root=True,
    ),
    Defence(
        "rows-of-the-run",
        "nothing is trained on rows that are not the run's",
        ("tests/faults/test_changed_rows.py",),
    ),
    Defence(
        "signed-messages",
        "a host does work that is signed with its key alone",
        (_SEGMENTS + "test_users_at_the_host_can_do_nothing_by_hand",),
    ),
    Defence(
        "blobs-of-a-message",
        "a host takes the blobs that a message names and no others",
        (_SEGMENTS + "test_blobs_are_those_that_the_message_names",),
    ),
    Defence(
        "signed-answers",
        "a host signs its answers",
        (_RELAY + "test_a_forged_answer_is_refused",),
    ),
    Defence(
        "key-of-answers",
        "a message to a host is no answer of it",
        (_RELAY + "test_a_forged_answer_is_refused",),
    ),
    Defence(
        "number-of-an-answer",
        "an answer of a host belongs to the message before it",
        (_RELAY + "test_a_forged_answer_is_refused",),
    ),
    Defence(
        "digest-of-a-blob",
        "the blobs of a host are those that its answer names",
        (_RELAY + "test_a_forged_answer_is_refused",),
    ),
    Defence(
        "size-of-an-answer",
        "an answer of a host that is too large is not parsed",
        (_RELAY + "test_an_answer_that_is_too_large_is_not_parsed",),
    ),
    Defence(
        "blobs-together",
        "the blobs of a host have a limit together",
        (_RELAY + "test_blobs_that_are_too_large_together_are_not_kept",),
    ),
    Defence(
        "memory-of-the-relay",
        "the relay to a host has a limit of memory",
        (_RELAY + "test_a_relay_has_a_limit_of_memory",),
    ),
    Defence(
        "number-of-values",
        "a process that is not trusted sends no more values than can be parsed",
        (_FRAMES + "test_a_header_with_too_many_values_is_not_parsed",),
    ),
    Defence(
        "blobs-without-end",
        "a process that is not trusted sends no blobs without end",
        (_FRAMES + "test_blobs_that_are_too_large_together_are_not_read",),
    ),
    Defence(
        "limits-of-processes",
        "the relay, the trainers and the decoders are not trusted",
        (_FRAMES + "test_a_trainer_that_sends_no_frame_is_killed",),
    ),
    Defence(
        "ping-without-password",
        "a relay that asks whether a host is up sends it no password",
        ("tests/security/test_impostor.py::"
         "test_an_impostor_gets_no_password_from_the_question_whether_a_host_is_up",),
    ),
    Defence(
        "header-of-a-buffer",
        "a reader sends the shapes of a buffer, and not more",
        ("tests/unit/backend/test_rows.py::test_a_reader_that_sends_too_much_is_dropped",),
    ),
    Defence(
        "no-prepared-statements",
        "code of users at a host does not answer for the trainer",
        (_SEGMENTS + "test_code_of_users_at_a_host_answers_for_no_trainer",),
    ),
    Defence(
        "sandbox-at-hosts",
        "a host's trainer is in a sandbox unless the host's superusers want none",
        (_SEGMENTS + "test_a_host_decides_what_code_runs_there",),
    ),
    Defence(
        "functions-at-hosts",
        "a host runs the custom functions that its superusers accept",
        (_SEGMENTS + "test_a_host_decides_what_code_runs_there",),
    ),
    Defence(
        "claimed-bytes",
        "a trainer that only claims to send much takes no memory of the server",
        (_FRAMES + "test_a_blob_that_is_only_claimed_takes_no_memory",),
    ),
    Defence(
        "length-of-a-header",
        "a header of a trainer has a greatest length",
        (_FRAMES + "test_a_header_that_is_too_long_is_not_read",),
    ),
    Defence(
        "deep-headers",
        "a session survives a trainer's header that is nested deeply",
        (_FRAMES + "test_what_is_no_header",),
    ),
    Defence(
        "length-of-an-error",
        "the errors of a trainer have texts of a limited length",
        (_FRAMES + "test_a_trainers_error_is_made_readable",),
    ),
    Defence(
        "fields-of-an-answer",
        "a trainer's answer does not choose its shard",
        (_WRITER + "test_an_answer_does_not_say_which_shard_it_is_about",),
    ),
    Defence(
        "models-of-an-answer",
        "a trainer's answer is about the models that it was asked about",
        (_WRITER + "test_an_answer_that_cannot_be_read_ends_the_trainer_and_keeps_nothing",),
    ),
    Defence(
        "times-of-an-answer",
        "the times in a trainer's answer do not break the views of runs",
        (
            _WRITER + "test_an_answer_that_cannot_be_read_ends_the_trainer_and_keeps_nothing",
            _WRITER + "test_the_times_of_an_evaluation_are_times",
        ),
    ),
    Defence(
        "type-of-a-field",
        "a field of a trainer's answer has the type that it must have",
        (_WRITER + "test_an_answer_that_cannot_be_read_ends_the_trainer_and_keeps_nothing",),
    ),
    Defence(
        "readable-error",
        "the error of one model of several that a trainer sends can be shown and recorded",
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
