"""Single values of the stack file: what is expected, and how to fix what is not."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict, JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from gpu_fleet.host.scrape_interval import ALLOWED_S
from gpu_fleet.stackfile.problems import listed, shown

LONGEST_NAME = 40  # a datacenter or cluster is part of Grafana uids and Kubernetes names, which end at 40 and 63 characters


class Section(BaseModel):
    """A mapping of the stack file: camelCase keys, no key that we do not know, no value bent into another type.

    The docstring below a key describes it in the schema (schema.py).
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", alias_generator=to_camel)


def refuse(what: str, *, expected: str = "", fix: str = "") -> PydanticCustomError:
    """The error of a validator: what was found, what is expected, how to fix it. Never put a possible secret into it."""
    return PydanticCustomError("refused", "{what}", {"what": what, "expected": expected, "fix": fix})


# What follows `str` in a type such as `Annotated[str, *text_type(...)]`: the check, and what the schema says of it. They are
# unpacked there because pydantic merges only a Field that stands in Annotated itself with the field's own.
TextType = tuple[AfterValidator, FieldInfo]


def text_type(check: Callable[[str], str], expected: str, *examples: str, **schema: JsonValue) -> TextType:
    """Text that `check` accepts (or rewrites); `expected` is shown to people and to editors."""
    extra: JsonDict = {"x-expected": expected, "examples": list(examples), **schema}
    field: FieldInfo = Field(json_schema_extra=extra)
    return AfterValidator(check), field


def _pattern(pattern: str, expected: str, fix: str, *examples: str, longest: int, is_secret: bool = False) -> TextType:
    secret = ("secret",) if is_secret else ()  # what people put here by error is not shown

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise refuse(f"found {shown(text, *secret)}" if text else "is empty", expected=expected, fix=fix)
        if len(text) > longest:
            what = f"{shown(text, *secret)} has {len(text)} characters"
            raise refuse(what, expected=f"{expected}, at most {longest} characters", fix="shorten it")
        return text

    return text_type(check, expected, *examples, pattern=f"^{pattern}$", maxLength=longest)


