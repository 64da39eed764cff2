"""The inventory metric: every host of a stack, its GPUs where they are counted, in few rules."""

from __future__ import annotations

import subprocess

import pytest
import yaml

import alerts
from alerts.inventory import inventory_groups, kubernetes_inventory_group, stack_inventory
from alerts.model import RuleGroup, rule_file
from gpu_fleet import toolchain

TEST = """\
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series: []
    promql_expr_test:
      - expr: inventory:host:expected
        eval_time: 1m
        exp_samples:
          - {labels: 'inventory:host:expected{datacenter="us-west", cluster="training", instance="gpu-node-001"}', value: 1}
          - {labels: 'inventory:host:expected{datacenter="us-west", cluster="training", instance="nested-gpu-node"}', value: 1}
      - expr: inventory:gpus_expected:count
        eval_time: 1m
        exp_samples:
          - {labels: 'inventory:gpus_expected:count{datacenter="us-west", cluster="training", instance="gpu-node-001"}', value: 8}
"""


def test_hosts_are_expected_and_gpus_only_where_they_are_counted(tmp_path):
    groups = inventory_groups("us-west", "training", {"gpu-node-001": 8, "nested-gpu-node": None})
    (tmp_path / "rules.yaml").write_text(rule_file(groups))
    (tmp_path / "test.yaml").write_text(TEST)
    tested = subprocess.run(
        [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_stack_without_hosts_expects_nothing():
    assert inventory_groups("us-west", "training", {}) == []


@pytest.mark.parametrize(("hosts", "groups"), [(500, 1), (501, 2), (10_000, 20)])
def test_many_hosts_are_few_rules(hosts, groups):
    made = inventory_groups("us-west", "training", {f"gpu-node-{n:05}": 8 for n in range(hosts)})
    assert len(made) == groups
    assert all(len(group.rules) == 2 for group in made)
    assert len({group.name for group in made}) == groups


def test_two_stacks_of_one_ruler_do_not_overwrite_each_other():
    names = {group.name for cluster in ("training", "inference") for group in inventory_groups("us-west", cluster, {"a": 1})}
    assert len(names) == 2


def test_a_group_is_plain_yaml():
    (group,) = inventory_groups("us-west", "training", {"a": 1})
    assert yaml.safe_load(group.yaml)["rules"][0]["labels"] == {"datacenter": "us-west", "cluster": "training"}


KUBERNETES_TEST = """\
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      # gpu-1 lost a GPU after three minutes and is without it for more than a day, gpu-2 left the cluster, cpu-1 has none; mig-1
      # has the strategy single, shared-1 ten shares of each GPU, mixed-1 instances of several sizes, amd-1 MI300X; nobody reports
      # the GPUs of dark-1; those of dra-1 are dynamic resources, of which the exporter lists what pods have.
{series}
    promql_expr_test:
      - expr: inventory:host:expected
        eval_time: 26h
        exp_samples:
{hosts}
      - expr: inventory:gpus_expected:count
        eval_time: 26h
        exp_samples:
{gpus}
"""
_HERE = 'datacenter="us-west", cluster="training"'
# node -> its resource, what its capacity says, what its exporter reports; over time.
_NODES = {
    "gpu-1": ("nvidia_com_gpu", "8x2 7x1600", "8x2 7x1600"),
    "gpu-2": ("nvidia_com_gpu", "8x2 stale", "8x2 stale"),
    "cpu-1": ("nvidia_com_gpu", "0x1600", "_x1600"),
    "mig-1": ("nvidia_com_gpu", "56x1600", "8x1600"),
    "shared-1": ("nvidia_com_gpu_shared", "80x1600", "8x1600"),
    "mixed-1": ("nvidia_com_mig_1g_10gb", "14x1600", "2x1600"),
    "amd-1": ("amd_com_gpu", "8x1600", "8x1600"),
    "dark-1": ("nvidia_com_gpu", "8x1600", "_x1600"),
    "dra-1": ("cpu", "64x1600", "8x2 1x1600"),
}


def _memory() -> list[RuleGroup]:
    """The rules that remember the GPUs of a host."""
    names = ("host:known:bool", "instance:gpus_most:count")
    groups = [(group, [rule for rule in group.rules if rule.get("record") in names]) for group in alerts.rule_groups("mimir")]
    return [RuleGroup(name=group.name, interval="1m", rules=tuple(rules)) for group, rules in groups if rules]


def _kubernetes_test() -> str:
    series = []
    for node, (resource, capacity, reported) in _NODES.items():
        exists = "1x2 stale" if "stale" in capacity else "1x1600"
        series += [
            (f'kube_node_status_capacity{{{_HERE}, node="{node}", resource="{resource}"}}', capacity),
            (f'kube_node_info{{{_HERE}, node="{node}"}}', exists),
            (f'instance:gpus:count{{{_HERE}, instance="{node}"}}', reported),
            # A node of the same name elsewhere.
            (f'instance:gpus:count{{datacenter="us-east", cluster="training", instance="{node}"}}', "16x1600"),
        ]
    elsewhere = 'datacenter="us-west", cluster="other", node="gpu-9"'
    series += [
        (f'kube_node_status_capacity{{{elsewhere}, resource="nvidia_com_gpu"}}', "8x1600"),
        (f"kube_node_info{{{elsewhere}}}", "1x1600"),
    ]
    given = "\n".join(f"      - {{series: '{name}', values: '{values}'}}" for name, values in series)

    def expected(record: str, values: dict[str, int]) -> str:
        rows = (f"labels: '{record}{{{_HERE}, instance=\"{node}\"}}', value: {value}" for node, value in values.items())
        return "\n".join(f"          - {{{row}}}" for row in rows)

    gpus = {"gpu-1": 8, "mig-1": 8, "shared-1": 8, "mixed-1": 2, "amd-1": 8}
    hosts = dict.fromkeys([*gpus, "dark-1", "dra-1"], 1)
    return KUBERNETES_TEST.format(
        series=given, hosts=expected("inventory:host:expected", hosts), gpus=expected("inventory:gpus_expected:count", gpus)
    )


def test_a_kubernetes_cluster_expects_the_physical_gpus_its_nodes_had_and_no_node_that_left(tmp_path):
    (tmp_path / "rules.yaml").write_text(rule_file([*_memory(), kubernetes_inventory_group("us-west", "training")]))
    (tmp_path / "test.yaml").write_text(_kubernetes_test())
    tested = subprocess.run(
        [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_what_the_exporters_of_a_cluster_are_asked_for_is_recorded_by_series() -> None:
    with_it, without = (
        {group.name: group for group in stack_inventory("d", "c", {"a": 8}, has_kubernetes=True, counted=counted)}
        for counted in (["gpu:b", "gpu:a"], [])
    )
    [added] = set(with_it) - set(without)
    [rule] = with_it[added].rules
    labels = {"datacenter": "d", "cluster": "c", "exporter_mode": "dcgm-exporter"}
    assert (rule["record"], rule["labels"]) == ("inventory:counters:expected", labels)
    assert [line for line in rule["expr"].splitlines() if line != "or"] == [
        'label_replace(vector(1), "series", "gpu:a", "", "")',
        'label_replace(vector(1), "series", "gpu:b", "", "")',
    ]


def test_a_host_that_the_stack_file_takes_out_of_service_is_recorded_with_its_reason():
    groups = stack_inventory("us-west", "training", {"a": 8, "b": 8}, has_kubernetes=False, maintenance={"b": 'costs $1 "today"'})
    (group,) = [group for group in groups if group.name == "inventory-us-west-training-maintenance"]
    (rule,) = group.rules
    assert (rule["record"], rule["labels"]) == ("inventory:host:maintenance", {"datacenter": "us-west", "cluster": "training"})
    assert '"instance", "b"' in rule["expr"]
    assert r'"costs $$1 \"today\""' in rule["expr"], "label_replace takes $1 for a group"
    assert '"a"' not in rule["expr"]
