"""Curricula: early in a training run, episodes come from a part of the mixture, later from more of it.

After Bengio et al., «Curriculum learning» (ICML 2009). The mixture is the set of all episodes that
`EpisodeConfig` allows. A stage defines how its episodes are restricted, and when it ends. After the last
stage, or if there are no stages, episodes come from the whole mixture.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rlsched_envs.training.sources import EpisodeConfig


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Restriction of the episodes in one part of a training run. A value of None: as in `EpisodeConfig`.

    Attributes:
        until_frac: Fraction of the run's decisions after which the stage ends.
        load_low: Lower bound of the offered load.
        load_high: Upper bound of the offered load.
        nodes_low: Lower bound of the number of nodes.
        nodes_high: Upper bound of the number of nodes; both bounds lie within `EpisodeConfig`.
        known_low: Lower bound of the correlation of drawn predictions with the true run times.
        known_high: Upper bound of that correlation.
        as_made_frac: Share of episodes that use the source's own predictions.
        sources: Factors on the weights of sources, by prefix of the source's name; 0: the source is not used.
    """

    until_frac: float
    load_low: float | None = None
    load_high: float | None = None
    nodes_low: int | None = None
    nodes_high: int | None = None
    known_low: float | None = None
    known_high: float | None = None
    as_made_frac: float | None = None
    sources: dict[str, float] = {}

    def narrowed(self, episode: EpisodeConfig) -> EpisodeConfig:
        """Return the configuration of episodes in this stage.

        Raises:
            ValueError: a range is empty, or exceeds the range of nodes.
        """
        fields = {name: getattr(self, name) for name in _NARROWED if getattr(self, name) is not None}
        found = msgspec.structs.replace(episode, **fields)
        if not 0 < found.load_low <= found.load_high:
            raise ValueError(
                f"expected 0 < load_low <= load_high, got {found.load_low:g} and {found.load_high:g}"
            )
        if not episode.nodes_low <= found.nodes_low <= found.nodes_high <= episode.nodes_high:
            raise ValueError(
                f"expected nodes_low <= nodes_high within episode.nodes_low {episode.nodes_low} and "
                f"episode.nodes_high {episode.nodes_high}, got {found.nodes_low} and {found.nodes_high}"
            )
        return found

    def factor(self, name: str) -> float:
        """Return the factor on the weight of a source: the value of the longest matching prefix of `name`."""
        fitting = [start for start in self.sources if name.startswith(start)]
        return self.sources[max(fitting, key=len)] if fitting else 1.0


_NARROWED = tuple(name for name in Stage.__struct_fields__ if name not in ("until_frac", "sources"))


def check_stages(stages: Sequence[Stage], episode: EpisodeConfig) -> None:
    """Check that the stages are in order, and that each stage is a part of the mixture.

    Raises:
        ValueError: a stage is out of order or does not fit; the message names the stage.
    """
    before = 0.0
    for number, stage in enumerate(stages, start=1):
        if not before < stage.until_frac <= 1.0:
            raise ValueError(
                f"curriculum, stage {number}: expected until_frac above {before:g} and at most 1, "
                f"got {stage.until_frac:g}"
            )
        if min(stage.sources.values(), default=0.0) < 0:
            raise ValueError(
                f"curriculum, stage {number}: expected weights of 0 or more, got {stage.sources}"
            )
        try:
            stage.narrowed(episode)
        except ValueError as error:
            raise ValueError(f"curriculum, stage {number}: {error}") from error
        before = stage.until_frac


def stage_at(stages: Sequence[Stage], progress_frac: float) -> int:
    """Return the index of the stage at this fraction of a run; `len(stages)` means the whole mixture."""
    return next((k for k, stage in enumerate(stages) if progress_frac < stage.until_frac), len(stages))
