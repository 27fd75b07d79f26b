"""The defences, in the format of ``defences.py``, of the live page."""

from tests.helpers.security.defence import Defence

_DASH, _AT_LOGIN = "tests/security/test_dash.py::", "tests/security/test_dash_logins.py::"
_APP, _GUARD, _SITE = "madlib_mop/dash/app.py", "madlib_mop/dash/guard.py", "madlib_mop/dash/site.py"
_LOGINS, _PAGES, _VERBS = "madlib_mop/dash/logins.py", "madlib_mop/dash/pages.py", "madlib_mop/dash/verbs.py"
_SESSIONS, _SETTINGS, _LIVE = "madlib_mop/dash/sessions.py", "madlib_mop/dash/settings.py", "madlib_mop/dash/live.py"
_ENVIRONMENT = _AT_LOGIN + "test_nothing_of_our_environment_logs_anybody_in"
_DSN = _AT_LOGIN + "test_a_dsn_with_a_secret_or_a_socket_is_refused"
_FORM = _DASH + "test_a_form_of_another_site_does_nothing"

DEFENCES_OF_DASH = (
    Defence(
        "a login begins a session with a cookie of its own",
        _PAGES,
        "        if before is not None:\n",
        "        if False:\n",
        (_DASH + "test_a_second_login_ends_the_session_before",),
    ),
    Defence(
        "no script reads the cookie of a session",
        _SITE,
        'response.set_cookie(name, value, path="/", httponly=True,',
        'response.set_cookie(name, value, path="/", httponly=False,',
        (_DASH + "test_the_cookie_is_for_the_server_and_this_site_only",),
    ),
    Defence(
        "a logout ends the session at the server",
        _PAGES,
        "        self._site.sessions.end(session)\n",
        "",
        (_DASH + "test_a_logout_ends_the_session",),
    ),
    Defence(
        "a session without requests ends",
        _SESSIONS,
        "now >= session.used_at + self._idle_s or",
        "False or",
        (_DASH + "test_a_session_ends_by_time",),
    ),
    Defence(
        "a session ends after some hours in any case",
        _SESSIONS,
        "or now >= session.began_at + self._longest_s",
        "or False",
        (_DASH + "test_a_session_ends_by_time",),
    ),
    Defence(
        "updates end with their session",
        _LIVE,
        "if not message or not self._site.sessions.is_alive(session):",
        "if not message:",
        (_DASH + "test_a_logout_ends_the_updates",),
    ),
    Defence(
        "a form has the token of its session",
        _SITE,
        '    if not same(form.pop("token", ""), session.token):\n',
        '    if form.pop("token", None) is None:\n',
        (_DASH + "test_a_command_needs_the_token_of_its_session",),
    ),
    Defence(
        "the form of the login is ours",
        _PAGES,
        'if not cookie or not same(form.get("token", ""), self._site.login_tokens.token(cookie)):',
        "if False:",
        (_DASH + "test_the_login_is_sent_by_our_form_only",),
    ),
    Defence(
        "a request that changes something comes from our origin",
        _GUARD,
        'if scope["method"] not in ("GET", "HEAD") and not self._is_same_origin(dict(headers), hosts[0]):',
        "if False:",
        (_FORM, _DASH + "test_a_form_without_an_origin_does_nothing"),
    ),
    Defence(
        "the browser's word on the site of a request counts",
        _GUARD,
        '        if site is not None and site != b"same-origin":\n            return False\n',
        "",
        (_FORM,),
    ),
    Defence(
        "a name of DNS that was rebound to us is not served",
        _GUARD,
        "if len(hosts) != 1 or hosts[0] not in self._hosts:",
        "if not hosts:",
        (_DASH + "test_another_name_in_the_header_host_is_refused",),
    ),
    Defence(
        "no other page shows ours in a frame",
        _GUARD,
        '    "X-Frame-Options": "DENY",\n',
        "",
        (_DASH + "test_every_response_has_the_headers_that_browsers_obey",),
    ),
    Defence(
        "browsers run the scripts of our files only",
        _GUARD,
        "default-src 'none'; script-src 'self'; style-src 'self'",
        "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self'",
        (_DASH + "test_every_response_has_the_headers_that_browsers_obey",),
    ),
    Defence(
        "no command is obeyed by GET",
        _APP,
        'Route("/runs/{run_id:int}/commands/{name}", verbs.command, methods=["POST"])',
        'Route("/runs/{run_id:int}/commands/{name}", verbs.command, methods=["POST", "GET"])',
        (_DASH + "test_no_verb_is_obeyed_by_get",),
    ),
    Defence(
        "a request has a limited size",
        _GUARD,
        "        if n_bytes > MAX_BODY_BYTES:\n",
        "        if False:\n",
        (_DASH + "test_large_requests_are_refused",),
    ),
    Defence(
        "texts of the record are escaped",
        "madlib_mop/dash/parts.py",
        "autoescape=True",
        "autoescape=False",
        (_DASH + "test_hostile_names_are_text_everywhere",),
    ),
    Defence(
        "a stream of updates is of a run that the role may see",
        _LIVE,
        "        session, run_id = self._site.session_of(request, False), run_id_of(request)\n"
        "        await self._check(session, run_id)\n\n        def look(",
        "        session, run_id = self._site.session_of(request, False), run_id_of(request)\n\n        def look(",
        (_DASH + "test_a_run_of_another_role_is_like_one_that_is_not_there",),
    ),
    Defence(
        "figures are of a run that the role may see",
        _LIVE,
        "        if not self._site.feeds.shows(session.account, run_id):\n"
        "            await self._check(session, run_id)\n",
        "",
        (_DASH + "test_figures_that_are_kept_are_not_for_a_role_that_lost_the_run",),
    ),
    Defence(
        "that one role has seen a run says nothing of another role",
        "madlib_mop/dash/feeds.py",
        "        feed = self._feeds.get((account, run_id))\n",
        "        feed = next((one for (_, number), one in self._feeds.items() if number == run_id), None)\n",
        (_DASH + "test_figures_are_kept_for_the_roles_that_may_see_the_run",),
    ),
    Defence(
        "a command is for a run that the role may see",
        _VERBS,
        "        if status is None:\n            raise HTTPException(404)\n",
        "",
        (_DASH + "test_a_command_to_a_run_of_another_role_is_refused",),
    ),
    Defence(
        "a session at the server is shared after a login only",
        "madlib_mop/dash/accounts.py",
        "proof, role_oid = await to_thread.run_sync(_prove, self._server, role, password)",
        "for known in self.live():\n            if known.role == role:\n                return known\n"
        "        proof, role_oid = await to_thread.run_sync(_prove, self._server, role, password)",
        (_AT_LOGIN + "test_a_wrong_password_is_refused_like_an_unknown_role",),
    ),
    Defence(
        "failed logins of a role slow down the next",
        _LOGINS,
        "now < last + wait_s",
        "False",
        (_AT_LOGIN + "test_failed_logins_slow_down_the_next",),
    ),
    Defence(
        "failed logins of all roles have a limit",
        _LOGINS,
        "if len(self._all) >= self._per_minute or",
        "if",
        (_AT_LOGIN + "test_the_wait_after_failures_grows_and_all_roles_share_a_limit",),
    ),
    Defence(
        "a failed login is told in the same words whatever the reason is",
        _PAGES,
        "        except LoginFailed:\n",
        "        except LoginFailed as failure:\n"
        "            return self._form(request, goes_to, role, str(failure), 403)\n"
        "        except ZeroDivisionError:\n",
        (_AT_LOGIN + "test_a_wrong_password_is_refused_like_an_unknown_role",),
    ),
    Defence(
        "the environment of the live page logs nobody in",
        _LOGINS,
        "    forget_environment()\n    options",
        "    options",
        (_ENVIRONMENT,),
    ),
    Defence(
        "the password file of the live page logs nobody in",
        _LOGINS,
        '    "passfile": _NO_FILE, "sslcert"',
        '    "sslcert"',
        (_AT_LOGIN + "test_a_password_file_of_our_home_logs_nobody_in",),
    ),
    Defence(
        "a login has a role",
        _LOGINS,
        'if not role or "\\0" in',
        'if "\\0" in',
        (_ENVIRONMENT, _AT_LOGIN + "test_an_empty_role_is_not_our_operating_system_user"),
    ),
    Defence(
        "logins that the operating system user of the live page won are refused",
        _LOGINS,
        "    return system_user is None\n",
        "    return True\n",
        (_AT_LOGIN + "test_a_login_that_our_operating_system_user_won_is_refused",),
    ),
    Defence(
        "the live page sends no password in plain text or by MD5",
        _LOGINS,
        '    words |= passwords.protecting(words, pq.version(), never=("gss", "sspi"))\n',
        "",
        ("tests/security/test_impostor.py::"
         "test_an_impostor_in_the_place_of_the_live_pages_server_gets_no_password",),
    ),
    Defence(
        "nobody logs in by the socket, where the server would trust the live page's user",
        _SETTINGS,
        """if not host.strip() or host.strip()[0] in "/@":""",
        "if False:",
        (_DSN, _AT_LOGIN + "test_without_a_host_it_does_not_log_in_by_the_socket"),
    ),
    Defence(
        "the live page is started without a password",
        _SETTINGS,
        "for name in sorted(given.keys() - _KEYWORDS, key=lambda name: name not in _SECRETS):",
        "for name in ():",
        (_DSN, _AT_LOGIN + "test_another_address_needs_tls"),
    ),
    Defence(
        "passwords do not cross a network without TLS",
        _SETTINGS,
        "if self.tls_cert is None and not is_loopback(self.host):",
        "if False:",
        (_AT_LOGIN + "test_another_address_needs_tls",),
    ),
    Defence(
        "the login leads to our own pages",
        _SITE,
        'return path if _NEXT.fullmatch(path) else "/"',
        "return path",
        (_DASH + "test_the_login_leads_to_our_pages_only",),
    ),
)