Name = Annotated[
    str,
    *_pattern(
        r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?",
        "lower-case letters, digits and . _ - between them",
        "it becomes a label value and part of resource names: write it in lower case, with - for spaces",
        "us-west",
        longest=LONGEST_NAME,
    ),
]
Sha256 = Annotated[
    str, *_pattern(r"[0-9a-f]{64}", "64 lower-case hexadecimal digits", "take it from `sha256sum`", "0" * 64, longest=64)
]
ImageDigest = Annotated[
    str,
    *_pattern(
        r"[a-z0-9.-]+(:[0-9]+)?/[a-z0-9._/-]+(:[A-Za-z0-9._-]+)?@sha256:[0-9a-f]{64}",
        "registry/repository@sha256:digest",
        "name the image by its digest: `docker buildx imagetools inspect IMAGE` prints it",
        "registry.example.com/nvidia/dcgm-exporter@sha256:" + "0" * 64,
        longest=300,
    ),
]
Tenant = Annotated[
    str,
    *_pattern(
        r"[A-Za-z0-9!._*'()-]+",
        "letters, digits and ! - _ . * ' ( )",
        "write the tenant as Mimir and Loki know it (header X-Scope-OrgID)",
        "us-west",
        longest=150,
    ),
]
Username = Annotated[
    str, *_pattern(r"[^\s:]+", "text without spaces and colons", "write the user name alone", "writer", longest=256)
]
DataSourceUid = Annotated[
    str,
    *_pattern(
        r"[A-Za-z0-9_-]+",
        "the uid of a data source",
        "copy it from the address of its page in Grafana, /connections/datasources/edit/UID",
        "prometheus",
        longest=40,
    ),
]
HeaderName = Annotated[
    str,
    *_pattern(
        r"[A-Za-z0-9-]+",
        "the name of an HTTP header: letters, digits and -",
        "write the name alone",
        "X-Gateway-Team",
        longest=100,
    ),
]
HeaderValue = Annotated[
    str,
    *_pattern(r"[\x20-\x7e]+", "printable ASCII text", "write the value in quotes", "gpu", longest=1000, is_secret=True),
]
LoginName = Annotated[
    str,
    *_pattern(
        r"[A-Za-z_][A-Za-z0-9_.@\\-]*\$?",
        "a login name of the hosts",
        "write the user's name alone, without the host",
        "ops",
        longest=64,
    ),
]
SecretName = Annotated[
    str,
    *_pattern(
        r"[a-z][A-Za-z0-9]*",
        "the name of a secret key, camelCase",
        "put the secret itself into a key of its own with `pulumi config set --secret gpu-fleet:NAME`, and write NAME here",
        "slackUrl",
        longest=64,
        is_secret=True,
    ),
]
Label = Annotated[
    str, *_pattern(r"[A-Za-z_][A-Za-z0-9_]*", "a label name", "write the label's name alone", "severity", longest=128)
]
LabelText = Annotated[str, *_pattern(r"[\x20-\x7e]+", "printable ASCII text", "write the value in quotes", "ml", longest=200)]
JobName = Annotated[
    str,
    *_pattern(
        r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?",
        "lower-case letters, digits and _ - between them",
        "it becomes the label `job`: write it in lower case",
        "vllm",
        longest=60,
    ),
]
MetricPattern = Annotated[
    str,
    *_pattern(
        r"[A-Za-z_:*][\w:*]*",
        "the name of a metric, with * for any characters",
        "write one name per list item",
        "vllm:*",
        longest=200,
    ),
]
Matcher = Annotated[
    str,
    *_pattern(
        r"[A-Za-z_][A-Za-z0-9_]*\s*(=~|!~|!=|=)\s*\S.*",
        "a matcher as in Alertmanager: label=value, label!=value, label=~regex or label!~regex",
        "write one matcher per list item",
        "severity=critical",
        longest=512,
    ),
]
HostKey = Annotated[
    str,
    *_pattern(
        r"(sk-)?(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+)(@openssh\.com)? [A-Za-z0-9+/]+=*( .*)?",
        "a public host key: its type, a space, its base64 text",
        "`ssh-keyscan HOST` prints it (leave the host's name out); compare it with the console of the host",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI…",
        longest=4096,
    ),
]
SigningPublicKey = Annotated[
    str,
    *_pattern(
        r"(sk-)?(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+)(@openssh\.com)? [A-Za-z0-9+/]+=*( .*)?",
        "a public SSH key: its type, a space, its base64 text",
        "copy the text of the .pub file",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI…",
        longest=4096,
    ),
]
Share = Annotated[
    str,
    *_pattern(
        r"(100|[1-9]?\d(\.\d{1,2})?)%", "a share of the hosts from 0.01% to 100%", "write for example 10%", "10%", longest=8
    ),
]
Bandwidth = Annotated[
    str,
    *_pattern(
        r"[1-9]\d*(\.\d+)?[kMG]bit/s",
        "a bandwidth in kbit/s, Mbit/s or Gbit/s",
        "write for example 1Gbit/s",
        "1Gbit/s",
        longest=20,
    ),
]
AbsolutePath = Annotated[
    str, *_pattern(r"/[^\0\n]*", "an absolute path on the host", "start it with /", "/usr/local/bin", longest=4096)
]
LocalPath = Annotated[
    str,
    *_pattern(
        r"[^\0\n]+",
        "a path, relative to Pulumi.yaml, absolute, or with ~",
        "write the file's path",
        "inventory/known_hosts",
        longest=4096,
    ),
]
TimeOfDay = Annotated[
    str,
    *_pattern(r"([01]\d|2[0-3]):[0-5]\d|24:00", "a time from 00:00 to 24:00", "write it in quotes, as HH:MM", "22:00", longest=5),
]

Currency = Annotated[
    str, *_pattern(r"[A-Z]{3}", "three capitals, as ISO 4217 has them", "write the currency's code", "USD", longest=3)
]

DriverVersion = Annotated[
    str,
    *_pattern(
        r"\d{1,4}(\.\d{1,4}){0,3}",
        "a version in quotes, whole or its beginning",
        "write the version as nvidia-smi shows it, or its branch",
        '"570"',
        '"570.86.15"',
        longest=19,
    ),
]

Days = Annotated[str, *_pattern(r"[1-9]\d{0,3}d", "a number of days from 1d to 9999d", "write for example 90d", "90d", longest=5)]

Port = Annotated[int, Field(ge=1, le=65535, examples=[9100])]


def _price(number: float) -> float:
    if not 0 < number < 1000:
        raise refuse(
            f"found {number:g}",
            expected="a price above 0 and below 1000",
            fix="write what one GPU costs in one hour, such as 2.5",
        )
    return number


Price = Annotated[float, AfterValidator(_price), Field(examples=[2.5])]

GpuModel = Annotated[
    str,
    *_pattern(
        r"[A-Za-z0-9][A-Za-z0-9 ._-]*",
        "words of a GPU's model",
        "write words that nvidia-smi -L has, or default",
        "H100",
        longest=60,
    ),
]


