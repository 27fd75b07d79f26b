"""docs/greenplum.md is correct: its statements run in order, as a reader would run them."""

import re
import shutil
import subprocess

import pytest

from tests.helpers.greenplum import n_segments
from tests.helpers.pages import FENCE, text_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CREATE = "CREATE EXTENSION madlib_mop CASCADE;"  # the fixture has run it


def test_the_statements_of_the_page(greenplum):
    text = "\n".join(block[3] for block in FENCE.finditer(text_of("docs/greenplum.md")) if block[2] == "sql")
    assert text.count(CREATE) == 1
    analyst = f"analyst_{greenplum.name}"
    greenplum.connect(analyst).close()  # creates the role
    script = re.sub(r"\banalyst\b", analyst, text.replace(CREATE, ""))
    psql = [shutil.which("psql"), "-Xq", "-v", "ON_ERROR_STOP=1", "-d", greenplum.dsn()]
    done = subprocess.run(psql, input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    at = {segment for (segment,) in greenplum.rows("SELECT gp_segment_id FROM points_packed")}
    assert at == {*range(n_segments(greenplum))}
    assert greenplum.rows("SELECT DISTINCT status FROM point_models_info") == [("trained",)]
    assert greenplum.value("SELECT count(*) FROM predicted") == 600
    assert greenplum.value("SELECT has_schema_privilege(%s, 'madlib_mop', 'USAGE')", [analyst])
    assert re.search(r" predict_class \n-+\n(?: [0-2]\n){3}", done.stdout)
