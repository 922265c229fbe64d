"""Policies as data: presets, files and changes; written policies are read back; errors are named."""

from __future__ import annotations

import pickle
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy, default_checkpoint
from rlsched.decide.options import PLAIN
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.files import with_whole_paths
from rlsched.decide.policies.policy import Policy, presets
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.rules.steps import RULES
from rlsched.decide.settings import Share
from rlsched.errors import InputError, UnknownPolicyError

EVERY = sorted(presets())
MANY = Policy(
    "gittins",
    preempt={"spread": 1.0, "tick": "30s"},
    share={"max_jobs": 3},
    clock={"rule": "lull", "slowdown": 0.1},
    profile={"run": "80s"},
    cores=True,
    predictions="revised",
)


@pytest.mark.parametrize("name", EVERY)
def test_every_preset_has_a_scheduler_that_keeps_its_order(name: str) -> None:
    policy = Policy(name)
    scheduler = load_scheduler(name)
    assert policy.name == scheduler.name == name
    assert policy == Policy.of(name) == Policy.of(policy)
    assert policy.oracle == scheduler.oracle
    if not policy.scheduler:
        assert isinstance(scheduler, RuleScheduler)
        assert scheduler.order == policy.rule.order


@pytest.mark.parametrize("policy", [*map(Policy, EVERY), Policy(), MANY], ids=lambda policy: policy.name)
def test_written_form_is_read_back(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(policy.toml)
    for read in (Policy.parse(policy.toml), Policy.read(tmp_path / "mine.toml")):
        assert read == policy
        assert read.digest == policy.digest
        assert hash(read) == hash(policy)
    assert Policy.of(str(tmp_path / "mine.toml")).name == "mine"
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_different_policies_have_different_digests() -> None:
    assert len({Policy(name).digest for name in EVERY}) == len(EVERY)


def test_records_distinguish_settings() -> None:
    assert Policy("easy").policy_id == "easy"
    changed = [Policy("easy").changed([f"order={order}"]) for order in ("area", "predicted")]
    renamed = Policy("easy", name="easy", order="area")  # as of a file called easy.toml
    assert len({one.policy_id for one in [*changed, renamed, Policy("easy")]}) == 4
    assert renamed.policy_id == f"easy@{renamed.digest}"


def test_settings_make_the_rule() -> None:
    plain = Policy()
    assert plain.rule.steps is RULES["greedy"]
    assert plain.rule.order == Order()
    assert plain.rule.options[:-1] == PLAIN[:-1]
    kinds = {
        "greedy": Policy("qssf-backfill", share={}),
        "backfill": Policy("qssf-backfill", reserve_after="1h"),
        "keep-free": Policy(leave_free={}),
        "gittins": Policy(preempt={"by": "service", "threshold_gpu_s": 60.0}),
        "las": Policy(preempt={"by": "quota"}),
    }
    for kind, policy in kinds.items():
        assert policy.rule.steps is RULES[kind]


def test_file_names_its_preset() -> None:
    policy = Policy.parse('base = "easy"\norder = "area^0.7"\nreserve_after = "1h"\n', name="mine")
    assert policy == Policy("easy", order="area^0.7", reserve_after="1h")
    assert policy.name == "mine"
    assert Policy.parse('base = "easy"').name == "easy"


def test_changes_are_of_single_settings_and_show_in_the_name() -> None:
    pack = Policy("pack")
    changed = pack.changed(["share.min_speed=0.5", "order=predicted", "cores=true"])
    assert changed == Policy("qssf-backfill", order="predicted", share={"min_speed": 0.5}, cores=True)
    assert (pack.name, changed.name, changed.named("mine").name) == ("pack", "pack*", "mine")
    assert pack.changed([]) is pack
    assert pack.changed(["share.min_speed=0.85"]).name == "pack", "unchanged"
    assert pack.changed(["share=false"]) == Policy("qssf-backfill")
    assert pack.with_settings(share=None) == Policy("qssf-backfill")
    assert Policy("easy").changed(["reserve_after=90s"]).settings.reserve_after == 90.0
    assert Policy("qssf").changed(["order=submit"]) == Policy("fifo")


def test_tables_are_changed_setting_by_setting() -> None:
    tiresias = Policy("tiresias", preempt={"tick": "30s"})
    assert tiresias.settings.preempt is not None
    assert (tiresias.settings.preempt.by, tiresias.settings.preempt.tick) == ("quota", 30.0)
    assert tiresias.rule.options.threshold_gpu_s == 18_000


def test_ways_to_change_a_table_are_equivalent() -> None:
    change = {"min_speed": 0.7, "by_hold": 0.0}
    made = Policy("tuned", share=change)
    share = made.settings.share
    assert share is not None
    assert (share.min_speed, share.by_hold) == (0.7, 0.0)
    assert (share.when, share.max_jobs, share.min_gain) == ("better", 4, 0.15), "as in the preset"
    assert made == Policy("tuned").with_settings(share=change)
    assert made == Policy("tuned").changed(["share={min_speed=0.7, by_hold=0.0}"])
    assert made == Policy("tuned").changed(["share.min_speed=0.7", "share.by_hold=0.0"])
    assert made == Policy.parse('base = "tuned"\nshare = { min_speed = 0.7, by_hold = 0.0 }')
    assert Policy("tuned").with_settings(share={}) == Policy("tuned")


def test_struct_replaces_a_table() -> None:
    made = Policy("tuned").with_settings(share=Share(min_speed=0.7), clock=None)
    assert made.settings.share == Share(min_speed=0.7)
    assert made.settings.clock is None
    assert Policy("easy").with_settings(share=Share()).settings.share == Share()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("esay", "did you mean 'easy'"),
        ("what", "expected one of fifo, sjf,"),
        ("easy:sjf,6h", "unknown policy 'easy:sjf,6h'"),
        ("", "unknown policy ''"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(name: str, says: str) -> None:
    for ask in (Policy.of, Policy):
        with pytest.raises(UnknownPolicyError) as raised:
            ask(name)
        assert says in str(raised.value)
        assert "\n" not in str(raised.value)
        assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('base = "esay"', "f.toml: base: unknown policy 'esay'; did you mean 'easy'"),
        ('base = "easy"\nprice = { defer = 1, pause = 1 }', "f.toml: price.pause works only with preempt"),
        ("price = { defer = -1 }", "f.toml: price.defer: expected a slope from 0 to 100, got -1"),
        (
            "price = { percentile = 30 }",
            "f.toml: price.percentile: expected a share from 0 to 1, such as 0.3",
        ),
        ("price = { window = 2 }", "f.toml: price.window: expected `bool`, got `int`"),
        ("base = 3", "f.toml: base: expected a preset's name, got 3"),
        ('oder = "area"', "f.toml: unknown setting 'oder'; did you mean 'order'?"),
        ("share = { speed = 1.0 }", "f.toml: unknown setting 'share.speed'; did you mean 'min_speed'?"),
        ('order = "size"', "f.toml: order: expected an order: submit, predicted, area"),
        ("order = 3", "f.toml: order: expected `str"),
        ('reserve_after = "1 hour"', "f.toml: reserve_after: expected a time such as 90s"),
        ("share = { max_jobs = 5 }", "f.toml: share.max_jobs: expected 2 to 4 jobs, got 5"),
        ('clock = { rule = "fixed", at = 0.4 }', "f.toml: clock.at: expected a clock from 0.5 to 1"),
        ('clock = { rule = "fast" }', "f.toml: clock.rule: "),
        ("order", "f.toml: not valid TOML"),
        ('base = "easy"\ncheckpoint = "m.zip"', "checkpoint: only a scheduler such as sb3 reads it"),
        ("search = { samples = 4 }", "f.toml: unknown setting 'search'"),
        ("samples = 4", "f.toml: unknown setting 'samples'"),
        ('preempt = { by = "service" }', "preempt.threshold_gpu_s: expected GPU-seconds, such as"),
        ("preempt = {}\nleave_free = {}", "leave_free and preempt exclude each other"),
        ('reserve_after = "1h"\nleave_free = {}', "reserve_after and leave_free exclude each other"),
        ('preempt = {}\norder = "area"', "order: expected index, because preempt orders the queue"),
        ("blocks = true\npreempt = {}", "blocks works only without rule, reserve_after"),
    ],
)
def test_wrong_settings_are_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(InputError) as raised:
        Policy.of(tmp_path / "f.toml")
    assert says in str(raised.value)


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: cannot read this policy"):
        Policy.of(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match=r"none\.toml: cannot read this policy"):
        Policy.of(f"ppo:{tmp_path / 'none.toml'}")
    assert Policy.of("sb3:model.toml").settings.checkpoint == "model.toml", "a model, whatever its name"
    (tmp_path / "latin.toml").write_bytes(b'order = "\xe9"')
    with pytest.raises(InputError, match="expected UTF-8 text"):
        Policy.read(tmp_path / "latin.toml")
    with pytest.raises(InputError, match=r"none\.py: there is no such file"):
        load_scheduler(str(tmp_path / "none.py"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("order", "--set order: expected PATH=VALUE"),
        ("order.by=area", "order is not a table of settings"),
        ("share.speed=1", "unknown setting 'share.speed'"),
        ("share.min_speed=2", "share.min_speed: expected a speed from 0 to 1, 1 = not shared, got 2"),
    ],
)
def test_invalid_changes_are_named(change: str, says: str) -> None:
    with pytest.raises(InputError) as raised:
        Policy("qssf").changed([change])
    assert says in str(raised.value)


