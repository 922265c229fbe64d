"""Messages between client, broker and node: msgpack, tagged, one closed union a direction.

Every frame is an `Envelope`: the protocol version, a request number that the reply repeats (0: not a
request), and the message. The pair (job, attempt) is in every message about a started job, and rank and
node of a gang's member with it.

    client.py       client -> broker
    replies.py      broker -> client; report.py and predictions.py are the part that tells how it does
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
    LaterBroker,
    ListJobs,
    ListNodes,
    NodeOrder,
    OnLost,
    ReadJournal,
    ReadLog,
    RemoveNode,
    ResumeNode,
    SetPolicy,
    Stats,
    Submit,
    WhoServes,
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
    JournalRows,
    LogChunk,
    NodeInfo,
    Nodes,
    Ok,
    Refused,
    Serving,
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
    "HoldClock",
    "JobInfo",
    "Jobs",
    "Join",
    "Joined",
    "JournalReport",
    "JournalRows",
    "Kill",
    "LaterBroker",
    "Launch",
    "LaunchRefused",
    "Launched",
    "Leaving",
    "ListJobs",
    "ListNodes",
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
    "PredictionReport",
    "PredictionScore",
    "QuestionsReport",
    "ReadJournal",
    "ReadLog",
    "RecentPredictions",
    "RecordsReport",
    "Refused",
    "RemoveNode",
    "ResumeNode",
    "SayHello",
    "Serving",
    "SetPolicy",
    "Stats",
    "StatsReport",
    "Submit",
    "Submitted",
    "Timing",
    "Welcome",
    "WhoServes",
    "Why",
    "decode",
    "encode",
]
