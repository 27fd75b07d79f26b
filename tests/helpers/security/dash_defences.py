"""The defences, in the format of ``defences.py``, of the live page."""

from tests.helpers.security.defence import Defence

_DASH, _AT_LOGIN = "tests/security/test_dash.py::", "tests/security/test_dash_logins.py::"
_HOSTILE = "tests/security/test_dash_hostile.py::"
_ENVIRONMENT = _AT_LOGIN + "test_nothing_of_our_environment_logs_anybody_in"
_DSN = _AT_LOGIN + "test_a_dsn_with_a_secret_or_a_socket_is_refused"
_FORM = _DASH + "test_a_form_of_another_site_does_nothing"

DEFENCES_OF_DASH = (
    Defence(
        "cookie-of-a-login",
        "a login begins a session with a cookie of its own",
        (_DASH + "test_a_second_login_ends_the_session_before",),
    ),
    Defence(
        "no-cookies-for-scripts",
        "no script reads the cookie of a session",
        (_DASH + "test_the_cookie_is_for_the_server_and_this_site_only",),
    ),
    Defence(
        "logout",
        "a logout ends the session at the server",
        (_DASH + "test_a_logout_ends_the_session",),
    ),
    Defence(
        "idle-sessions",
        "a session without requests ends",
        (_DASH + "test_a_session_ends_by_time",),
    ),
    Defence(
        "long-sessions",
        "a session ends after some hours in any case",
        (_DASH + "test_a_session_ends_by_time",),
    ),
    Defence(
        "updates-of-a-session",
        "updates end with their session",
        (_DASH + "test_a_logout_ends_the_updates",),
    ),
    Defence(
        "token-of-a-form",
        "a form has the token of its session",
        (_DASH + "test_a_command_needs_the_token_of_its_session",),
    ),
    Defence(
        "token-of-the-login",
        "the form of the login is ours",
        (_DASH + "test_the_login_is_sent_by_our_form_only",),
    ),
    Defence(
        "origin-of-a-request",
        "a request that changes something comes from our origin",
        (_FORM, _DASH + "test_a_form_without_an_origin_does_nothing"),
    ),
    Defence(
        "site-of-a-request",
        "the browser's word on the site of a request counts",
        (_FORM,),
    ),
    Defence(
        "known-hosts",
        "a name of DNS that was rebound to us is not served",
        (_DASH + "test_another_name_in_the_header_host_is_refused",),
    ),
    Defence(
        "no-frames",
        "no other page shows ours in a frame",
        (_DASH + "test_every_response_has_the_headers_that_browsers_obey",),
    ),
    Defence(
        "scripts-of-files",
        "browsers run the scripts of our files only",
        (_DASH + "test_every_response_has_the_headers_that_browsers_obey",),
    ),
    Defence(
        "no-command-by-get",
        "no command is obeyed by GET",
        (_DASH + "test_no_verb_is_obeyed_by_get",),
    ),
    Defence(
        "size-of-a-request",
        "a request has a limited size",
        (_DASH + "test_large_requests_are_refused",),
    ),
    Defence(
        "escaped-pages",
        "texts of the record are escaped",
        (_DASH + "test_hostile_names_are_text_everywhere",),
    ),
    Defence(
        "stream-of-own-runs",
        "a stream of updates is of a run that the role may see",
        (_DASH + "test_a_run_of_another_role_is_like_one_that_is_not_there",),
    ),
    Defence(
        "figures-of-own-runs",
        "figures are of a run that the role may see",
        (_DASH + "test_figures_that_are_kept_are_not_for_a_role_that_lost_the_run",),
    ),
    Defence(
        "feed-of-an-account",
        "that one role has seen a run says nothing of another role",
        (_DASH + "test_figures_are_kept_for_the_roles_that_may_see_the_run",),
    ),
    Defence(
        "commands-to-own-runs",
        "a command is for a run that the role may see",
        (_DASH + "test_a_command_to_a_run_of_another_role_is_refused",),
    ),
    Defence(
        "login-before-sharing",
        "a session at the server is shared after a login only",
        (_AT_LOGIN + "test_a_wrong_password_is_refused_like_an_unknown_role",),
    ),
    Defence(
        "wait-after-failures",
        "failed logins of a role slow down the next",
        (_AT_LOGIN + "test_failed_logins_slow_down_the_next",),
    ),
    Defence(
        "failures-of-an-address",
        "failed logins of all roles from one address have a limit",
        (_AT_LOGIN + "test_who_guesses_does_not_lock_out_others",),
    ),
    Defence(
        "failures-of-a-role",
        "failed logins of one role from all addresses have a limit",
        (_AT_LOGIN + "test_guesses_of_one_password_from_many_addresses_are_limited",),
    ),
    Defence(
        "known-addresses",
        "guesses elsewhere do not lock out a person where she has logged in",
        (_AT_LOGIN + "test_guesses_of_one_password_from_many_addresses_are_limited",),
    ),
    Defence(
        "failures-elsewhere",
        "guesses at one address do not lock out a person at another",
        (_AT_LOGIN + "test_who_guesses_does_not_lock_out_others",),
    ),
    Defence(
        "address-behind-a-proxy",
        "a browser does not choose the address that its failed logins count for",
        (_AT_LOGIN + "test_without_a_proxy_a_browser_does_not_choose_its_address",),
    ),
    Defence(
        "room-for-connections",
        "connections that wait give way to others",
        (_HOSTILE + "test_connections_that_wait_give_way_to_others",),
    ),
    Defence(
        "served-connections",
        "connections that are served are not ended for others",
        (_HOSTILE + "test_connections_that_are_served_are_not_ended_for_others",),
    ),
    Defence(
        "connections-of-an-address",
        "one address has a limited number of connections",
        (_HOSTILE + "test_one_address_leaves_room_for_others",),
    ),
    Defence(
        "time-of-a-request",
        "a request is complete within a time limit",
        (_HOSTILE + "test_a_request_is_complete_in_time_or_refused",),
    ),
    Defence(
        "time-of-a-response",
        "a browser that takes no response is dropped",
        (_HOSTILE + "test_a_browser_that_takes_nothing_is_dropped",),
    ),
    Defence(
        "time-of-the-last-response",
        "a browser that does not take the last response is dropped too",
        (_HOSTILE + "test_a_browser_that_does_not_take_the_last_response_is_dropped",),
    ),
    Defence(
        "headers-of-errors",
        "what is no request is refused with the headers of every response",
        (_HOSTILE + "test_what_is_no_request_is_refused_with_the_headers_of_every_response",),
    ),
    Defence(
        "one-length",
        "a request has one length",
        (_HOSTILE + "test_a_request_with_two_lengths_is_refused",),
    ),
    Defence(
        "broken-forms",
        "a form that is broken off is no error in the log",
        (_HOSTILE + "test_a_form_that_is_broken_off_is_no_error_of_ours",),
    ),
    Defence(
        "number-in-a-path",
        "the number of a run in a path has a limited length",
        (_HOSTILE + "test_a_run_with_a_number_that_none_can_have_is_not_there",),
    ),
    Defence(
        "number-in-a-form",
        "a number of a form is one",
        (_HOSTILE + "test_a_number_of_a_form_that_is_none_is_refused",),
    ),
    Defence(
        "number-in-a-notification",
        "a notification names a run or is ignored",
        (_HOSTILE + "test_only_numbers_of_runs_are_read_from_notifications",),
    ),
    Defence(
        "leaving-viewers",
        "a feed ends when nobody watches, though its first state is not there",
        (_HOSTILE + "test_a_feed_ends_though_its_viewers_left_before_its_first_state",),
    ),
    Defence(
        "role-that-left",
        "the sessions of a role that may no longer log in end at its next error",
        (_HOSTILE + "test_after_drop_role_the_answer_is_clear_at_once",),
    ),
    Defence(
        "words-of-a-failed-login",
        "a failed login is told in the same words whatever the reason is",
        (_AT_LOGIN + "test_a_wrong_password_is_refused_like_an_unknown_role",),
    ),
    Defence(
        "no-environment",
        "the environment of the live page logs nobody in",
        (_ENVIRONMENT,),
    ),
    Defence(
        "no-password-file",
        "the password file of the live page logs nobody in",
        (_AT_LOGIN + "test_a_password_file_of_our_home_logs_nobody_in",),
    ),
    Defence(
        "login-has-a-role",
        "a login has a role",
        (_ENVIRONMENT, _AT_LOGIN + "test_an_empty_role_is_not_our_operating_system_user"),
    ),
    Defence(
        "no-system-user",
        "logins that the operating system user of the live page won are refused",
        (_AT_LOGIN + "test_a_login_that_our_operating_system_user_won_is_refused",),
    ),
    Defence(
        "password-of-a-login",
        "the live page sends no password in plain text or by MD5",
        ("tests/security/test_impostor.py::"
         "test_an_impostor_in_the_place_of_the_live_pages_server_gets_no_password",),
    ),
    Defence(
        "no-login-by-socket",
        "nobody logs in by the socket, where the server would trust the live page's user",
        (_DSN, _AT_LOGIN + "test_without_a_host_it_does_not_log_in_by_the_socket"),
    ),
    Defence(
        "no-password-at-start",
        "the live page is started without a password",
        (_DSN, _AT_LOGIN + "test_another_address_needs_tls"),
    ),
    Defence(
        "tls",
        "passwords do not cross a network without TLS",
        (_AT_LOGIN + "test_another_address_needs_tls",),
    ),
    Defence(
        "own-pages-only",
        "the login leads to our own pages",
        (_DASH + "test_the_login_leads_to_our_pages_only",),
    ),
)
