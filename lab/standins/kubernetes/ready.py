"""When an object is what was asked for, and if not, what it waits for, in the words a person can act on.

Source: https://www.pulumi.com/registry/packages/kubernetes/ (await logic) and kubectl's rollout status, read November 2026.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.kubernetes import Api, ApiError

Object = dict[str, Any]


class Hopeless(Exception):
    """It will never be ready."""


def waits_for(live: Object) -> str:
    """What the object still waits for; empty when it is ready. Raises Hopeless."""
    check = CHECKS.get(live["kind"])
    if check is None:
        return ""
    if live["metadata"].get("generation", 0) > (live.get("status") or {}).get("observedGeneration", 1 << 62):
        return "its controller has not seen it yet"
    return check(live, live.get("spec") or {}, live.get("status") or {})


def _deployment(live: Object, spec: Object, status: Object) -> str:
    wanted = spec.get("replicas", 1)
    if _condition(live, "Progressing").get("reason") == "ProgressDeadlineExceeded":
        raise Hopeless(_condition(live, "Progressing").get("message", "its progress deadline is exceeded"))
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    if updated < wanted or available < wanted or status.get("replicas", 0) > updated:
        return f"{updated} of {wanted} replicas are updated, {available} available"
    return ""


def _daemon_set(live: Object, spec: Object, status: Object) -> str:
    if "observedGeneration" not in status:
        return "its controller has not seen it yet"
    wanted = status.get("desiredNumberScheduled", 0)
    updated, available = status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)
    if updated < wanted or available < wanted:
        return f"{updated} of {wanted} pods are updated, {available} available"
    return ""


def _stateful_set(live: Object, spec: Object, status: Object) -> str:
    wanted, ready = spec.get("replicas", 1), status.get("readyReplicas", 0)
    is_rolled_out = status.get("currentRevision") == status.get("updateRevision")
    return "" if ready >= wanted and is_rolled_out else f"{ready} of {wanted} pods are ready"


def _job(live: Object, spec: Object, status: Object) -> str:
    failed = _condition(live, "Failed")
    if failed.get("status") == "True":
        raise Hopeless(failed.get("message", "the job has failed"))
    return "" if _condition(live, "Complete").get("status") == "True" else "the job has not completed"


def _pod(live: Object, spec: Object, status: Object) -> str:
    if status.get("phase") == "Failed":
        raise Hopeless("the pod has failed")
    is_ready = status.get("phase") == "Succeeded" or _condition(live, "Ready").get("status") == "True"
    return "" if is_ready else f"the pod is {status.get('phase', 'not known to any node')}"


def _established(live: Object, spec: Object, status: Object) -> str:
    return "" if _condition(live, "Established").get("status") == "True" else "its kind is not served yet"


def _api_service(live: Object, spec: Object, status: Object) -> str:
    available = _condition(live, "Available")
    return "" if available.get("status") == "True" else available.get("message", "the API is not available yet")


CHECKS: dict[str, Callable[[Object, Object, Object], str]] = {
    "Deployment": _deployment,
    "DaemonSet": _daemon_set,
    "StatefulSet": _stateful_set,
    "Job": _job,
    "Pod": _pod,
    "CustomResourceDefinition": _established,
    "APIService": _api_service,
}


def causes(api: Api, live: Object) -> list[str]:
    """What its pods say that are not ready: which image is missing, which container crashes, why none is scheduled."""
    labels = ((live.get("spec") or {}).get("selector") or {}).get("matchLabels")
    if not labels:
        return []
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    try:
        pods = api.list("v1", "Pod", live["metadata"].get("namespace", ""), selector)
    except ApiError:
        return []  # without the right to look at pods the reason is what the object itself says
    said = []
    for pod in pods:
        status = pod.get("status", {})
        waiting = [
            (each["name"], each["state"]["waiting"]) for each in status.get("containerStatuses", []) if "waiting" in each["state"]
        ]
        said += [
            f"pod {pod['metadata']['name']}, container {name}: {why['reason']}: {why.get('message', '')}" for name, why in waiting
        ]
        scheduled = _condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            said.append(f"pod {pod['metadata']['name']}: {scheduled.get('reason')}: {scheduled.get('message')}")
    return said


def _condition(live: Object, kind: str) -> Object:
    conditions = (live.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})
