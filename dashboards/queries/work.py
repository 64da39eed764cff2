"""Workloads on the GPUs: pods and namespaces, jobs, containers and their logs."""

from __future__ import annotations

from typing import Final

from dashboards.queries.common import CLUSTER, ONE_CLUSTER, ONE_GPU, ONE_HOST, or_zero

POD: Final = "namespace, pod"
_GPU_REQUEST: Final = 'resource=~"nvidia_com_gpu|nvidia_com_mig.*|amd_com_gpu"'
_CONTAINERS: Final = 'job=~"docker|podman|pods"'
# What frameworks log when a GPU or its memory fails.
_ERRORS: Final = '|~ "(?i)error|exception|traceback|out of memory|oom|cuda|nccl.*(warn|abort)|xid"'


def gpus_by_namespace(selector: str) -> str:
    return f"sum by (namespace) (namespace:gpus:count{{{selector}}})"


def gpus_without_pod(selector: str) -> str:
    """In clusters where pods have GPUs."""
    held = f'group by ({ONE_GPU}) (gpu:utilization:ratio{{{selector}, pod!=""}})'
    clusters = f"group by (datacenter, cluster) ({held})"
    return or_zero(
        f"count((group by ({ONE_GPU}) (gpu:info{{{selector}}}) and on (datacenter, cluster) {clusters}) unless {held})", held
    )


def pods_with_gpus(selector: str) -> str:
    return or_zero(
        f'count(group by (datacenter, cluster, namespace, pod) (gpu:utilization:ratio{{{selector}, pod!=""}}))',
        f"cluster:gpus:count{{{CLUSTER}}}",
    )


def of_each_pod(series: str, selector: str) -> str:
    """Per pod, container and GPU."""
    return f'max by ({ONE_GPU}, namespace, pod, container) ({series}{{{selector}, pod!=""}})'


def of_pods(series: str, selector: str) -> str:
    """Average over a pod's GPUs; the ten highest."""
    return f'topk(10, avg by ({POD}) (max by ({POD}, {ONE_GPU}) ({series}{{{selector}, pod!=""}})))'


def memory_of_pods(selector: str) -> str:
    return f'topk(10, sum by ({POD}) (max by ({POD}, {ONE_GPU}, gpu_instance) (gpu:memory_used:bytes{{{selector}, pod!=""}})))'


def power_of_namespaces(selector: str) -> str:
    """Power draw of the GPUs allocated to a namespace. A GPU shared by two namespaces counts for both."""
    return f"sum by (namespace) (namespace:gpu_power:watts{{{selector}}})"


def gpus_allocatable(selector: str) -> str:
    return f"sum(max by (datacenter, cluster, node, resource) (kube_node_status_allocatable{{{selector}, {_GPU_REQUEST}}}))"


def gpus_requested(selector: str, phase: str) -> str:
    """By the pods of a phase, Running or Pending."""
    requests = f"kube_pod_container_resource_requests{{{selector}, {_GPU_REQUEST}}}"
    phases = f'max by (datacenter, cluster, {POD}) (kube_pod_status_phase{{{selector}, phase="{phase}"}}) == 1'
    requested = f"sum(sum by (datacenter, cluster, {POD}) ({requests}) and on (datacenter, cluster, {POD}) ({phases}))"
    return or_zero(requested, f"kube_node_info{{{selector}}}")


def pending_pods(selector: str) -> str:
    """GPUs requested by each pending pod."""
    requests = f"kube_pod_container_resource_requests{{{selector}, {_GPU_REQUEST}}}"
    phases = f'max by (datacenter, cluster, {POD}) (kube_pod_status_phase{{{selector}, phase="Pending"}}) == 1'
    return f"topk(50, sum by (datacenter, cluster, {POD}) ({requests}) and on (datacenter, cluster, {POD}) ({phases}))"


# --- jobs of a scheduler -------------------------------------------------------------------------------------------

_JOB: Final = "job_id, user, account, partition"


