"""How a machine gets a key of its own: asked with a one-time key, see `rlsched keys`."""

import msgspec


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join", forbid_unknown_fields=True):
    """Let this key in, in the place of the one-time key that says so."""

    public: str
    """The public half of the new pair, z85."""


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag="joined"):
    """The key is on the access list, on disk; the one-time key is gone."""

    role: str
    name: str
    person: str