def test_missing_scheduler_is_named_with_the_installed_ones() -> None:
    policy = Policy(rule="magic")
    assert policy.scheduler == "magic"
    with pytest.raises(InputError, match="rule: expected one of random, sb3, or the path"):
        load_scheduler(policy)
    with pytest.raises(InputError, match="is not a rule: 'random' decides"):
        _ = Policy("random").rule


# ---- trained policies --------------------------------------------------------------------------------


WEIGHTS = np.random.default_rng(1).normal(0.0, 0.5, (NUM_DIALS, NUM_COLUMNS + 1))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder as `rlsched train --out mine` leaves it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    Strategy.from_layers(WEIGHTS).write(folder / "policy.json")
    (folder / "policy.toml").write_text('base = "easy"\nreserve_after = "1h"\ndials = "policy.json"\n')
    return folder


def test_trained_policy_is_named_by_its_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Policy("easy", reserve_after="1h", dials=str(trained / "policy.json"))
    for text in (trained, str(trained), f"{trained}/", f"ppo:{trained}", f"ppo:{trained / 'policy.toml'}"):
        assert Policy.of(text) == expected, text
    assert (Policy.of(trained).name, Policy.of(str(trained)).name) == ("mine", "mine")
    assert Policy.of(f"ppo:{trained}").name == f"ppo:{trained}"
    scheduler = load_scheduler(f"ppo:{trained}")
    assert scheduler.strategy == Strategy.from_layers(WEIGHTS)
    assert scheduler.name == f"ppo:{trained}"
    monkeypatch.chdir(trained.parent)
    for text in ("mine", "ppo:mine", Path("mine")):
        assert load_scheduler(Policy.of(text)).strategy == scheduler.strategy
    monkeypatch.chdir(trained)
    assert Policy.of(Path()).name == "mine"


