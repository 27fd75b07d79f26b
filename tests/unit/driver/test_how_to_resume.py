"""An error in writing the tables of a trained run says how they are written later."""

import pytest

from madlib_mop.driver.outputs.tables import telling_how_to_resume
from madlib_mop.errors import DataDamaged, InsufficientPrivilege, ModelFailed, OutOfResources
from tests.helpers.unit.rows import a_plan, a_run

KEPT = "The models are trained; SELECT madlib_mop.resume(7); writes the tables."


@pytest.mark.parametrize(
    "hint, expected", [(None, KEPT), ("Free space.", f"Free space. {KEPT}"), (f"Wait. {KEPT}", f"Wait. {KEPT}")]
)
@pytest.mark.parametrize("kind", [InsufficientPrivilege, OutOfResources])
def test_whatever_the_error_the_statement_is_said(kind, hint, expected):
    with pytest.raises(kind) as caught, telling_how_to_resume(a_run(a_plan(), run_id=7)):
        raise kind("permission denied", hint=hint)
    assert caught.value.hint == expected


@pytest.mark.parametrize("kind", [ModelFailed, DataDamaged])
def test_a_failed_or_damaged_model_has_no_tables_to_write(kind):
    with pytest.raises(kind) as caught, telling_how_to_resume(a_run(a_plan(), run_id=7)):
        raise kind("no model is there")
    assert caught.value.hint is None
