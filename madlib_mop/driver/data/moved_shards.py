"""Shards that the engine has moved since a run was planned: a resumed run follows them; called by `resume`."""

from dataclasses import replace

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.plan import PackedData, ShardAccess
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.data.engine import engine_of_table
from madlib_mop.driver.data.packed import check_reachable
from madlib_mop.driver.session.call import Call
from madlib_mop.engines.base.interface import ShardPlace
from madlib_mop.errors import InvalidParameter

_TABLE = "the run's packed table"


def follow_shards(call: Call, record: Record, run: RunRow) -> None:
    """Update the locations of shards in a run's plan, if the engine moves shards itself, with a NOTICE.

    Raises
    ------
    MopError
        If a packed table was dropped, has different shards than in the plan, or one that the caller cannot reach.
    """
    moved: dict[str, PackedData] = {}
    messages = []
    for data_set, source in run.plan.data_sets.items():
        if all(shard.key is None for shard in source.segments):
            continue
        places = _places_now(call, source)
        segments = []
        for shard in source.segments:
            place = _in_plan(source, places[shard.segment_id]) if places else shard.place
            if place != shard.place:
                server = place and place.server
                messages.append(f"segment {shard.segment_id} of {source.table} is now at {server or 'here'}")
                record.set_segment(run.run_id, data_set, shard.segment_id, place=server)
            segments.append(replace(shard, place=place))
        moved[data_set] = replace(source, segments=tuple(segments))
    if messages:
        plan = replace(
            run.plan,
            training=moved.get("training", run.plan.training),
            validation=moved.get("validation", run.plan.validation),
        )
        plan = replace(plan, any_trainer=plan.any_trainer and plan.all_here)
        record.set_run(run.run_id, plan=plan)
        call.session.notice(f"run {run.run_id}: {'; '.join(messages)}")


def _places_now(call: Call, source: PackedData) -> dict[int, ShardPlace]:
    """Return the locations of a packed table's shards by segment; {} if the engine does not move shards."""
    session = call.session
    relation = session.relation(source.sql_name, _TABLE)
    engine = engine_of_table(session, relation)
    if not engine.moves_shards:
        return {}
    of_keys = engine.shard_keys(session, relation, _TABLE)
    for shard in source.segments:
        if shard.key is None or of_keys.get(shard.key) != shard.segment_id:
            raise InvalidParameter(
                f"{relation} was redistributed after the run was planned: segment {shard.segment_id} is no"
                " longer one of its shards",
                hint="Pack the table again, then start a new run with a warm start from this run's models.",
            )
    places = {of_keys[key]: place for key, place in engine.shard_places(session, relation).items()}
    check_reachable(session, relation, sorted({p.server for p in places.values() if p.server is not None}))
    return places


def _in_plan(source: PackedData, there: ShardPlace) -> ShardAccess | None:
    """Return a location for a plan; its query is that of the whole table, on the shard's table."""
    if there.server is None:
        return None
    head, _, tail = source.query.rpartition(f" FROM {source.sql_name} ")
    return ShardAccess(f"{head} FROM {there.table.sql} {tail}", there.server)