def test_preset_goes_before_a_folder_of_its_name(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.rename(trained.with_name("easy")).parent)
    assert Policy.of("easy") == Policy("easy")
    assert Policy.of("ppo:easy").settings.dials == Policy.of("./easy").settings.dials == "easy/policy.json"


def test_folder_without_a_policy_is_refused(tmp_path: Path) -> None:
    for text in (tmp_path, f"ppo:{tmp_path}", f"ppo:{tmp_path / 'none'}"):
        with pytest.raises(InputError, match="cannot read this policy: No such file") as raised:
            Policy.of(text)
        assert "\n" not in str(raised.value)


def test_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path, trained: Path) -> None:
    """A zip, or a folder with `policy.zip`, even next to a policy of this version."""
    zipped = trained / "policy.zip"
    zipped.write_bytes(b"PK")
    for text in (trained, str(trained), f"ppo:{trained}", f"ppo:{zipped}", f"ppo:{tmp_path / 'none.zip'}"):
        with pytest.raises(InputError) as raised:
            Policy.of(text)
        said = str(raised.value)
        path = str(text).removeprefix("ppo:")
        assert said.startswith(f"{path}: expected the folder of a policy that `rlsched train` wrote, got")
        assert said.endswith("train again with `rlsched train`")
        assert "\n" not in said
        assert raised.value.exit_code == 2


