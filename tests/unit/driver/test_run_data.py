"""The plan of a run's data: whether each trainer keeps the rows of all segments, so that models stay with a trainer."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.plan import HopPlan, Plan, ShardAccess
from madlib_mop.driver.data import moved_shards
from madlib_mop.driver.planning.run_data import Data
from madlib_mop.engines.base.interface import ShardPlace
from madlib_mop.models.architecture import has_frozen_layers
from tests.helpers.unit.rows import a_plan, a_run, a_summary, packed

MIB = 1 << 20
ELSEWHERE = ShardAccess("SELECT", "host")


def table(*shard_bytes, **of_last):
    """Return a packed table with shards of so many bytes; ``of_last`` are fields of the last one."""
    found = packed([(segment, 10) for segment in range(len(shard_bytes))])
    sized = [replace(shard, n_bytes=n) for shard, n in zip(found.segments, shard_bytes, strict=True)]
    segments = (*sized[:-1], replace(sized[-1], **of_last))
    return SimpleNamespace(as_plan=lambda: replace(found, segments=segments), n_at_hosts={})


def plan_of(source, validation=None, cache_mb=256, gpus=None, may_stay=True, hops=None, direct_hops=False):
    """Return the plan of a run, which is the same after it was recorded."""
    settings = SimpleNamespace(
        trainer_start=dict, worker_host="127.0.0.1", host_wait_s=600, trainer_idle_s=120,
        shard_cache_bytes=cache_mb * MIB, direct_hops=direct_hops,
    )  # fmt: skip
    output = Relation("public", "models", 0, "r", False)
    data = Data(source, validation, gpus or {}, {})
    plan = data.plan(settings, output, may_stay=may_stay, hops=hops, summary=a_summary())
    assert Plan.from_json(plan.as_json()) == plan
    return plan


def planned(source, **options):
    """Return whether models stay with a trainer in the plan of a run."""
    return plan_of(source, **options).any_trainer


@pytest.mark.parametrize(
    "case, stays",
    [
        ({"source": table(10 * MIB, 10 * MIB)}, True),
        ({"source": table(32 * MIB, 32 * MIB)}, True),
        ({"source": table(32 * MIB, 32 * MIB + 1)}, False),
        ({"source": table(32 * MIB, 16 * MIB), "validation": table(8 * MIB, 9 * MIB)}, False),
        ({"source": table(32 * MIB, 16 * MIB), "validation": table(8 * MIB, 8 * MIB)}, True),
        ({"source": table(10 * MIB, 10 * MIB), "cache_mb": 19}, False),
        ({"source": table(10 * MIB, 10 * MIB), "cache_mb": 0}, False),
        ({"source": table(MIB, MIB, place=ELSEWHERE)}, False),
        ({"source": table(MIB, MIB, place=ShardAccess("SELECT", key=3))}, False),
        ({"source": table(MIB, MIB), "validation": table(MIB, MIB, place=ELSEWHERE)}, False),
        ({"source": table(MIB, MIB), "gpus": {0: 0, 1: 1}}, False),
        ({"source": table(MIB, MIB), "may_stay": False}, False),
    ],
)
def test_each_trainer_keeps_all_rows_if_they_are_few_and_here(case, stays):
    assert planned(**case) == stays


@pytest.mark.parametrize(
    "place, direct_hops, hops, is_planned",
    [
        (ELSEWHERE, True, HopPlan(3, 4), True),
        (ELSEWHERE, True, HopPlan(1), True),
        (ELSEWHERE, False, HopPlan(3, 4), False),  # by the setting
        (ELSEWHERE, True, None, False),  # model averaging, say
        (None, True, HopPlan(3, 4), False),  # there is no host
        (ShardAccess("SELECT", key=3), True, HopPlan(3, 4), False),  # Greenplum
    ],
)
def test_models_hop_from_host_to_host_with_the_copies_that_are_asked_for(place, direct_hops, hops, is_planned):
    plan = plan_of(table(MIB, MIB, place=place), hops=hops, direct_hops=direct_hops)
    assert plan.direct_hops == (hops if is_planned else None)


def test_a_plan_of_an_older_version_has_each_shard_in_its_own_trainer():
    written = a_plan(any_trainer=True).as_json()
    del written["any_trainer"]
    assert not Plan.from_json(written).any_trainer


@pytest.mark.parametrize("server, stays", [("node", False), (None, True)])
def test_models_stay_no_more_once_a_shard_has_moved_to_another_node(monkeypatch, server, stays):
    plan = a_plan(any_trainer=True)
    segments = tuple(replace(shard, key=shard.segment_id + 100) for shard in plan.training.segments)
    began_there = replace(segments[0], place=ELSEWHERE)
    plan = replace(plan, training=replace(plan.training, segments=(began_there, *segments[1:])))
    relation = Relation("public", "packed_100", 0, "r", False)
    places = {0: ShardPlace(server, relation), 1: ShardPlace(None, relation)}
    monkeypatch.setattr(moved_shards, "_places_now", lambda call, source: places)
    written = {}
    record = SimpleNamespace(
        set_segment=lambda *_, **__: None, set_run=lambda run_id, **columns: written.update(columns)
    )
    moved_shards.follow_shards(SimpleNamespace(session=SimpleNamespace(notice=str)), record, a_run(plan))
    assert written["plan"].any_trainer == stays


@pytest.mark.parametrize(
    "layers, is_frozen",
    [
        ([{"class_name": "Dense", "config": {"units": 1}}], False),
        ([{"class_name": "Dense", "config": {"units": 1, "trainable": True}}], False),
        ([{"class_name": "Dense", "config": {"units": 1, "trainable": False}}], True),
        ([{"class_name": "Functional", "config": {"layers": [{"config": {"trainable": False}}]}}], True),
    ],
)
def test_frozen_layers_are_found_at_any_depth(layers, is_frozen):
    assert has_frozen_layers({"class_name": "Sequential", "config": {"layers": layers}}) == is_frozen