def _day_alone(value: object) -> object:
    """YAML reads an unquoted day as a date, and Pulumi 3 makes `2026-11-01 00:00:00 +0000 UTC` of it."""
    if isinstance(value, datetime.date):
        return value.isoformat()[:10]
    return re.sub(r"[ T]00:00:00( \+0000 UTC|Z)", "", value) if isinstance(value, str) else value


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise refuse(f'found "{text}"', expected="a day such as 2026-11-01", fix="write year, month and day") from None


Day = Annotated[str, *text_type(_day, "a day such as 2026-11-01", "2026-11-01"), BeforeValidator(_day_alone)]

Texts = Strict(False)  # YAML gives lists where the frozen model keeps tuples


def local_path(base: Path, text: str) -> Path:
    """A path of this machine as the stack file writes it: relative to Pulumi.yaml (in `base`), absolute, or with ~."""
    return base / Path(text).expanduser()


def is_hostname(text: str) -> bool:
    if len(text) > 253:
        return False
    return all(
        re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", label) for label in text.removesuffix(".").split(".")
    )


def address_problem(text: str) -> str | None:
    """Why `text` is neither an IP address nor a host name; None when it is one of them."""
    try:
        ipaddress.ip_address(text)
        return None
    except ValueError:
        pass
    if re.fullmatch(r"[\d.]+", text):
        return "is not an IPv4 address"
    return None if is_hostname(text) else "is neither an IP address nor a host name"


def _address(text: str) -> str:
    if reason := address_problem(text):
        raise refuse(
            f"{shown(text)} {reason}", expected=ADDRESS_EXPECTED, fix="write the address alone: no user, no port, no URL, no /24"
        )
    return text


ADDRESS_EXPECTED = "an IP address or a host name"
Address = Annotated[str, *text_type(_address, ADDRESS_EXPECTED, "jump.example.com")]


def _url(text: str, fix: str) -> str:
    expected = "a URL with http:// or https:// and a host"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise refuse("is not a URL", expected=expected, fix=fix) from None
    if parts.username is not None or parts.password is not None:
        raise refuse(
            "the URL holds a user name or a password (not shown)",
            expected="a URL without credentials",
            fix="write `username` beside it, and the password as a secret key of its own (`pulumi config set --secret …`)",
        )
    if parts.scheme not in ("http", "https"):
        raise refuse(f"{shown(text)} does not start with http:// or https://", expected=expected, fix=fix)
    if not parts.hostname or address_problem(parts.hostname):
        raise refuse(f"{shown(text)} names no host", expected=expected, fix=fix)
    if port == 0:
        raise refuse(f"{shown(text)} has port 0", expected="a port from 1 to 65535", fix=fix)
    if parts.query or parts.fragment or re.search(r"\s", text):
        raise refuse(f"{shown(text.split('?')[0])} has a query, a fragment or a space in it", expected=expected, fix=fix)
    return text.rstrip("/")


# How the path of a push URL ends, by the stores' documentation (read 2026-11-22): Mimir; Grafana Cloud; Prometheus (started with
# --web.enable-remote-write-receiver) and VictoriaMetrics, whose cluster has it below /insert/TENANT/prometheus; Thanos Receive.
METRICS_ENDS = ("/api/v1/push", "/api/prom/push", "/api/v1/write", "/api/v1/receive")
LOGS_ENDS = ("/loki/api/v1/push",)


def ruler_of(metrics_url: str) -> str | None:
    """The server to whose ruler rules are written, from a push URL of Mimir or Grafana Cloud; other stores have no such ruler."""
    end = next((end for end in METRICS_ENDS[:2] if metrics_url.endswith(end)), None)
    return metrics_url.removesuffix(end) if end else None


def _push_url(ends: tuple[str, ...], stores: str, right: str, foreign: str) -> TextType:
    """A push URL: an address that answers 404 to every push looks like a healthy agent for hours, so its path is checked here."""

    def check(text: str) -> str:
        url = _url(text, f"write for example {right}")
        if url.endswith(ends) and (ends == LOGS_ENDS or not url.endswith(LOGS_ENDS)):
            return url
        parts = urlsplit(url)
        base = re.sub(foreign, "", parts.path)
        raise refuse(
            f"{shown(url)} is not where {stores} takes pushes",
            expected=f"a URL that ends with {' or '.join(ends)}",
            fix=f"write {parts.scheme}://{parts.netloc}{base}{ends[0]}"
            + (f" for Mimir, …{ends[2]} for Prometheus and VictoriaMetrics, …{ends[3]} for Thanos" if len(ends) > 1 else ""),
        )

    return text_type(check, f"a URL that ends with {' or '.join(ends)}", right, format="uri")