@pytest.mark.parametrize("rule", ["ppo", "rollout", "clairvoyant"])
def test_schedulers_of_earlier_versions_are_refused_with_the_way_out(rule: str, tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(f'rule = "{rule}"\n')
    for make in (
        lambda: Policy.of(tmp_path / "old.toml"),
        lambda: Policy(rule=rule),
        lambda: Policy("fifo").changed([f"rule={rule}"]),
    ):
        with pytest.raises(InputError) as raised:
            make()
        said = str(raised.value)
        assert f"rule: '{rule}' is a scheduler of an earlier version" in said
        assert said.endswith("use the policy `ppo`, or train a policy with `rlsched train`")
        assert "\n" not in said


def test_shipped_strategy_keeps_its_name_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also next to a file of this name."""
    (tmp_path / "default").write_text("{}")
    (tmp_path / "mine.toml").write_text('base = "priced"\ndials = "default"\n')
    monkeypatch.chdir(tmp_path)
    policy = Policy.of("mine.toml")
    assert policy.settings.dials == with_whole_paths(policy).settings.dials == "default"
    assert policy == Policy("ppo")
    assert 'dials = "default"' in policy.toml
    assert load_scheduler(policy).strategy == load_scheduler("ppo").strategy


# ---- a user's own ------------------------------------------------------------------------------------


def test_user_rule_is_loaded_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "first.py"
    path.write_text("from rlsched.decide.rules.greedy import next_move\n")
    policy = Policy.of(str(path))
    assert (policy.name, policy.scheduler) == ("first", "")
    scheduler = load_scheduler(policy)
    assert isinstance(scheduler, RuleScheduler)
    assert scheduler.reference is not None
    assert scheduler.reference.rule.steps is RULES["greedy"]
    assert not (tmp_path / "__pycache__").exists()
    for text, says in (("1 / 0", "ZeroDivisionError"), ("x = 1", "found no kernel `next_move")):
        path.write_text(text)
        with pytest.raises(InputError, match=says):
            load_scheduler(str(path))


def test_id_of_an_own_rule_is_its_content(tmp_path: Path) -> None:
    ids = []
    for folder, text in (("one", "a = 1"), ("two", "a = 1"), ("two", "a = 2")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "rule.py").write_text(text)
        ids.append(Policy.of(str(tmp_path / folder / "rule.py")).policy_id)
    assert ids[0] == ids[1] != ids[2]
    (tmp_path / "two" / "rule.py").unlink()
    assert "@" in Policy.of(str(tmp_path / "two" / "rule.py")).policy_id


def test_id_of_a_trained_policy_does_not_depend_on_its_folder(tmp_path: Path) -> None:
    ids, digests = set(), set()
    for name in ("one", "two"):
        copytree(default_checkpoint(), tmp_path / name)
        policy = Policy.of(f"ppo:{tmp_path / name}").named("mine")
        ids.add(policy.policy_id)
        digests.add(policy.digest)
    assert len(ids) == 1
    assert len(digests) == 2
