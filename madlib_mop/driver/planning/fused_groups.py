"""The fused groups of a run: models that train together in one graph, planned with the run; used by the hopper.

They are part of the run's plan, so a resumed or replayed run has the same groups. For the scheduler, a group is one
model with a negative key: -1 for the plan's first group. In a replay, each member makes only the visits in its group
that the record has; then the group is dissolved, if its members made other visits.
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
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.fusion import FusionCandidate, Grouping, form_groups
from madlib_mop.models.keras_layers import Node
from madlib_mop.schedule import Visit

_KEYS_SHOWN = 5


class FusedGroups:
    """Maps the scheduler's models to the run's models.

    Parameters
    ----------
    plan : FusedPlan or None
        None if no models are fused.
    """

    def __init__(self, plan: FusedPlan | None):
        groups = plan.groups if plan else ()
        self._all = [tuple(group.mst_keys) for group in groups]
        self._n_places = {-1 - number: group.n_places for number, group in enumerate(groups)}
        self._members: dict[int, tuple[int, ...]] = {}
        self._keys: dict[int, int] = {}
        self._dissolved = set(plan.dissolved if plan else ())
        self._dissolves = {-1 - number for number, group in enumerate(groups) if group.dissolves}
        self._until: dict[int, tuple[int, ...]] = {}
        for planned in groups:
            if planned.until is not None:
                self._until.update(zip(planned.mst_keys, map(tuple, planned.until), strict=True))
        for number, group in enumerate(self._all):
            if number not in self._dissolved:
                self._members[-1 - number] = group
                self._keys.update(dict.fromkeys(group, -1 - number))

    def members(self, key: int) -> tuple[int, ...]:
        """Return the mst_keys of one of the scheduler's models."""
        return self._members.get(key, (key,))

    def places(self, key: int) -> tuple[int | None, ...]:
        """Return the mst_keys of one of the scheduler's models by the places of its graph; None for an unused place."""
        members = self.members(key)
        return members + (None,) * (self._n_places[key] - len(members) if self.is_group(key) else 0)

    def is_group(self, key: int) -> bool:
        """Return whether a key of the scheduler stands for several models."""
        return key in self._members

    def key_of(self, mst_key: int) -> int:
        """Return the scheduler's key of a model."""
        return self._keys.get(mst_key, mst_key)

    def dissolve(self, key: int) -> list[int]:
        """Make the members of a group separate models; return the numbers of all dissolved groups."""
        for mst_key in self._members.pop(key):
            del self._keys[mst_key]
        self._dissolved.add(-1 - key)
        return sorted(self._dissolved)

    def joins(self, mst_key: int, visit: Visit) -> bool:
        """Return whether a member that is alive makes a visit of its group; in a replay, only if the record says so."""
        until = self._until.get(mst_key)
        return until is None or (visit.epoch, visit.position) <= until

    def repeated(self, models: Mapping[int, ModelRow]) -> list[int]:
        """Return the groups of a replay that have made their visits and have to be dissolved."""
        groups = []
        for key in sorted(self._dissolves & self._members.keys()):
            alive = [models[mst_key] for mst_key in self._members[key] if models[mst_key].is_alive]
            if alive and all((m.epoch, m.position) >= self._until[m.mst_key] for m in alive):
                groups.append(key)
        return groups

    def unequal(self, models: Mapping[int, ModelRow]) -> list[int]:
        """Return the groups whose members cannot continue together: those that are alive have other visits to make."""
        groups = []
        for key, members in self._members.items():
            alive = [models[mst_key] for mst_key in members if models[mst_key].is_alive]
            if len({(m.epoch, m.position, m.last_epoch) for m in alive}) > 1:
                groups.append(key)
        return groups

    def visits(self, recorded: Sequence[Visit]) -> list[Visit]:
        """Return recorded visits for the scheduler to repeat, including those of members, whose group may be
        dissolved."""
        whole: dict[tuple[int, int, int], Visit] = {}
        for visit in recorded:
            key = self.key_of(visit.model)
            if key == visit.model or self.joins(visit.model, visit):
                whole.setdefault((key, visit.epoch, visit.position), replace(visit, model=key))
        return [*whole.values(), *(visit for visit in recorded if self.key_of(visit.model) != visit.model)]

    def indices(self, models: Sequence[ModelRow]) -> dict[int, int]:
        """Number the scheduler's models by key, in the order of the models' ordinals; the numbers never change.

        Former members of a group and models that commands added come after all initial ones.
        """
        if not self._all:
            return {m.mst_key: m.ordinal for m in models}
        first = {mst_key: -1 - number for number, group in enumerate(self._all) for mst_key in group}
        keys = dict.fromkeys(first.get(m.mst_key, m.mst_key) for m in models if m.command_id is None)
        places = {key: index for index, key in enumerate(keys)}
        indices = {}
        for m in models:
            key = self.key_of(m.mst_key)
            indices[key] = places[key] if key in places else len(places) + m.ordinal
        return indices


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
    architectures: dict[int, Node] = {}
    candidates = []
    for (mst_key, c), start in zip(configurations.items(), starts, strict=True):
        if c.model_id not in architectures:
            architectures[c.model_id] = check_architecture(c.arch)
        candidates.append(FusionCandidate(mst_key, replace(c, arch=architectures[c.model_id]), start))
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
