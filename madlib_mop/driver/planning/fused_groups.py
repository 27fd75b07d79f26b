"""The fused groups of a run: models that are trained together in one graph, planned with the run; used by the hopper.

The run's plan keeps them, so whoever goes on with the run or repeats it has the same. To the scheduler a group is one
model, whose key is negative: -1 for the plan's first group.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from madlib_mop.catalog.rows.model import Model
from madlib_mop.catalog.rows.plan import FusedGroup, FusedPlan
from madlib_mop.driver.planning.run_data import Data
from madlib_mop.driver.planning.selection import Configuration
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.fusion import Candidate, Grouping, form_groups
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params
from madlib_mop.schedule import Visit

_KEYS_SHOWN = 5


class FusedGroups:
    """What the scheduler has for models, and which models each of these is.

    Parameters
    ----------
    plan : FusedPlan or None
        None where no models are trained together.
    """

    def __init__(self, plan: FusedPlan | None):
        groups = plan.groups if plan else ()
        self._all = [tuple(group.mst_keys) for group in groups]
        self._n_places = {-1 - number: group.n_places for number, group in enumerate(groups)}
        self._members: dict[int, tuple[int, ...]] = {}
        self._keys: dict[int, int] = {}
        self._dissolved = set(plan.dissolved if plan else ())
        for number, group in enumerate(self._all):
            if number not in self._dissolved:
                self._members[-1 - number] = group
                self._keys.update(dict.fromkeys(group, -1 - number))

    def members(self, key: int) -> tuple[int, ...]:
        """Return the mst_keys of what the scheduler has for a model."""
        return self._members.get(key, (key,))

    def places(self, key: int) -> tuple[int | None, ...]:
        """Return the mst_keys of a group by the places of its graph, and None for those that it does not fill."""
        members = self._members[key]
        return members + (None,) * (self._n_places[key] - len(members))

    def is_group(self, key: int) -> bool:
        """Return whether several models are trained under a key of the scheduler's."""
        return key in self._members

    def key_of(self, mst_key: int) -> int:
        """Return the scheduler's key of a model."""
        return self._keys.get(mst_key, mst_key)

    def dissolve(self, key: int) -> list[int]:
        """Let the members of a group be models of their own; give the numbers of all groups that were dissolved."""
        for mst_key in self._members.pop(key):
            del self._keys[mst_key]
        self._dissolved.add(-1 - key)
        return sorted(self._dissolved)

    def visits(self, recorded: Sequence[Visit]) -> list[Visit]:
        """Return recorded visits as the scheduler has to repeat them; members' own too, for they may be dissolved."""
        whole: dict[tuple[int, int, int], Visit] = {}
        for visit in recorded:
            key = self.key_of(visit.model)
            whole.setdefault((key, visit.epoch, visit.position), replace(visit, model=key))
        return [*whole.values(), *(visit for visit in recorded if self.key_of(visit.model) != visit.model)]

    def indices(self, models: Sequence[Model]) -> dict[int, int]:
        """Number what the scheduler has, by its key: in the order of the models' ordinals, the same at any time.

        Those that were members of a group come after all that there were at first.
        """
        if not self._all:
            return {m.mst_key: m.ordinal for m in models}
        first = {mst_key: -1 - number for number, group in enumerate(self._all) for mst_key in group}
        keys = dict.fromkeys(first.get(m.mst_key, m.mst_key) for m in models)
        places = {key: index for index, key in enumerate(keys)}
        indices = {}
        for m in models:
            key = self.key_of(m.mst_key)
            indices[key] = places[key] if key in places else len(places) + m.ordinal
        return indices


def plan_fused_groups(
    session: CallerSession, most: int, configurations: Sequence[Configuration], starts: Iterable[Hashable], data: Data
) -> FusedPlan | None:
    """Form the groups of a run and tell of them; return what its plan keeps of it.

    Parameters
    ----------
    session : CallerSession
    most : int
        Setting `fused_training`: how many models may be trained together; 0 if none.
    configurations : sequence of Configuration
    starts : iterable of hashable
        Of each configuration, what members of a group must have in common besides their shape.
    data : Data
    """
    if not most:
        return None
    reason = why_not(data)
    if reason:
        session.notice(f"fused training: not used, {reason}")
        return None
    architectures: dict[int, Node] = {}
    candidates = []
    for c, start in zip(configurations, starts, strict=True):
        if c.model_id not in architectures:
            architectures[c.model_id] = check_architecture(c.arch)
        candidates.append(
            Candidate(
                c.mst_key,
                architectures[c.model_id],
                parse_compile_params(c.compile_params, c.custom_names),
                parse_fit_params(c.fit_params),
                start,
            )
        )
    grouping = form_groups(candidates, most, len(data.source.shards))
    session.notice(f"fused training: {_told(grouping)}")
    groups = tuple(FusedGroup(list(group.keys), group.n_places) for group in grouping.groups)
    return FusedPlan(most, groups)


def why_not(data: Data) -> str | None:
    """Return why no models of a run may be fused; None if they may."""
    return data.source.limits.fused_training or ("it uses GPUs" if data.gpus else None)


def _told(grouping: Grouping) -> str:
    """Return how many groups there are, and which models train apart, and why."""
    n_fused = sum(len(group.keys) for group in grouping.groups)
    n_groups = len(grouping.groups)
    sentence = f"{n_fused} of {n_fused + len(grouping.apart)} configurations train in"
    sentence += f" {n_groups} group{'' if n_groups == 1 else 's'}"
    if not grouping.apart:
        return sentence
    reasons = Counter(grouping.apart.values())
    told = []
    for reason, n in reasons.most_common():
        keys = [key for key, why in grouping.apart.items() if why == reason]
        shown = ", ".join(map(str, keys[:_KEYS_SHOWN])) + (" ..." if n > _KEYS_SHOWN else "")
        told.append(f"{reason} (mst_key {shown})")
    return f"{sentence}, {len(grouping.apart)} separately: {'; '.join(told)}"
