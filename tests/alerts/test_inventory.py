"""The inventory metric: every host of a stack, its GPUs where they are counted, in few rules."""

from __future__ import annotations

import subprocess

import pytest
import yaml

import toolchain
from alerts.inventory import inventory_groups, kubernetes_inventory_group, stack_inventory
from alerts.model import rule_file

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
      # gpu-1 lost a GPU after three minutes, gpu-2 left the cluster, the others have none.
      - series: 'kube_node_status_capacity{datacenter="us-west", cluster="training", node="gpu-1", resource="nvidia_com_gpu"}'
        values: '8x2 7x20'
      - series: 'kube_node_info{datacenter="us-west", cluster="training", node="gpu-1"}'
        values: '1x20'
      - series: 'kube_node_status_capacity{datacenter="us-west", cluster="training", node="gpu-2", resource="nvidia_com_gpu"}'
        values: '8x2 stale'
      - series: 'kube_node_info{datacenter="us-west", cluster="training", node="gpu-2"}'
        values: '1x2 stale'
      - series: 'kube_node_status_capacity{datacenter="us-west", cluster="training", node="cpu-1", resource="nvidia_com_gpu"}'
        values: '0x20'
      - series: 'kube_node_info{datacenter="us-west", cluster="training", node="cpu-1"}'
        values: '1x20'
      - series: 'kube_node_status_capacity{datacenter="us-west", cluster="other", node="gpu-9", resource="nvidia_com_gpu"}'
        values: '8x20'
      - series: 'kube_node_info{datacenter="us-west", cluster="other", node="gpu-9"}'
        values: '1x20'
    promql_expr_test:
      - expr: inventory:host:expected
        eval_time: 15m
        exp_samples:
          - {labels: 'inventory:host:expected{datacenter="us-west", cluster="training", instance="gpu-1"}', value: 1}
      - expr: inventory:gpus_expected:count
        eval_time: 15m
        exp_samples:
          - {labels: 'inventory:gpus_expected:count{datacenter="us-west", cluster="training", instance="gpu-1"}', value: 8}
"""


def test_a_kubernetes_cluster_expects_the_gpus_its_nodes_had_and_no_node_that_left(tmp_path):
    (tmp_path / "rules.yaml").write_text(rule_file([kubernetes_inventory_group("us-west", "training")]))
    (tmp_path / "test.yaml").write_text(KUBERNETES_TEST)
    tested = subprocess.run(
        [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_host_that_the_stack_file_takes_out_of_service_is_recorded_with_its_reason():
    groups = stack_inventory("us-west", "training", {"a": 8, "b": 8}, has_kubernetes=False, maintenance={"b": 'costs $1 "today"'})
    (group,) = [group for group in groups if group.name == "inventory-us-west-training-maintenance"]
    (rule,) = group.rules
    assert (rule["record"], rule["labels"]) == ("inventory:host:maintenance", {"datacenter": "us-west", "cluster": "training"})
    assert '"instance", "b"' in rule["expr"]
    assert r'"costs $$1 \"today\""' in rule["expr"], "label_replace takes $1 for a group"
    assert '"a"' not in rule["expr"]
