"""The units of a run in which some models train together: their places, indices, recorded visits."""

from types import SimpleNamespace

import pytest
from mop_backend.keras_backends import BackendName

from madlib_mop.catalog.rows.plan import FusedGroup, FusedPlan
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.planning.fused_groups import FusedGroups, plan_fused_groups
from madlib_mop.errors import InvalidParameter
from madlib_mop.schedule import Unit, Visit
from tests.helpers.unit.rows import a_model

MODELS = [a_model(key, ordinal=ordinal) for ordinal, key in enumerate((10, 20, 30, 40, 50, 60))]


def planned(*groups, dissolved=()):
    groups = tuple(FusedGroup(list(keys), n_places) for keys, n_places in groups)
    return FusedGroups(FusedPlan(8, groups, tuple(dissolved)))


def test_without_groups_all_is_as_it_was():
    groups = FusedGroups(None)
    assert groups.indices(MODELS) == {(m.mst_key,): m.ordinal for m in MODELS}
    assert groups.unit_of(10) == groups.places((10,)) == (10,)
    visits = [Visit((10,), 0, 1, 1), Visit((20,), 1, 1, 1)]
    assert groups.visits(visits) == visits


def test_a_group_is_one_unit():
    first, second = (10, 40, 60), (20, 50)
    groups = planned((first, 3), (second, 3))
    assert groups.places(first) == first and groups.places(second) == (20, 50, None)
    assert [groups.unit_of(m.mst_key) for m in MODELS] == [first, second, (30,), first, second, first]
    assert groups.indices(MODELS) == {first: 0, second: 1, (30,): 2}


def test_models_that_commands_add_are_numbered_after_the_others():
    groups = planned(((10, 40), 2))
    added = [a_model(70, ordinal=6, command_id=1), a_model(80, ordinal=7, command_id=2)]
    assert groups.indices([*MODELS, *added]) == {
        (10, 40): 0, (20,): 1, (30,): 2, (50,): 3, (60,): 4, (70,): 11, (80,): 12
    }  # fmt: skip


def test_a_dissolved_group_leaves_the_others_numbers_alone():
    """Immediately, and in a driver that continues the run: the order of visits depends on the indices."""
    groups = planned(((10, 40), 2), ((20, 50), 2))
    before = groups.indices(MODELS)
    assert groups.dissolve((10, 40)) == [0]
    again = planned(((10, 40), 2), ((20, 50), 2), dissolved=[0])
    for after in (groups, again):
        indices = after.indices(MODELS)
        same = {unit: before[unit] for unit in ((20, 50), (30,), (60,))}
        assert indices == same | {(10,): 4, (40,): 7}
        assert after.unit_of(10) == after.places((10,)) == (10,)


def test_all_dissolved_groups_are_recorded():
    groups = planned(((10, 40), 2), ((20, 50), 2), ((30, 60), 2), dissolved=[1])
    assert groups.dissolve((30, 60)) == [1, 2]


def test_a_groups_recorded_visits_are_those_of_all_members():
    """Whichever of them failed; members' own visits remain, because the group may be dissolved."""
    groups = planned(((10, 20), 2))
    recorded = [Visit((10,), 0, 1, 1), Visit((20,), 0, 1, 1), Visit((20,), 1, 1, 2), Visit((30,), 1, 1, 1)]
    group = [Visit((10, 20), 0, 1, 1), Visit((10, 20), 1, 1, 2)]
    assert groups.visits(recorded) == [*group, recorded[3], *recorded[:3]]


@pytest.mark.parametrize("backend, most", [(BackendName.TORCH, 0), (BackendName.JAX, 8), (BackendName.TORCH, 8)])
def test_on_a_backend_that_cannot_train_models_together_only_their_call_is_refused(backend, most):
    """A search, and a run whose models may stop early, ask for no groups."""
    session = SimpleNamespace(notice=lambda sentence: None)
    source = SimpleNamespace(limits=SimpleNamespace(fused_training=None), shards=(0,))
    data = SimpleNamespace(gpus={}, source=source)
    if backend == BackendName.TORCH and most:
        with pytest.raises(InvalidParameter, match="fused_training is on, .* on the backend torch"):
            plan_fused_groups(session, most, backend, {}, [], data)
    else:
        plan = plan_fused_groups(session, most, backend, {}, [], data)
        assert plan == (FusedPlan(most, ()) if most else None)


def repeated(groups: FusedGroups, **progress: tuple[int, int]) -> list[Unit]:
    """Return the groups to dissolve after each model has made these visits, by ``m<key>``."""
    made = {key: progress.get(f"m{key}", (0, 0)) for key in (10, 20, 30)}
    return groups.repeated({key: a_model(key, epoch=e, position=p) for key, (e, p) in made.items()})


def test_a_replay_makes_visits_together_only_where_the_run_did():
    """Model 20 was stopped after its first visit, and resumed when the group was dissolved."""
    group = FusedGroup([10, 20, 30], 3, until=[[2, 1], [1, 1], [2, 1]], dissolves=True)
    groups = FusedGroups(FusedPlan(8, (group,)))
    unit, places = (10, 20, 30), [(0, 1, 1), (1, 1, 2), (1, 2, 1)]
    first = [Visit((key,), *places[0]) for key in unit]
    second, third = ([Visit((key,), *place) for key in (10, 30)] for place in places[1:])
    recorded = [*first, *second, *third, Visit((20,), 0, 1, 2), Visit((10,), 0, 2, 2)]
    assert groups.visits(recorded) == [*(Visit(unit, *place) for place in places), *recorded]
    assert [groups.joins(key, second[0]) for key in (10, 20, 30)] == [True, False, True]
    assert repeated(groups) == repeated(groups, m10=(1, 2), m20=(1, 1), m30=(1, 2)) == []
    assert repeated(groups, m10=(2, 1), m20=(1, 1), m30=(2, 1)) == [unit]
    groups.dissolve(unit)
    assert groups.joins(20, Visit((20,), 0, 1, 2)), "alone, it makes all that the record has"
    assert repeated(groups, m10=(2, 1), m20=(1, 1), m30=(2, 1)) == []


def test_a_group_of_a_replay_that_was_not_dissolved_stays():
    groups = FusedGroups(FusedPlan(8, (FusedGroup([10, 20, 30], 3, until=[[1, 2], [1, 1], [1, 2]]),)))
    assert repeated(groups, m10=(1, 2), m20=(1, 1), m30=(1, 2)) == []
    assert not groups.joins(20, Visit((10, 20, 30), 1, 1, 2))


@pytest.mark.parametrize("columns, is_unequal", [
    ({}, False), ({"last_epoch": 3}, True), ({"position": 1}, True), ({"epoch": 2}, True),
    ({"last_epoch": 3, "state": ModelState.STOPPED}, False), ({"epoch": 2, "state": ModelState.FAILED}, False),
    ({"state": ModelState.TRAINED}, False),
])  # fmt: skip
def test_members_with_other_visits_to_make_cannot_continue_together(columns, is_unequal):
    """The state of one can be behind if a driver has died; it has the same visits to make."""
    models = {10: a_model(10), 20: a_model(20, **columns), 30: a_model(30, last_epoch=7), 40: a_model(40, last_epoch=7)}
    assert planned(((10, 20), 2), ((30, 40), 2)).unequal(models) == [(10, 20)] * is_unequal
