"""What the scheduler has for models where some are trained together: keys, places, numbers, recorded visits."""

from madlib_mop.driver.planning.fused_groups import Stacks
from madlib_mop.schedule import Visit

MODELS = [{"mst_key": key, "ordinal": ordinal} for ordinal, key in enumerate((10, 20, 30, 40, 50, 60))]


def planned(*groups, dissolved=()):
    rows = [{"mst_keys": list(keys), "n_places": n_places} for keys, n_places in groups]
    return Stacks({"stacking": {"groups": rows, "dissolved": list(dissolved)}})


def test_without_groups_all_is_as_it_was():
    stacks = Stacks({})
    assert stacks.indices(MODELS) == {m["mst_key"]: m["ordinal"] for m in MODELS}
    assert stacks.members(10) == (10,) and stacks.key_of(10) == 10 and not stacks.is_group(10)
    visits = [Visit(10, 0, 1, 1), Visit(20, 1, 1, 1)]
    assert stacks.visits(visits) == visits


def test_a_group_is_one_model():
    stacks = planned(((10, 40, 60), 3), ((20, 50), 3))
    assert stacks.members(-1) == stacks.places(-1) == (10, 40, 60)
    assert stacks.members(-2) == (20, 50) and stacks.places(-2) == (20, 50, None)
    assert [stacks.key_of(m["mst_key"]) for m in MODELS] == [-1, -2, 30, -1, -2, -1]
    assert stacks.indices(MODELS) == {-1: 0, -2: 1, 30: 2}


def test_a_dissolved_group_leaves_the_others_numbers_alone():
    """At once, and in whoever goes on with the run: the order of visits is made of the numbers."""
    stacks = planned(((10, 40), 2), ((20, 50), 2))
    before = stacks.indices(MODELS)
    assert stacks.dissolve(-1) == [0]
    again = planned(((10, 40), 2), ((20, 50), 2), dissolved=[0])
    for after in (stacks, again):
        indices = after.indices(MODELS)
        assert indices == {-2: before[-2], 30: before[30], 60: before[60], 10: 4, 40: 7}
        assert after.members(10) == (10,) and not after.is_group(-1)


def test_a_groups_recorded_visits_are_those_of_all_members():
    """Whichever of them failed on the way; members' own stay, for the group may be dissolved."""
    stacks = planned(((10, 20), 2))
    recorded = [Visit(10, 0, 1, 1), Visit(20, 0, 1, 1), Visit(20, 1, 1, 2), Visit(30, 1, 1, 1)]
    group = [Visit(-1, 0, 1, 1), Visit(-1, 1, 1, 2)]
    assert stacks.visits(recorded) == [*group, recorded[3], *recorded[:3]]
