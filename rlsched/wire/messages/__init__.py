"""Messages between client, broker and node: msgpack, tagged, one closed union for each direction.

Every frame is an `Envelope`: the protocol version, a request ID that the reply repeats (0: not a request),
and the message. A message about a rank (the part of a started job on one node) contains the job ID, the
attempt and the index of the rank.

    job_settings.py the settings of a submission, each declared once
    basic.py        messages that every client sends or receives: submissions, the serving broker, refusals
    client.py       all messages from client to broker
    replies.py      broker -> client; report.py and predictions.py contain the report of the broker's state
    forecasts.py    requests for forecasts of starts and ends, and the answers
    history.py      requests for running and finished jobs, and the answers
    node.py         node -> broker
    orders.py       broker -> node
    usage.py        usage of ranks, as measured by a node
    join.py         a machine's request for its own key
    frame.py        encoding
    answer.py       decoding of the answer that a client expects
    envelope.py     the union of all messages, and the decoder for them

A name is imported from its module on first use, because building all message classes takes a third of the
run time of `rlsched submit`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlsched.wire.messages.answer import decode_answer
    from rlsched.wire.messages.basic import (
        AttemptKey,
        OfRank,
        Refused,
        Serving,
        Submit,
        SubmitMany,
        Submitted,
        SubmittedMany,
        WhoServes,
    )
    from rlsched.wire.messages.client import (
        AdminOrder,
        Begin,
        Cancel,
        ClientRequest,
        DownNode,
        DrainNode,
        Hold,
        JobOrder,
        LaterBroker,
        ListAccounts,
        ListJobs,
        ListNodes,
        ListQuotas,
        NodeOrder,
        PartyKind,
        ReadJournal,
        ReadLog,
        Release,
        RemoveNode,
        Requeue,
        ResumeNode,
        SetMember,
        SetPolicy,
        SetQuota,
        Stats,
        Update,
        Why,
    )
    from rlsched.wire.messages.envelope import (
        Envelope,
        Message,
        decode,
    )
    from rlsched.wire.messages.forecasts import (
        DryRow,
        DryRun,
        DryRunAnswer,
        ForecastReport,
        ForecastScore,
        JobForecast,
    )
    from rlsched.wire.messages.frame import (
        MAX_MESSAGE_BYTES,
        PROTOCOL_VERSION,
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
        UsedSpan,
        WhichJobs,
    )
    from rlsched.wire.messages.job_settings import (
        NOTIFY_EVENTS,
        DependencyKind,
        DependsOn,
        Launcher,
        OpenMode,
        Priority,
        Share,
        Tasks,
    )
    from rlsched.wire.messages.join import (
        Join,
        Joined,
    )
    from rlsched.wire.messages.node import (
        END_REASONS,
        GPU_OUT_OF_MEMORY,
        HELD_TO,
        MPS,
        MPS_FAULT,
        MPS_NEIGHBOUR_FAULT,
        NOT_STARTED,
        OUT_OF_MEMORY,
        TIME_SLICING,
        AttemptReport,
        Capabilities,
        ClockHeld,
        Ended,
        GpuMemory,
        Heartbeat,
        Held,
        Hello,
        Holding,
        Launched,
        LaunchRefused,
        Leaving,
        LogData,
        NodeMessage,
        OfNode,
        OutputFailed,
        TimeLimited,
    )
    from rlsched.wire.messages.orders import (
        DEFAULT_GRACE_S,
        BrokerToNode,
        EndedAck,
        FetchLog,
        ForNode,
        HeartbeatAck,
        HoldClock,
        Kill,
        Launch,
        LimitTime,
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
        Accounts,
        ClientReply,
        Explanation,
        JobInfo,
        Jobs,
        JournalRows,
        LogChunk,
        Member,
        NodeInfo,
        Nodes,
        Ok,
        QuotaInfo,
        Quotas,
    )
    from rlsched.wire.messages.report import (
        DriftReport,
        GpusReport,
        GuardReport,
        JournalReport,
        OutsideReport,
        PowerLimitReport,
        PriceReport,
        QuestionsReport,
        RecordsReport,
        StatsReport,
        Timing,
    )
    from rlsched.wire.messages.usage import (
        Metered,
        ProfileFigure,
        RankMetered,
        RankUsage,
        SeenUsage,
    )

__all__ = [
    "DEFAULT_GRACE_S",
    "END_REASONS",
    "GPU_OUT_OF_MEMORY",
    "HELD_TO",
    "MAX_CLOCK_SKEW_S",
    "MAX_MESSAGE_BYTES",
    "MPS",
    "MPS_FAULT",
    "MPS_NEIGHBOUR_FAULT",
    "NOTIFY_EVENTS",
    "NOT_STARTED",
    "OUT_OF_MEMORY",
    "PROTOCOL_VERSION",
    "TIME_SLICING",
    "Accounts",
    "AdminOrder",
    "AttemptKey",
    "AttemptReport",
    "Begin",
    "BrokerToNode",
    "Cancel",
    "Capabilities",
    "ClientReply",
    "ClientRequest",
    "ClockHeld",
    "Cursor",
    "DependencyKind",
    "DependsOn",
    "DownNode",
    "DrainNode",
    "DriftReport",
    "DryRow",
    "DryRun",
    "DryRunAnswer",
    "Ended",
    "EndedAck",
    "Envelope",
    "Explanation",
    "FetchLog",
    "ForNode",
    "ForecastReport",
    "ForecastScore",
    "GpuMemory",
    "GpusReport",
    "GuardReport",
    "Heartbeat",
    "HeartbeatAck",
    "Held",
    "Hello",
    "History",
    "Hold",
    "HoldClock",
    "Holding",
    "JobForecast",
    "JobInfo",
    "JobOrder",
    "JobUsage",
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
    "Launcher",
    "Leaving",
    "LimitTime",
    "ListAccounts",
    "ListHistory",
    "ListJobs",
    "ListNodes",
    "ListQuotas",
    "ListUsage",
    "LogChunk",
    "LogData",
    "LongerScore",
    "Member",
    "Message",
    "Metered",
    "NodeInfo",
    "NodeMessage",
    "NodeOrder",
    "Nodes",
    "OfNode",
    "OfRank",
    "Ok",
    "OpenMode",
    "OutputFailed",
    "OutsideReport",
    "PartyKind",
    "PastJob",
    "PowerLimitReport",
    "PredictionReport",
    "PredictionScore",
    "PriceReport",
    "Priority",
    "ProfileFigure",
    "QuestionsReport",
    "QuotaInfo",
    "Quotas",
    "RankMetered",
    "RankUsage",
    "ReadJournal",
    "ReadLog",
    "RecentPredictions",
    "RecordsReport",
    "Refused",
    "Release",
    "RemoveNode",
    "Requeue",
    "ResumeNode",
    "SayHello",
    "SeenUsage",
    "Serving",
    "SetMember",
    "SetPolicy",
    "SetQuota",
    "Share",
    "Stats",
    "StatsReport",
    "Submit",
    "SubmitMany",
    "Submitted",
    "SubmittedMany",
    "Tasks",
    "TimeLimited",
    "Timing",
    "Update",
    "Usage",
    "UsedSpan",
    "Welcome",
    "WhichJobs",
    "WhoServes",
    "Why",
    "decode",
    "decode_answer",
    "encode",
]

_MODULES = (
    *(
        "basic",
        "job_settings",
        "frame",
        "answer",
        "client",
        "replies",
        "join",
        "forecasts",
        "history",
        "report",
        "predictions",
    ),
    *("usage", "node", "orders", "envelope"),
)
"""Modules, in the order in which `__getattr__` searches them for a name; modules for clients are first."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in __all__:
            for module in _MODULES:
                found = vars(import_module(f"{__name__}.{module}"))
                if name in found:
                    globals()[name] = found[name]
                    return found[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__