MetricsUrl = Annotated[
    str,
    *_push_url(
        METRICS_ENDS,
        "Mimir, Prometheus, VictoriaMetrics or Thanos",
        f"https://mimir.example.com{METRICS_ENDS[0]}",
        r"/(prometheus|loki|api|push|write|receive)(/.*)?$",
    ),
]
LogsUrl = Annotated[
    str, *_push_url(LOGS_ENDS, "Loki", f"https://loki.example.com{LOGS_ENDS[0]}", r"/(loki|api|otlp|push)(/.*)?$")
]


def _base_url(text: str) -> str:
    url = _url(text, "write for example https://mimir.example.com")
    if cut := re.search(r"/(api/v1/push|api/prom/push|loki/api|prometheus/(config|api)|api/dashboards)(/.*)?$", url):
        raise refuse(
            f"{shown(url)} is one endpoint of the server",
            expected="the server's own URL, without an API path",
            fix=f"write {url[: cut.start()]}",
        )
    return url


BaseUrl = Annotated[
    str, *text_type(_base_url, "the server's own URL, without an API path", "https://mimir.example.com", format="uri")
]


def _query_url(text: str) -> str:
    url = _url(text, "write for example https://prometheus.example.com")
    if cut := re.search(r"/api/v1(/(query|query_range|series|labels)?)?$", url):
        raise refuse(f"{shown(url)} is one endpoint", expected="the URL above /api/v1/query", fix=f"write {url[: cut.start()]}")
    return url


QueryUrl = Annotated[str, *text_type(_query_url, "the URL above /api/v1/query", "https://thanos-query.example.com", format="uri")]
WebUrl = Annotated[
    str,
    *text_type(
        lambda text: _url(text, "write for example https://hooks.example.com/alerts"),
        "a URL with http:// or https://",
        "https://hooks.example.com/alerts",
        format="uri",
    ),
]

_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def duration_s(text: str) -> float | None:
    """Seconds of a Go duration such as 1h30m; None when it is none."""
    if not re.fullmatch(r"(\d+(\.\d+)?(h|ms|m|s))+", text):
        return None
    return sum(float(number) * _UNIT_S[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)(h|ms|m|s)", text))


def duration(shortest: str, longest: str, example: str) -> TextType:
    expected = f"a duration from {shortest} to {longest}, with the units h, m, s"
    low, high = duration_s(shortest), duration_s(longest)
    assert low is not None and high is not None, "the limits are written in this repository"

    def check(text: str) -> str:
        seconds = duration_s(text)
        if seconds is None:
            raise refuse(f"{shown(text)} is not a duration", expected=expected, fix=f"write for example {example}")
        if not low <= seconds <= high:
            what = f"{shown(text)} is too {'short' if seconds < low else 'long'}"
            raise refuse(what, expected=expected, fix=f"write for example {example}")
        return text

    return text_type(check, expected, example)


def rule_duration(shortest: str, longest: str, example: str) -> TextType:
    """As `duration`, for Prometheus: whole numbers, large units first, each once."""
    check, field = duration(shortest, longest, example)

    def strict(text: str) -> str:
        found = str(check.func(text))  # type: ignore[call-arg]  # it takes a value alone
        if not re.fullmatch(r"(\d+h)?(\d+m)?(\d+s)?", found):
            what, expected = f"{shown(text)} is not a duration of a rule", "whole hours, minutes and seconds, in this order"
            raise refuse(what, expected=expected, fix=f"write for example {example}")
        return found

    return AfterValidator(strict), field


_SCRAPE_INTERVALS = [f"{seconds}s" for seconds in ALLOWED_S]


def _scrape_interval(text: str) -> str:
    if text in _SCRAPE_INTERVALS:
        return text
    seconds, fix = duration_s(text), "write one of them"
    if seconds is not None and seconds < ALLOWED_S[0]:
        fix = f"write {_SCRAPE_INTERVALS[0]}: exporters read the GPUs as often, and more scrapes send the same values again"
    elif seconds is not None and f"{seconds:g}s" in _SCRAPE_INTERVALS:
        fix = f"write {seconds:g}s"
    elif seconds is not None and seconds > ALLOWED_S[-1]:
        fix = f"write {_SCRAPE_INTERVALS[-1]}: rules look back five minutes, in which some scrapes may fail"
    raise refuse(f"found {shown(text)}", expected=listed(_SCRAPE_INTERVALS), fix=fix)


ScrapeInterval = Annotated[
    str, *text_type(_scrape_interval, listed(_SCRAPE_INTERVALS), *_SCRAPE_INTERVALS, enum=list(_SCRAPE_INTERVALS))
]
