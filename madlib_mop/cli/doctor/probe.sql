-- Run by the doctor as a superuser: collects facts that only the server's operating system user can see, and stores
-- them as JSON in the setting madlib_mop.doctor of this session.
DO LANGUAGE plpython3u $probe$
import json, os, re, subprocess, sys

facts = {"python": sys.version.split()[0]}

bodies = plpy.execute(r"""
    SELECT prosrc FROM pg_catalog.pg_proc JOIN pg_catalog.pg_depend AS member ON member.objid = pg_proc.oid
        JOIN pg_catalog.pg_extension AS extension ON extension.oid = member.refobjid
    WHERE member.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND member.deptype = 'e'
        AND extname = 'madlib_mop' AND prosrc LIKE '%sys.path.insert(0, "%/backend")%' LIMIT 1""")
if len(bodies):
    library = re.search(r'sys\.path\.insert\(0, "(.*)/backend"\)', bodies[0]["prosrc"])[1]
    python = os.path.join(library, "venv", "bin", "python")
    facts.update(library=library, interpreter=python, interpreter_exists=os.path.lexists(python),
        interpreter_runs=os.access(python, os.X_OK), backend_exists=os.access(os.path.join(library, "backend", "mop_backend"), os.R_OK))
    if facts["backend_exists"]:
        sys.path.insert(0, os.path.join(library, "backend"))
        try:
            from mop_backend import machine
            found = machine.examine()
            facts["machine"] = {name: getattr(found, name) for name in type(found).__annotations__}
        except ImportError:  # a library of an older version
            pass
    if facts["interpreter_runs"]:
        server = plpy.execute("""SELECT pg_catalog.current_setting('unix_socket_directories') AS sockets,
            pg_catalog.current_setting('port') AS port, pg_catalog.current_database() AS database""")[0]
        try:
            done = subprocess.run([python, "-I", "-m", "madlib_mop.cli.doctor.probe", server["sockets"], server["port"], server["database"]],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", timeout=120,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, start_new_session=True)
            if done.returncode == 0:
                facts["inside"] = json.loads(done.stdout)
            else:
                facts["inside_error"] = done.stderr.decode("utf-8", "replace").strip()[-500:] or "exit status %d" % done.returncode
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            facts["inside_error"] = str(error)

plpy.execute(plpy.prepare("SELECT pg_catalog.set_config('madlib_mop.doctor', $1, false)", ["text"]), [json.dumps(facts)])
$probe$;
