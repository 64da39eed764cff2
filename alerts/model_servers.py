"""Model servers: recording rules that convert what they report about their requests to the same series, per server and model.

Their metrics arrive through scrape targets of hosts (gpu-fleet:scrapeTargets), in Kubernetes through monitors of an operator.
Labels: the host's; `server`, the pod or else the name of the scrape target; `model`, what the stack file calls it, else what the
server does; of pods `namespace` and `pod`. Where nothing is scraped nothing is recorded.

Sources, read 2026-11-28:
vLLM, NIM for LLMs since 2.0: vllm-project/vllm, vllm/v1/metrics/loggers.py and docs/design/metrics.md. gpu_cache became kv_cache.
NIM for LLMs and VLMs up to 1.x: NVIDIA NIM, Observability; vLLM's names without a prefix.
SGLang: sgl-project/sglang, python/sglang/srt/metrics/collector.py.
TensorRT-LLM (trtllm-serve): NVIDIA/TensorRT-LLM, tensorrt_llm/metrics/collector.py.
TGI: huggingface/text-generation-inference, docs/source/reference/metrics.md; it names no model.
Triton, with it Riva and speech NIMs (STT, TTS): triton-inference-server/server, docs/user_guide/metrics.md, and TensorRT-LLM's
backend of it, triton-inference-server/tensorrtllm_backend, README.md.

Not done here: servers with other names, which a rule of a stack's own can convert (docs/overrides.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import indent
from typing import Final

from alerts.model import Rule, RuleGroup
from alerts.selectors import of_our_hosts

PLACES: Final = "model:place:info"
LABELS: Final = ("datacenter", "cluster", "instance", "server", "model", "namespace", "pod")

_INTERVAL: Final = "30s"  # as targets are scraped by default
_OURS: Final = 'datacenter!=""'  # of_our_hosts does not know names with a colon from recorded ones
_WHO: Final = ", ".join(LABELS)
_POD: Final = "datacenter, cluster, namespace, pod"
_NIM: Final = 'model_name!=""'  # its names without a prefix may be those of other programs
# Each rank of a server that works as one has the same number (sgl-project/sglang, issue 29372); only data parallel ones add up.
_RANKS: Final = "max by (datacenter, cluster, instance, job, namespace, pod, model, model_name, engine_type, dp_rank)"


def metric_groups() -> list[RuleGroup]:
    """For Mimir and Prometheus."""
    words = {
        "model:requests:rate5m": f"sum by ({_WHO}) ({_placed(_rates(_REQUESTS))})",
        "model:requests_failed:rate5m": f"sum by ({_WHO}) ({_placed(_rates(_FAILED))})",
        "model:tokens:rate5m": f"sum by ({_WHO}) ({_placed(_rates(_TOKENS))})",
        "model:requests_running:count": f"sum by ({_WHO}) ({_placed(_values(_RUNNING))})",
        "model:requests_waiting:count": f"sum by ({_WHO}) ({_placed(_values(_WAITING))})",
        "model:kv_cache:ratio": f"max by ({_WHO}) ({_placed(_values(_KV_CACHE))})",
        "model:request_latency:seconds": f"{_quantiles(_LATENCY)}or\n{_of_triton()}",
        "model:time_to_first_token:seconds": f"{_quantiles(_FIRST_TOKEN)}or\n{_quantiles(_FIRST_RESPONSE_MS, ' / 1000')}",
    }
    rules = [{"record": name, "expr": expression} for name, expression in ((PLACES, _places()), *words.items())]
    return [RuleGroup(name="model-servers", interval=_INTERVAL, rules=tuple(map(_of_ours, rules)))]


def _of_ours(rule: Mapping[str, str]) -> Rule:
    return {**rule, "expr": of_our_hosts(rule["expr"])}


# What each server calls it, by the label with which it names its model ("": none).

_REQUESTS: Final = {
    "model_name": (
        f"vllm:request_success_total{{{_OURS}}}",
        f"request_finish_total{{{_NIM}}}",
        f"sglang:num_requests_total{{{_OURS}}}",
        "trtllm_request_success_total",
        "trtllm_request_error_total",
    ),
    "": ("tgi_request_count",),
    "exported_model": ("nv_inference_request_success", "nv_inference_request_failure"),
}
# Without those that a limit of tokens or a stop word ended. Aborted ones were given up, by the client or the server.
_FAILED: Final = {
    "model_name": (
        f'vllm:request_success_total{{{_OURS}, finished_reason=~"abort|error"}}',
        f"request_failure_total{{{_NIM}}}",
        f"sglang:num_aborted_requests_total{{{_OURS}}}",
        "trtllm_request_error_total",
    ),
    "": ("tgi_request_failure",),
    "exported_model": ("nv_inference_request_failure",),
}
_TOKENS: Final = {
    "model_name": (
        f"vllm:generation_tokens_total{{{_OURS}}}",
        f"generation_tokens_total{{{_NIM}}}",
        f"sglang:generation_tokens_total{{{_OURS}}}",
        "trtllm_generation_tokens_total",
    ),
    "": ("tgi_request_generated_tokens_sum",),
}
_RUNNING: Final = {
    "model_name": (
        f"vllm:num_requests_running{{{_OURS}}}",
        f"num_requests_running{{{_NIM}}}",
        f"{_RANKS} (sglang:num_running_reqs{{{_OURS}}})",
        "trtllm_num_requests_running",
    ),
    "": ("tgi_batch_current_size",),
    "exported_model": ('nv_trt_llm_request_metrics{request_type="scheduled"}',),
}
_WAITING: Final = {
    "model_name": (
        f"vllm:num_requests_waiting{{{_OURS}}}",
        f"num_requests_waiting{{{_NIM}}}",
        f"{_RANKS} (sglang:num_queue_reqs{{{_OURS}}})",
        "trtllm_num_requests_waiting",
    ),
    "": ("tgi_queue_size",),
    # Before a backend takes them, and within that of TensorRT-LLM, which takes all.
    "exported_model": ("nv_inference_pending_request_count", 'nv_trt_llm_request_metrics{request_type="waiting"}'),
}
_KV_CACHE: Final = {
    "model_name": (
        f"vllm:kv_cache_usage_perc{{{_OURS}}}",
        f"vllm:gpu_cache_usage_perc{{{_OURS}}}",
        f"gpu_cache_usage_perc{{{_NIM}}}",
        f"sglang:token_usage{{{_OURS}}}",
        "trtllm_kv_cache_utilization",
    ),
    "exported_model": ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',),
}
_LATENCY: Final = {
    "model_name": (
        f"vllm:e2e_request_latency_seconds_bucket{{{_OURS}}}",
        f"e2e_request_latency_seconds_bucket{{{_NIM}}}",
        f"sglang:e2e_request_latency_seconds_bucket{{{_OURS}}}",
        "trtllm_e2e_request_latency_seconds_bucket",
    ),
    "": ("tgi_request_duration_bucket",),
}
_FIRST_TOKEN: Final = {
    "model_name": (
        f"vllm:time_to_first_token_seconds_bucket{{{_OURS}}}",
        f"time_to_first_token_seconds_bucket{{{_NIM}}}",
        f"sglang:time_to_first_token_seconds_bucket{{{_OURS}}}",
        "trtllm_time_to_first_token_seconds_bucket",
    ),
}
# Of models that answer in parts, such as TTS that streams: --metrics-config histogram_latencies=true.
_FIRST_RESPONSE_MS: Final = {"exported_model": ("nv_inference_first_response_histogram_ms_bucket",)}
_SUMMARY_US: Final = "nv_inference_request_summary_us"  # --metrics-config summary_latencies=true

_Metrics = Mapping[str, Iterable[str]]


def _rates(metrics: _Metrics) -> str:
    return _values({label: [f"rate({metric}[5m])" for metric in names] for label, names in metrics.items()})


def _values(metrics: _Metrics) -> str:
    """All of them; those of one label differ by another, so that none hides another."""
    parts = []
    for label, expressions in metrics.items():
        for number, expression in enumerate(expressions):
            own = f'label_replace({expression}, "part", "{number}", "", "")' if label == "exported_model" else expression
            parts.append(_with_model(own, label))
    return "\nor\n".join(parts)


def _with_model(expression: str, label: str) -> str:
    match label:
        case "model_name":  # "": the stack file names none
            joined = f'label_join({expression}, "model_name", ";", "model", "model_name")'
            return f'label_replace({joined}, "model", "$1", "model_name", ";(.+)")'
        case "exported_model":  # Triton has a label `model`; the target's, if it has one, renamed it
            return f'label_replace({expression}, "model", "$1", "exported_model", "(.+)")'
    return expression


def _placed(expression: str) -> str:
    """With the labels `server`, and `instance` as GPUs have it: of a pod the node, where kube-state-metrics has it. `target`
    keeps apart what differs by instance alone, such as two ports of a pod: equal series would end the rule with an error."""
    found = f"(\n{indent(expression, '  ')}\n) * on ({_POD}) group_left (node) {PLACES}"
    for label, source in (("target", "instance"), ("instance", "node"), ("server", "job"), ("server", "pod")):
        found = f'label_replace(\n{indent(found, "  ")}\n, "{label}", "$1", "{source}", "(.+)")'
    return f"\n{indent(found, '  ')}\n"


def _places() -> str:
    """The node of each pod that serves a model, one row without a node for the others, one for all hosts of a cluster."""
    gauges = (*_names(_RUNNING), *_names(_WAITING), *_names(_REQUESTS))
    serving = f'group by ({_POD}) ({{{_OURS}, __name__=~"{"|".join(dict.fromkeys(gauges))}"}})'
    nodes = f'topk by ({_POD}) (1, group by ({_POD}, node) (kube_pod_info{{node!=""}}))'
    return f'{nodes}\nand on ({_POD})\n{serving}\nor\n(\n  {serving}\n  unless on ({_POD})\n  kube_pod_info{{node!=""}}\n)\n'


def _names(metrics: _Metrics) -> list[str]:
    return [
        expression.removeprefix(f"{_RANKS} (").partition("{")[0] for expressions in metrics.values() for expression in expressions
    ]


def _quantiles(buckets: _Metrics, scale: str = "") -> str:
    """Of the last five minutes. Without a request there is no value."""
    histogram = f"sum by ({_WHO}, le) ({_placed(_rates(buckets))})"
    return "or\n".join(
        f'label_replace(histogram_quantile({quantile}, {histogram}) >= 0, "statistic", "{name}", "", ""){scale}\n'
        for quantile, name in ((0.5, "p50"), (0.95, "p95"))
    )


def _of_triton() -> str:
    """Quantiles where they are enabled, else the mean."""
    quantiles = [
        f"label_replace(max by ({_WHO}) ({_placed(_values({'exported_model': [_summary(quantile)]}))}) / 1000000 >= 0, "
        f'"statistic", "{name}", "", "")\n'
        for quantile, name in (("0.5", "p50"), ("0.95", "p95"))
    ]
    spent, counted = (
        f"sum by ({_WHO}) ({_placed(_rates({'exported_model': [name]}))})"
        for name in ("nv_inference_request_duration_us", "nv_inference_request_success")
    )
    any_quantile = f"max by ({_WHO}) ({_placed(_values({'exported_model': [_SUMMARY_US]}))})"
    mean = f'label_replace({spent} / {counted} / 1000000 >= 0, "statistic", "mean", "", "")\nunless on ({_WHO})\n{any_quantile}\n'
    return "or\n".join((*quantiles, f"(\n{indent(mean, '  ')})\n"))


def _summary(quantile: str) -> str:
    return f'{_SUMMARY_US}{{quantile="{quantile}"}}'
