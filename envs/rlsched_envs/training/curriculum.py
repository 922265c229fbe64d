"""A curriculum: episodes are drawn from a part of the mixture first, and from more of it as a run goes on.

After Bengio et al., «Curriculum learning» (ICML 2009). A stage says what differs from the mixture and until
when; behind the last one episodes are as `EpisodeConfig` has them. Without stages they always are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rlsched_envs.training.sources import EpisodeConfig


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What episodes are drawn from until a share of the run is over; None: as in `EpisodeConfig`.

    Attributes:
        until_frac: The stage ends when this share of the run's decisions has been taken.
        load_low: Offered load is drawn between this ...
        load_high: ... and this.
        nodes_low: Nodes are drawn between this ...
        nodes_high: ... and this; both within what `EpisodeConfig` allows.
        known_low: The correlation of drawn predictions with the true run times is drawn between this ...
        known_high: ... and this.
        as_made_frac: Share of episodes in which predictions are as they come.
        sources: By the beginning of a source's name: what its weight is multiplied by. 0 leaves it out.
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
        """Episodes of this stage.

        Raises:
            ValueError: a range is empty, or goes beyond the nodes that there are.
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
        """What the weight of a source is multiplied by: the longest beginning of its name says so."""
        fitting = [start for start in self.sources if name.startswith(start)]
        return self.sources[max(fitting, key=len)] if fitting else 1.0


_NARROWED = tuple(name for name in Stage.__struct_fields__ if name not in ("until_frac", "sources"))


def check_stages(stages: Sequence[Stage], episode: EpisodeConfig) -> None:
    """Find out whether stages follow each other and fit the mixture.

    Raises:
        ValueError: they do not; it says which.
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
    """Position of the stage at this share of a run; `len(stages)`: the whole mixture."""
    return next((k for k, stage in enumerate(stages) if progress_frac < stage.until_frac), len(stages))
