"""A machine's request for its own key, sent with a one-time key; see `rlsched keys`."""

import msgspec


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join", forbid_unknown_fields=True):
    """Put this public key on the access list, in place of the one-time key with which the request is sent."""

    public: str
    """Public half of the machine's new key pair, z85."""


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag="joined"):
    """The answer to `Join`: the key is on the access list, stored on disk.

    The one-time key is no longer valid.
    """

    role: str
    name: str
    person: str
