"""Profiles of workloads like Helios, Philly, ITP and Acme: values fitted to traces, and assumed values.

`studies/workload/fit_synth.py` computes the fitted values from the training part (the first 70 % of the time)
of these traces:

* helios: Helios, cluster Venus, SenseTime 2020 (Hu et al., SC'21; CC-BY-4.0);
* philly: Philly, Microsoft 2017 (Jeon et al., ATC'19; CC-BY-4.0), all virtual clusters together;
* itp: Microsoft ITP 2021, clusters 01, 05, 07 and 08 (Gu et al., ElasticFlow, ASPLOS'23; MIT).

Durations are clipped at 7 days. The traces have no users, job names, cores or status: the values for these
fields are ASSUMED.

acme is an LLM cluster, Kalos of Shanghai AI Laboratory, 2023 (Hu et al., NSDI'24). The profile matches
published statistics; it is not fitted to a trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# fmt: off
DURATION_PROBABILITIES = (
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0,
)
# fmt: on
"""Probabilities for which a profile gives the quantiles of the duration."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One kind of workload.

    A burst is a sequence of similar jobs of one user, submitted shortly one after another. A size class
    contains the jobs from its minimum number of GPUs up to the next class; the minimum is its key in dicts.

    Attributes:
        gpus: GPUs per job -> fraction of the bursts (fitted).
        durations: Size class -> durations at `DURATION_PROBABILITIES`, seconds (fitted).
        bursts: Size class -> (jobs per burst -> fraction of the bursts) (fitted).
        hours: Rate of burst starts in each hour of the day, relative to the mean; hour 0 begins at the
            trace's origin (fitted).
        weekdays: Rate of burst starts on each day of the week, relative to the mean (fitted).
        day_sigma: Standard deviation of ln(burst starts per day), without the weekly rhythm (fitted).
        day_correlation: Correlation of ln(burst starts per day) between successive days, without the weekly
            rhythm (fitted).
        burst_gap_s: Mean time between successive submissions of a burst, seconds (fitted).
        burst_correlation: Correlation of the normal scores of durations within a burst (fitted).
        name_correlation: Part of `burst_correlation` that is common to all jobs with the same user and name
            (assumed: the QSSF scheduler of Helios predicts from a user's jobs with similar names, Hu et al.,
            SC'21, section 4.2).
        users: Number of users (assumed).
        names_per_user: Number of job names that each user has for each number of GPUs (assumed: in Alibaba
            PAI about 65 % of the tasks run at least five times, Weng et al., NSDI'22).
        user_exponent: A user's number of bursts is proportional to rank ** -exponent. Rank 1 is the user with
            the most bursts (assumed: a few users own most of the GPU time, Hu et al., SC'21, section
            3.3).
        statuses: Status -> fraction of the jobs (assumed to be independent of the duration).
        cpus_per_gpu: CPU cores of a job, per GPU (assumed: the node's cores divided by its GPUs).
        gpu_type: GPU model of the cluster.
        workloads: Size class -> (workload of the catalogue -> fraction of the bursts); {}: jobs name no
            workload.
    """

    gpus: dict[int, float]
    durations: dict[int, tuple[int, ...]]
    bursts: dict[int, dict[int, float]]
    hours: tuple[float, ...]
    weekdays: tuple[float, ...]
    day_sigma: float
    day_correlation: float
    burst_gap_s: float
    burst_correlation: float
    name_correlation: float
    users: int
    names_per_user: int
    user_exponent: float
    statuses: dict[str, float]
    cpus_per_gpu: int
    gpu_type: str
    workloads: dict[int, dict[str, float]] = field(default_factory=dict)


# fmt: off
HELIOS = Profile(
    gpus={
        1: 0.42285, 2: 0.05917, 3: 0.00189, 4: 0.09669, 5: 0.00088, 6: 0.00191, 7: 0.00269, 8: 0.27146,
        16: 0.06849, 24: 0.01702, 32: 0.03072, 40: 0.00457, 48: 0.00525, 56: 0.00294, 64: 0.00171,
        72: 0.00116, 80: 0.00229, 88: 0.00053, 104: 0.00116, 112: 0.00075, 120: 0.00194, 128: 0.00153,
        144: 0.00068, 152: 0.00073, 160: 0.00101,
    },
    durations={
        1: (
            1, 1, 4, 13, 45, 91, 153, 258, 580, 1660, 3506, 7852, 17041, 39422, 100841, 172800, 172800,
            172800,
        ),
        2: (
            1, 1, 6, 18, 51, 103, 154, 248, 616, 1527, 10922, 34241, 83059, 172800, 172800, 172800, 172800,
            172800,
        ),
        4: (
            1, 1, 4, 13, 47, 81, 116, 176, 375, 1110, 6793, 18432, 42856, 102704, 172800, 172800, 172800,
            172800,
        ),
        8: (
            1, 1, 9, 26, 70, 121, 155, 185, 237, 467, 1726, 4696, 19269, 55767, 142026, 172800, 172800,
            172800,
        ),
        9: (
            1, 1, 6, 18, 68, 162, 246, 382, 848, 4286, 16941, 31223, 57608, 107665, 172800, 172800, 172800,
            172800,
        ),
        17: (
            1, 1, 5, 10, 20, 52, 116, 210, 334, 579, 2180, 7822, 33811, 108803, 172800, 172800, 172800,
            172800,
        ),
    },
    bursts={
        1: {
            1: 0.69007, 2: 0.16929, 3: 0.05796, 4: 0.02948, 5: 0.02277, 8: 0.01587, 11: 0.00618,
            18: 0.00612, 33: 0.00125, 47: 0.00071, 77: 0.0003,
        },
        2: {1: 0.88678, 2: 0.08604, 3: 0.01688, 4: 0.007, 6: 0.00082, 8: 0.00247},
        4: {1: 0.84379, 2: 0.12202, 3: 0.02386, 4: 0.0059, 5: 0.00246, 8: 0.00172, 10: 0.00025},
        8: {
            1: 0.76685, 2: 0.15722, 3: 0.04398, 4: 0.0175, 5: 0.00843, 8: 0.00324, 11: 0.00046, 18: 0.00074,
            32: 9e-05, 120: 0.00148,
        },
        9: {1: 0.87605, 2: 0.09204, 3: 0.02127, 4: 0.00477, 6: 0.00293, 8: 0.0011, 11: 0.0011, 18: 0.00073},
        17: {1: 0.8693, 2: 0.10942, 3: 0.0152, 4: 0.0027, 6: 0.00169, 8: 0.00101, 32: 0.00068},
    },
    hours=(
        0.3, 0.21, 0.2, 0.22, 0.48, 0.88, 1.33, 1.43, 1.09, 1.31, 1.41, 1.5, 1.64, 1.67, 1.37, 1.33, 1.42,
        1.38, 1.25, 1.16, 1.01, 0.64, 0.45, 0.33,
    ),
    weekdays=(1.09, 1.26, 0.99, 0.8, 0.83, 1.01, 1.01),
    day_sigma=0.5,
    day_correlation=0.39,
    burst_gap_s=18.7,
    burst_correlation=0.51,
    name_correlation=0.2,
    users=150,
    names_per_user=4,
    user_exponent=1.0,
    # Final states of GPU jobs: 62.4 % completed (Hu et al., SC'21); the rest is split by assumption.
    statuses={"completed": 0.624, "cancelled": 0.221, "failed": 0.155},
    cpus_per_gpu=6,
    gpu_type="V100",
)

PHILLY = Profile(
    gpus={
        1: 0.77182, 2: 0.05657, 4: 0.08416, 8: 0.0782, 12: 0.00066, 16: 0.00526, 24: 0.00066, 32: 0.00268,
    },
    durations={
        1: (
            1, 19, 47, 59, 77, 262, 686, 1395, 2109, 2784, 4362, 6083, 12114, 37348, 118035, 323982, 604800,
            604800,
        ),
        2: (
            2, 5, 9, 11, 14, 16, 19, 21, 51, 540, 57110, 107238, 215625, 406890, 597583, 604800, 604800,
            604800,
        ),
        4: (
            2, 21, 45, 92, 191, 514, 1139, 6839, 26555, 70103, 116192, 174682, 229828, 445942, 604800,
            604800, 604800, 604800,
        ),
        8: (
            2, 14, 38, 77, 211, 417, 995, 4458, 14143, 39873, 115529, 178724, 250247, 500271, 604800,
            604800, 604800, 604800,
        ),
        9: (
            16, 26, 41, 106, 326, 725, 1849, 5540, 14908, 23345, 37619, 51146, 82221, 142889, 591615,
            604800, 604800, 604800,
        ),
        17: (
            19, 20, 26, 28, 87, 347, 1438, 9226, 47802, 54614, 61124, 69725, 80733, 125721, 162502, 237624,
            355236, 472847,
        ),
    },
    bursts={
        1: {
            1: 0.80511, 2: 0.09883, 3: 0.02547, 4: 0.01348, 6: 0.01376, 8: 0.00894, 11: 0.00717,
            20: 0.00575, 30: 0.00291, 52: 0.00376, 82: 0.00688, 121: 0.00248, 217: 0.00263, 327: 0.00149,
            583: 0.00135,
        },
        2: {
            1: 0.84027, 2: 0.11326, 3: 0.02807, 4: 0.0029, 6: 0.00194, 8: 0.00581, 10: 0.00387, 17: 0.00194,
            42: 0.00097, 122: 0.00097,
        },
        4: {
            1: 0.75488, 2: 0.12614, 3: 0.03641, 4: 0.02991, 6: 0.02406, 8: 0.01756, 11: 0.0078, 21: 0.00065,
            26: 0.0013, 56: 0.00065, 71: 0.00065,
        },
        8: {1: 0.83964, 2: 0.09664, 3: 0.03081, 4: 0.0105, 6: 0.0119, 8: 0.0077, 10: 0.0021, 18: 0.0007},
        9: {1: 0.92593, 2: 0.06481, 3: 0.00926},
        17: {1: 0.84127, 2: 0.11111, 3: 0.03175, 5: 0.01587},
    },
    hours=(
        1.14, 1.06, 1.0, 1.01, 1.03, 0.95, 1.09, 1.08, 1.14, 1.07, 0.97, 0.81, 0.83, 0.83, 0.76, 0.77, 0.84,
        1.08, 1.21, 1.06, 1.02, 1.14, 1.08, 1.03,
    ),
    weekdays=(1.07, 1.16, 1.14, 1.09, 0.81, 0.7, 1.03),
    day_sigma=0.27,
    day_correlation=0.35,
    burst_gap_s=8.6,
    burst_correlation=0.79,
    name_correlation=0.2,
    users=100,
    names_per_user=4,
    user_exponent=1.0,
    # Final states: Jeon et al., ATC'19, table 6.
    statuses={"completed": 0.693, "cancelled": 0.135, "failed": 0.172},
    cpus_per_gpu=6,
    gpu_type="P100",
)

ITP = Profile(
    gpus={
        1: 0.86368, 2: 0.02283, 4: 0.04459, 8: 0.06502, 16: 0.00053, 32: 0.0004, 64: 0.00294,
    },
    durations={
        1: (
            600, 680, 978, 1449, 2312, 4557, 7344, 8969, 11336, 14412, 18878, 19104, 28571, 28864, 54087,
            61826, 127930, 604800,
        ),
        2: (
            605, 709, 1371, 1757, 2560, 3296, 3473, 3562, 3757, 3868, 3997, 4177, 4265, 25787, 440996,
            577219, 604800, 604800,
        ),
        4: (
            616, 748, 800, 826, 2404, 3340, 4729, 6604, 9348, 14635, 35315, 52986, 100026, 181683, 421452,
            604800, 604800, 604800,
        ),
        8: (
            617, 830, 1890, 5580, 20479, 41986, 65785, 85340, 108546, 137480, 192858, 214697, 272314,
            342691, 450295, 520158, 575208, 604800,
        ),
        17: (
            2314, 2317, 2367, 2579, 7334, 23630, 26706, 34767, 35528, 38043, 38693, 40244, 41252, 47730,
            56049, 59081, 60596, 62112,
        ),
    },
    bursts={
        1: {
            1: 0.52868, 2: 0.1957, 3: 0.09878, 4: 0.05209, 5: 0.04452, 8: 0.02844, 11: 0.01098, 21: 0.0201,
            30: 0.01144, 47: 0.00603, 79: 0.00201, 119: 0.00062, 191: 0.00046, 282: 0.00015,
        },
        2: {1: 0.76608, 2: 0.07018, 4: 0.0117, 6: 0.00585, 9: 0.00585, 14: 0.00585, 18: 0.12865, 36: 0.00585},
        4: {
            1: 0.66766, 2: 0.11976, 3: 0.07186, 4: 0.04491, 5: 0.06587, 8: 0.01198, 12: 0.00599,
            16: 0.00599, 26: 0.00299, 405: 0.00299,
        },
        8: {1: 0.76578, 2: 0.14257, 3: 0.06517, 4: 0.01629, 6: 0.00407, 8: 0.00204, 11: 0.00204, 32: 0.00204},
        17: {1: 0.92, 2: 0.08},
    },
    hours=(
        1.24, 1.36, 1.24, 1.31, 0.97, 0.74, 0.95, 0.91, 0.91, 0.72, 0.76, 0.83, 0.89, 0.88, 0.78, 0.99,
        0.85, 0.86, 0.99, 1.08, 1.23, 1.14, 1.1, 1.27,
    ),
    weekdays=(1.27, 0.8, 0.85, 0.7, 0.9, 1.13, 1.35),
    day_sigma=0.78,
    day_correlation=0.25,
    burst_gap_s=11.5,
    burst_correlation=0.83,
    name_correlation=0.2,
    users=60,
    names_per_user=4,
    user_exponent=1.0,
    # No final states are published for ITP: the profile uses the final states of Philly.
    statuses={"completed": 0.693, "cancelled": 0.135, "failed": 0.172},
    cpus_per_gpu=12,
    gpu_type="V100",
)
ACME = Profile(
    gpus={
        1: 0.185, 2: 0.02, 4: 0.023, 8: 0.576, 16: 0.053, 32: 0.035, 64: 0.015, 128: 0.006, 256: 0.009,
        512: 0.026, 1024: 0.052,
    },
    durations={
        1: (1, 3, 8, 15, 30, 50, 75, 105, 140, 190, 280, 370, 560, 1200, 3600, 9000, 20000, 172800),
        8: (1, 3, 8, 15, 35, 65, 100, 150, 230, 400, 900, 1500, 3000, 7200, 20000, 40000, 70000, 345600),
        9: (1, 3, 10, 20, 50, 90, 150, 240, 400, 800, 1800, 3000, 6000, 14000, 40000, 70000, 100000, 432000),
        128: (
            1, 10, 30, 60, 150, 300, 550, 1000, 1700, 3000, 6500, 10500, 20000, 46000, 105000, 180000,
            280000, 604800,
        ),
    },
    # Evaluation is submitted in batches. Shares: assumed.
    bursts={
        1: {1: 0.6, 4: 0.15, 16: 0.15, 63: 0.1},
        8: {1: 0.8, 2: 0.15, 4: 0.05},
        9: {1: 0.9, 2: 0.1},
        128: {1: 0.9, 2: 0.1},
    },
    # Acme's values of these five fields are not published: the profile uses the values of Helios, a cluster
    # of the same country and kind of user.
    hours=HELIOS.hours,
    weekdays=HELIOS.weekdays,
    day_sigma=HELIOS.day_sigma,
    day_correlation=HELIOS.day_correlation,
    burst_gap_s=HELIOS.burst_gap_s,
    burst_correlation=0.5,
    name_correlation=0.2,
    users=100,
    names_per_user=4,
    user_exponent=1.0,
    # Final states of Kalos' GPU jobs; 16 cores per GPU (Hu et al., NSDI'24).
    statuses={"completed": 0.541, "cancelled": 0.062, "failed": 0.397},
    cpus_per_gpu=16,
    gpu_type="A100",
    # The median utilisation of Kalos' GPUs is 99 %; an evaluation keeps its GPU busy half of the time. The
    # catalogue has no model that needs several GPUs: these language workloads are closest. Shares: assumed.
    workloads={
        1: {
            "transformer-multi30k-b16": 0.4, "lstm-wikitext2-b5": 0.2, "bert-base-sentiment140-b16": 0.2,
            "gpt2-b4": 0.2,
        },
        8: {"gpt2-b4": 0.4, "bert-large-squad-b8": 0.3, "transformerxl-large-wikitext103-b2": 0.3},
        9: {"gpt2-b4": 0.4, "bert-large-squad-b8": 0.3, "transformerxl-large-wikitext103-b2": 0.3},
        128: {"gpt2-b4": 0.8, "transformerxl-large-wikitext103-b2": 0.2},
    },
)
"""Profile of Kalos' GPU jobs.

According to `data/cluster_summary.csv` of <https://github.com/InternLM/AcmeTrace>, jobs have a mean of 26.77
GPUs and 1,260 s, a median of 1 GPU and 124 s, and a maximum of 1,024 GPUs and 625,740 s. According to the
study, pretraining is 3.2 % of the jobs and 94 % of the GPU time. Jobs of 256 GPUs or more use 96 % of the GPU
time, jobs of one GPU less than 2 %. Less than 7 % of the jobs request more than 8 GPUs, and less than 5 %
last a day or longer. In this profile, pretraining jobs have 128 GPUs or more, and the relation between sizes
and durations is assumed.
"""
# fmt: on

PROFILES: dict[str, Profile] = {"helios": HELIOS, "philly": PHILLY, "itp": ITP, "acme": ACME}
"""Name that `--like` accepts -> profile."""
