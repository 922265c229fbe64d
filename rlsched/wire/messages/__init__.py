"""Messages between client, broker and node: msgpack, tagged, one closed union a direction.

Every frame is an `Envelope`: the protocol version, a request number that the reply repeats (0: not a
request), and the message. The pair (job, attempt) is in every message about a started job, and rank and
node of a gang's member with it.

    client.py       client -> broker
    replies.py      broker -> client; report.py and predictions.py are the part that tells how it does
    history.py      what is asked and told of jobs that are over
    node.py         node -> broker
    orders.py       broker -> node
    join.py         how a machine gets a key of its own
    frame.py        the envelope, and to and from bytes
"""

from __future__ import annotations

from rlsched.wire.messages.client import (
    Cancel,
    ClientRequest,
    DrainNode,
    ListJobs,
    ListNodes,
    NodeOrder,
    OnLost,
    Priority,
    ReadLog,
    RemoveNode,
    ResumeNode,
    SetPolicy,
    Stats,
    Submit,
    Why,
)
from rlsched.wire.messages.frame import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    Envelope,
    Message,
    decode,
    encode,
)
from rlsched.wire.messages.history import (
    Cursor,
    History,
    JobUsage,
    ListHistory,
    ListUsage,
    PastJob,
    Usage,
    WhichJobs,
)
from rlsched.wire.messages.join import Join, Joined
from rlsched.wire.messages.node import (
    AttemptReport,
    ClockHeld,
    Ended,
    Heartbeat,
    Hello,
    Launched,
    LaunchRefused,
    Leaving,
    LogData,
    NodeMessage,
)
from rlsched.wire.messages.orders import (
    BrokerToNode,
    EndedAck,
    FetchLog,
    HeartbeatAck,
    HoldClock,
    Kill,
    Launch,
    SayHello,
    Welcome,
)
from rlsched.wire.messages.predictions import (
    LongerScore,
    PredictionReport,
    PredictionScore,
    RecentPredictions,
)
from rlsched.wire.messages.replies import (
    MAX_CLOCK_SKEW_S,
    ClientReply,
    Explanation,
    JobInfo,
    Jobs,
    LogChunk,
    NodeInfo,
    Nodes,
    Ok,
    Refused,
    Submitted,
)
from rlsched.wire.messages.report import (
    GpusReport,
    GuardReport,
    JournalReport,
    QuestionsReport,
    RecordsReport,
    StatsReport,
    Timing,
)

__all__ = [
    "MAX_CLOCK_SKEW_S",
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "AttemptReport",
    "BrokerToNode",
    "Cancel",
    "ClientReply",
    "ClientRequest",
    "ClockHeld",
    "Cursor",
    "DrainNode",
    "Ended",
    "EndedAck",
    "Envelope",
    "Explanation",
    "FetchLog",
    "GpusReport",
    "GuardReport",
    "Heartbeat",
    "HeartbeatAck",
    "Hello",
    "History",
    "HoldClock",
    "JobInfo",
    "JobUsage",
    "Jobs",
    "Join",
    "Joined",
    "JournalReport",
    "Kill",
    "Launch",
    "LaunchRefused",
    "Launched",
    "Leaving",
    "ListHistory",
    "ListJobs",
    "ListNodes",
    "ListUsage",
    "LogChunk",
    "LogData",
    "LongerScore",
    "Message",
    "NodeInfo",
    "NodeMessage",
    "NodeOrder",
    "Nodes",
    "Ok",
    "OnLost",
    "PastJob",
    "PredictionReport",
    "PredictionScore",
    "Priority",
    "QuestionsReport",
    "ReadLog",
    "RecentPredictions",
    "RecordsReport",
    "Refused",
    "RemoveNode",
    "ResumeNode",
    "SayHello",
    "SetPolicy",
    "Stats",
    "StatsReport",
    "Submit",
    "Submitted",
    "Timing",
    "Usage",
    "Welcome",
    "WhichJobs",
    "Why",
    "decode",
    "encode",
]
