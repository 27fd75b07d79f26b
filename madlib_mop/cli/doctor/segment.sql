-- Created by the doctor in its session of a cluster, and called by a query that runs it on a segment: returns the facts
-- that the segment's operating system user sees there, as JSON.
CREATE FUNCTION pg_temp.madlib_mop_segment(library text) RETURNS text LANGUAGE plpython3u VOLATILE AS $probe$
import json, os, pwd, subprocess, sys

facts = {"user": pwd.getpwuid(os.geteuid()).pw_name, "python": sys.version.split()[0]}
query = "select pg_catalog.current_setting('idle_session_timeout', true) as value"
facts["idle_session_timeout"] = plpy.execute(query)[0]["value"]
python = os.path.join(library, "venv", "bin", "python")
try:
    if not os.access(os.path.join(library, "backend", "mop_backend"), os.R_OK):
        raise OSError("%s/backend/mop_backend is missing or closed to that user" % library)
    sys.path.insert(0, os.path.join(library, "backend"))
    from mop_backend import machine
    found = machine.examine()
    facts["machine"] = {name: getattr(found, name) for name in type(found).__annotations__}
    done = subprocess.run([python, "-I", "-m", "madlib_mop.cli.cluster.versions"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", timeout=120,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, start_new_session=True)
    if done.returncode == 0:
        facts["versions"] = json.loads(done.stdout)
    else:
        facts["error"] = done.stderr.decode("utf-8", "replace").strip()[-500:] or "exit status %d" % done.returncode
except (ImportError, OSError, ValueError, subprocess.TimeoutExpired) as error:
    facts["error"] = str(error)
return json.dumps(facts)
$probe$
