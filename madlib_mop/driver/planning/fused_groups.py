"""The fused groups of a run: models that train together in one graph, planned with the run.

They are part of the run's plan, so a resumed or replayed run has the same groups. The scheduler plans units: a group,
until it is dissolved, or a model that trains alone. In a replay, each member makes only the visits in its group that
the record has; then the group is dissolved, if its members made other visits.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from mop_backend.keras_backends import FACTS, BackendName

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import FusedGroup, FusedPlan
from madlib_mop.driver.planning.run_data import Data
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.fusion import FusionCandidate, Grouping, form_groups
from madlib_mop.schedule import Unit, Visit

_KEYS_SHOWN = 5


class FusedGroups:
    """Says which models of a run train in one unit.

    Parameters
    ----------
    plan : FusedPlan or None
        None if no models are fused.
    """

    def __init__(self, plan: FusedPlan | None):
        planned = plan.groups if plan is not None else ()
        self._planned: list[Unit] = [tuple(group.mst_keys) for group in planned]
        self._dissolved = set(plan.dissolved if plan is not None else ())
        groups = zip(self._planned, planned, strict=True)
        # those that are not dissolved
        self._groups = {unit: group for n, (unit, group) in enumerate(groups) if n not in self._dissolved}
        self._units = {mst_key: unit for unit in self._groups for mst_key in unit}
        self._until: dict[int, tuple[int, ...]] = {}
        for group in self._groups.values():
            if group.until is not None:
                self._until.update(zip(group.mst_keys, map(tuple, group.until), strict=True))

    def unit_of(self, mst_key: int) -> Unit:
        """Return the unit in which a model trains."""
        return self._units.get(mst_key, (mst_key,))

    def places(self, unit: Unit) -> tuple[int | None, ...]:
        """Return a unit's mst_keys by the places of its graph; None for an unused place."""
        group = self._groups.get(unit)
        return unit if group is None else unit + (None,) * (group.n_places - len(unit))

    def dissolve(self, unit: Unit) -> list[int]:
        """Let each model of a group be a unit; return the numbers of all dissolved groups."""
        del self._groups[unit]
        for mst_key in unit:
            del self._units[mst_key]
            self._until.pop(mst_key, None)
        self._dissolved.add(self._planned.index(unit))
        return sorted(self._dissolved)

    def joins(self, mst_key: int, visit: Visit) -> bool:
        """Return whether a model that is alive makes a visit of its unit; in a replay, only if the record says so."""
        until = self._until.get(mst_key)
        return until is None or (visit.epoch, visit.position) <= until

    def repeated(self, models: Mapping[int, ModelRow]) -> list[Unit]:
        """Return the groups of a replay that have made their visits and have to be dissolved."""
        units = []
        for unit in (unit for unit, group in self._groups.items() if group.dissolves):
            alive = [models[mst_key] for mst_key in unit if models[mst_key].is_alive]
            if alive and all((m.epoch, m.position) >= self._until[m.mst_key] for m in alive):
                units.append(unit)
        return units

    def unequal(self, models: Mapping[int, ModelRow]) -> list[Unit]:
        """Return the groups whose members cannot continue together: those that are alive have other visits to make."""
        units = []
        for unit in self._groups:
            alive = [models[mst_key] for mst_key in unit if models[mst_key].is_alive]
            if len({(m.epoch, m.position, m.last_epoch) for m in alive}) > 1:
                units.append(unit)
        return units

    def visits(self, recorded: Sequence[Visit]) -> list[Visit]:
        """Return recorded visits, each of one model, for the scheduler to repeat: those of groups, and those of their
        members too, because a group may be dissolved."""
        whole: dict[tuple[Unit, int, int], Visit] = {}
        separate = []
        for visit in recorded:
            (mst_key,) = visit.unit
            unit = self.unit_of(mst_key)
            if self.joins(mst_key, visit):
                whole.setdefault((unit, visit.epoch, visit.position), replace(visit, unit=unit))
            if unit != visit.unit:
                separate.append(visit)
        return [*whole.values(), *separate]

    def indices(self, models: Sequence[ModelRow]) -> dict[Unit, int]:
        """Number the units in the order of the models' ordinals; the numbers never change.

        Former members of a group and models that commands added come after all initial ones.
        """
        if not self._planned:
            return {(m.mst_key,): m.ordinal for m in models}
        planned = {mst_key: unit for unit in self._planned for mst_key in unit}
        first = dict.fromkeys(planned.get(m.mst_key, (m.mst_key,)) for m in models if m.command_id is None)
        numbers = {unit: number for number, unit in enumerate(first)}
        units = {self.unit_of(m.mst_key): m.ordinal for m in models}
        return {unit: numbers.get(unit, len(numbers) + ordinal) for unit, ordinal in units.items()}


def plan_fused_groups(
    session: CallerSession,
    most: int,
    backend: BackendName,
    configurations: Mapping[int, Configuration],
    starts: Iterable[Hashable],
    data: Data,
) -> FusedPlan | None:
    """Form the groups of a run, with a NOTICE; return them for the plan.

    Parameters
    ----------
    session : CallerSession
    most : int
        Setting `fused_training`: the maximum number of models in a group; 0 if none.
    backend : BackendName
    configurations : mapping of int to Configuration
        By mst_key.
    starts : iterable of hashable
        For each configuration, what members of a group must share besides their shape.
    data : Data

    Raises
    ------
    InvalidParameter
        If the backend trains no models together.
    """
    if not most:
        return None
    reason = why_not(data)
    if reason:
        session.notice(f"fused training: not used, {reason}")
        return None
    if not FACTS[backend].trains_together:
        raise InvalidParameter(
            f"setting madlib_mop.fused_training is on, but models are not trained together on the backend {backend}",
            hint="SET madlib_mop.fused_training = off; or RESET madlib_mop.backend;",
        )
    pairs = zip(configurations.items(), starts, strict=True)
    candidates = [FusionCandidate(mst_key, c, start) for (mst_key, c), start in pairs]
    grouping = form_groups(candidates, most, len(data.source.shards))
    session.notice(f"fused training: {_grouping_text(grouping)}")
    groups = tuple(FusedGroup(list(group.keys), group.n_places) for group in grouping.groups)
    return FusedPlan(most, groups)


def why_not(data: Data) -> str | None:
    """Return why models of a run cannot be fused, or None."""
    return data.source.limits.fused_training or ("it uses GPUs" if data.gpus else None)


def _grouping_text(grouping: Grouping) -> str:
    """Return the number of groups, and the models that train separately, with the reasons."""
    n_fused = sum(len(group.keys) for group in grouping.groups)
    n_groups = len(grouping.groups)
    sentence = f"{n_fused} of {n_fused + len(grouping.separate)} configurations train in"
    sentence += f" {n_groups} group{'' if n_groups == 1 else 's'}"
    if not grouping.separate:
        return sentence
    reasons = Counter(grouping.separate.values())
    parts = []
    for reason, n in reasons.most_common():
        keys = [key for key, why in grouping.separate.items() if why == reason]
        shown = ", ".join(map(str, keys[:_KEYS_SHOWN])) + (" ..." if n > _KEYS_SHOWN else "")
        parts.append(f"{reason} (mst_key {shown})")
    return f"{sentence}, {len(grouping.separate)} separately: {'; '.join(parts)}"