def _jobs(selector: str) -> str:
    """One per GPU, or GPU instance, that a job has."""
    return f"group by ({ONE_GPU}, gpu_instance, {_JOB}) (gpu:job:info{{{selector}}})"


def jobs_of_gpus(selector: str, series: str) -> str:
    """The value of each GPU that a job has."""
    return f"{_jobs(selector)} * on ({ONE_GPU}) group_left () max by ({ONE_GPU}) ({series}{{{selector}}})"


def jobs_held(selector: str) -> str:
    return _jobs(selector)


def of_jobs(kind: str, selector: str, series: str = "") -> str:
    """`kind`: how the values of a job's GPUs make one, and without a series their number."""
    return f"{kind} by ({ONE_CLUSTER}, {_JOB}) ({jobs_of_gpus(selector, series) if series else _jobs(selector)})"


def hosts_of_jobs(selector: str) -> str:
    return f"count by ({ONE_CLUSTER}, {_JOB}) (group by ({ONE_HOST}, {_JOB}) (gpu:job:info{{{selector}}}))"


def gpus_of(selector: str, label: str) -> str:
    """A GPU that several have counts in equal parts."""
    return f'sum by ({label}) (cluster:gpus_by_use:count{{{selector}, state=~"job|idle", namespace=""}})'


def power_of_accounts(selector: str) -> str:
    return f"sum by (account) (account:gpu_power:watts{{{selector}}})"


def least_busy(selector: str) -> str:
    return f"bottomk(10, job:gpu_utilization_lowest:ratio{{{selector}}})"


def jobs_running(selector: str) -> str:
    return or_zero(
        f"count(group by ({ONE_CLUSTER}, job_id) (gpu:job:info{{{selector}}}))", f"gpu_fleet_jobs_success{{{selector}}}"
    )


def gpus_with_a_job(selector: str) -> str:
    return or_zero(f"count(group by ({ONE_GPU}) (gpu:job:info{{{selector}}}))", f"gpu_fleet_jobs_success{{{selector}}}")


def gpus_without_a_job(selector: str) -> str:
    recorded = f"group by ({ONE_HOST}) (gpu_fleet_jobs_success{{{selector}}})"
    free = f"group by ({ONE_GPU}) (gpu:info{{{selector}}}) unless group by ({ONE_GPU}) (gpu:job:info{{{selector}}})"
    return or_zero(f"count(({free}) and on ({ONE_HOST}) {recorded})", recorded)


# --- container logs ------------------------------------------------------------------------------------------------


def printed(selector: str) -> str:
    """LogQL: container log lines that match the dashboard's search field."""
    return f"{{{_CONTAINERS}, {selector}}} |~ `(?i)$search`"


def printed_by_container(selector: str) -> str:
    """LogQL: lines per second; the ten containers with the most."""
    return f"topk(10, sum by ({ONE_HOST}, container) (rate({{{_CONTAINERS}, {selector}}}[$__auto])))"


def errors_by_container(selector: str) -> str:
    """LogQL: lines that report an error; the ten containers with the most."""
    return f"topk(10, sum by ({ONE_HOST}, container) (count_over_time({{{_CONTAINERS}, {selector}}} {_ERRORS} [$__interval])))"


# --- model servers -------------------------------------------------------------------------------------------------

# What the agents scrape besides (alloy/*.alloy): a scrape target of a stack cannot have these names.
_OUR_JOBS: Final = 'job!~"alloy|gpu-exporter|node-exporter|textfile|kubelet|kube-state-metrics|cadvisor|gpu-fleet-ready"'


def of_models(series: str, selector: str, *labels: str) -> str:
    """Per server and model, of whose name or path the last part fits a legend, and per `labels`; the 20 highest."""
    named = f'label_replace({series}{{{selector}}}, "model", "$1", "model", ".*/(.+)")'
    return f"topk(20, max by ({', '.join((ONE_HOST, 'server', 'model', *labels))}) ({named}))"


def targets_up(selector: str) -> str:
    """Scrape targets of hosts: 1, or 0 where one does not answer."""
    return f"max by ({ONE_HOST}, job) (up{{{selector}, {_OUR_JOBS}}})"
