"""Simulated model servers of the showcase at a point in time: a vLLM beside every host's containers, and a Triton with models of
speech on the hosts of the cluster that serves. Names and labels as their projects document them (alerts/model_servers.py)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from math import exp, pi, sin

from lab.showcase.fleet import Host

Sample = tuple[str, dict[str, str], float]

_LLM = "meta-llama/Llama-3.1-70B-Instruct"
_E2E_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
_FIRST_TOKEN_S = (0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_SPEECH = (("parakeet-1.1b-ctc-streaming", 9.0, 62_000), ("fastpitch-hifigan", 4.0, 210_000))  # requests/s, microseconds each
_ROUND_S = 1500


def samples(host: Host, at_s: float, since_s: float) -> Iterator[tuple[dict[str, str], Sample]]:
    """Each with the labels of its target. Counters rise from `since_s` on."""
    if not host.containers:
        return
    target = {**host.labels, "job": "vllm"}
    if host.containers == "pods":  # as a PodMonitor's
        pod = {"namespace": "serving", "pod": "chat-6c9f7d-x2x8k", "container": "vllm"}
        target = {**host.labels, "job": "serving/vllm", "instance": "10.0.3.17:8000", **pod}
    yield from ((target, sample) for sample in (("up", {}, 1.0), *_vllm(host, at_s, since_s)))
    if host.cluster == "inference":
        target = {**host.labels, "job": "speech"}
        yield from ((target, sample) for sample in (("up", {}, 1.0), *_triton(host, at_s, since_s)))


def _vllm(host: Host, at_s: float, since_s: float) -> Iterator[Sample]:
    load = 0.5 + 0.5 * sin(2 * pi * at_s / _ROUND_S + _phase(host))
    served = _served(host, at_s, since_s, per_s=3)
    who = {"model_name": _LLM, "engine": "0"}
    for reason, share in (("stop", 0.87), ("length", 0.11), ("abort", 0.02), ("error", 0.0)):
        yield "vllm:request_success_total", {**who, "finished_reason": reason}, share * served
    yield "vllm:generation_tokens_total", who, 280 * served
    yield "vllm:num_requests_running", who, round(8 + 24 * load)
    yield "vllm:num_requests_waiting", who, round(max(0.0, 30 * (load - 0.7)))
    yield "vllm:kv_cache_usage_perc", who, 0.15 + 0.75 * load
    yield from _histogram("vllm:e2e_request_latency_seconds", who, _E2E_S, served, mean=4.0)
    yield from _histogram("vllm:time_to_first_token_seconds", who, _FIRST_TOKEN_S, served, mean=0.22)


def _triton(host: Host, at_s: float, since_s: float) -> Iterator[Sample]:
    for model, per_s, each_us in _SPEECH:
        served = _served(host, at_s, since_s, per_s=per_s)
        who = {"model": model, "version": "1"}
        yield "nv_inference_request_success", who, served
        yield "nv_inference_request_failure", {**who, "reason": "BACKEND"}, served // 400
        yield "nv_inference_request_duration_us", who, each_us * served
        yield "nv_inference_pending_request_count", who, round(2 + 2 * sin(2 * pi * at_s / 700 + _phase(host)))


def _histogram(name: str, who: dict[str, str], buckets: Sequence[float], count: float, *, mean: float) -> Iterator[Sample]:
    """Of a Gamma distribution with shape 2, which latencies resemble."""
    for bucket in buckets:
        x = 2 * bucket / mean
        yield f"{name}_bucket", {**who, "le": str(bucket)}, count * (1 - exp(-x) * (1 + x))
    yield f"{name}_bucket", {**who, "le": "+Inf"}, count


def _served(host: Host, at_s: float, since_s: float, *, per_s: float) -> float:
    """Requests until then, more of them at some times than at others."""
    turn = _ROUND_S / (2 * pi)
    phase = _phase(host)
    bend = sin((at_s - since_s) / turn + since_s / turn + phase) - sin(since_s / turn + phase)
    return 20_000 + per_s * (at_s - since_s - 0.6 * turn * bend)


def _phase(host: Host) -> float:
    return zlib.crc32(host.name.encode()) % 628 / 100
