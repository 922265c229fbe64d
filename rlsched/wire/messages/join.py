"""A machine's request for its own key, sent with a one-time key: see `rlsched keys`."""

import msgspec


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join", forbid_unknown_fields=True):
    """Accept this key, in place of the one-time key that signs the request."""

    public: str
    """The public half of the new pair, z85."""


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag="joined"):
    """The key is on the access list, on disk; the one-time key is no longer valid."""

    role: str
    name: str
    person: str
