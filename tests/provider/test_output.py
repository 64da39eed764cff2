"""What a host prints: cleaned of secrets and control characters, bounded, and never more than text."""

from __future__ import annotations

import base64
import json
import shlex
import sys
import unicodedata
from urllib.parse import quote

import pytest

from gpu_fleet.provider.host import HostError, _raise_failures
from gpu_fleet.provider.lines import Lines
from gpu_fleet.provider.outcome import Cleaner, Outcome
from gpu_fleet.provider.redaction import Redaction
from gpu_fleet.provider.ruler import normalised
from gpu_fleet.provider.settings import Settings
from gpu_fleet.provider.transport import TransportError
from gpu_fleet.safetext.terminal import LONGEST_SHOWN, printable, printable_line, printable_value

# --- terminals --------------------------------------------------------------------------------------------------------------


def test_no_character_that_a_terminal_executes_hides_or_reorders_is_left() -> None:
    dangerous = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(chr(code)) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN")
    ]
    shown = printable("".join(character for character in dangerous if character not in "\n\t"))
    assert shown.isascii() and shown.isprintable()
    assert printable("gpu-001: 80 °C, größer, 温度\n\tok") == "gpu-001: 80 °C, größer, 温度\n\tok"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("10%\rgpu-002: fine", r"10%\rgpu-002: fine"),
        ("user\u202e gnp.exe", r"user\u202e gnp.exe"),
        ("a\ngpu-002: fine\n", "a gpu-002: fine"),
        ("<{%red%}>", r"<\{%red%}>"),
        (" ::set-output name=a::b", r"\::set-output name=a::b"),
        ("##[error]a ##vso[task.setvariable]b", r"#\#[error]a #\#vso[task.setvariable]b"),
        ("::1 does not answer; {% raw %} <{ 5% }>", "::1 does not answer; {% raw %} <{ 5% }>"),
    ],
)
def test_a_line_of_a_host_stays_one_line_and_shows_what_is_in_it(text: str, shown: str) -> None:
    assert printable_line(text) == shown


def test_what_was_made_safe_stays_as_it_is() -> None:
    for text in ("<{%a%}>", "::error::a", "##[error]", '{"a": "\\u001b"}', 'a: 1\nb: "\\e"\n', "\x1b\u202e"):
        assert printable(printable(text)) == printable(text)
        assert printable_value(printable_value(text)) == printable_value(text)


def test_a_line_without_end_is_cut() -> None:
    assert len(printable_line("x" * 10_000_000)) == LONGEST_SHOWN


def test_what_a_server_says_before_a_login_reaches_no_terminal_raw() -> None:
    assert str(TransportError("unreachable", "10.0.0.1 ended the connection: \x1b[1mhi")).endswith(r"\x1b[1mhi")


def test_a_rule_that_somebody_changed_in_the_ruler_is_shown_with_escapes() -> None:
    rules = 'name: g\nrules: [{alert: A, expr: up, annotations: {summary: "a\\e[2J\\u202eb \\u2028 80 °C"}}]'
    text = normalised(rules)
    assert printable(text) == text
    assert normalised(text) == text


# --- secrets ----------------------------------------------------------------------------------------------------------------

KEY = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ\nAAAAtzc2gtZWQyNTUxOQAAACDxYzFakE\n-----END"
)


@pytest.mark.parametrize("secret", ['pa"ss\\wo rd', "p@ss/wörd&'x'", "correct-horse-battery", "a$b`c;d(e)f"])
def test_a_secret_is_found_however_a_program_prints_it(secret: str) -> None:
    redaction = Redaction([secret])
    spellings = {
        "raw": secret,
        "JSON": json.dumps({"a": secret}),
        "JSON in UTF-8": json.dumps(secret, ensure_ascii=False),
        "URL": f"https://writer:{quote(secret, safe='')}@mimir",
        "shell": f"curl --user {shlex.quote(secret)}",
        "shell, quoted by hand": "'" + secret.replace("'", "'\\''") + "'",
        "base64": base64.b64encode(secret.encode()).decode(),
        "base64 for URLs": base64.urlsafe_b64encode(secret.encode()).decode(),
        **{f"basic auth of {user}": base64.b64encode(f"{user}:{secret}".encode()).decode() for user in ("a", "ab", "abc")},
        "Python": repr([secret]),
    }
    for spelling, text in spellings.items():
        cleaned = redaction.text(text)
        assert "[secret]" in cleaned, f"{spelling}: {cleaned}"
        assert secret not in cleaned
    # What base64 leaves of it: at most the characters that its neighbours share.
    assert len(redaction.text(spellings["basic auth of ab"])) <= len("[secret]") + 8


def test_a_private_key_is_hidden_line_by_line_and_its_headings_are_not() -> None:
    redaction = Redaction([KEY])
    for line in KEY.splitlines()[1:3]:
        assert redaction.text(f"cannot parse {line}") == "cannot parse [secret]"
    assert redaction.text("no -----BEGIN OPENSSH PRIVATE KEY----- found") == "no -----BEGIN OPENSSH PRIVATE KEY----- found"


def test_a_path_within_a_secret_file_is_shown_because_its_error_names_it() -> None:
    redaction = Redaction(
        ["tls_server_config:\n  key_file: /etc/ssl/gpu-fleet.key\nbasic_auth_users:\n  prometheus: $2y$10$abcdefghijklm\n"]
    )
    assert redaction.text("open /etc/ssl/gpu-fleet.key: permission denied") == "open /etc/ssl/gpu-fleet.key: permission denied"
    assert redaction.text("bad hash $2y$10$abcdefghijklm") == "bad hash [secret]"


def test_every_secret_of_the_configuration_is_hidden() -> None:
    client_key = base64.b64encode(b"a client key in PEM, as it is in kubeconfigs").decode()
    user = {"token": "kube-token-abc", "client-key-data": client_key, "exec": {"env": [{"name": "PW", "value": "exec-secret-1"}]}}
    kubeconfig = json.dumps(
        {"clusters": [{"cluster": {"server": "https://10.0.0.1:6443"}}], "users": [{"name": "x", "user": user}]}
    )
    settings = Settings.of(
        {
            "sshPrivateKey": KEY,
            "sudoPassword": "sudo-password-1",
            "sudoPasswords": json.dumps({"gpu-1": "sudo-password-2"}),
            "rulerPassword": "ruler-password",
            "secrets": json.dumps({"metrics-password": "metrics-secret"}),
            "kubeconfig": kubeconfig,
            "digestKey": "d" * 32,
        }
    )
    secrets = [
        "sudo-password-1",
        "sudo-password-2",
        "ruler-password",
        "metrics-secret",
        "kube-token-abc",
        client_key,
        "exec-secret-1",
    ]
    redaction = Redaction(settings.every_secret())
    text = " ".join([*secrets, "a client key in PEM, as it is in kubeconfigs", "d" * 32, KEY.splitlines()[1]])
    assert set(redaction.text(text).split()) == {"[secret]"}
    assert redaction.text("https://10.0.0.1:6443 does not answer") == "https://10.0.0.1:6443 does not answer"


def part(**values: object) -> bytes:
    return json.dumps({"event": "part", "part": "alloy", "status": "failed", **values}).encode()


@pytest.mark.parametrize("secret", ["a", "alloy", "failed", "part", 'say "no"'])
def test_a_secret_changes_no_structure(secret: str) -> None:
    """Replaced within the JSON, the password `alloy` would rename a part, and one with a quotation mark would not be found."""
    error = {"code": "failed", "message": f"curl: (22) 'https://writer:{secret}@mimir'", "log": [f"password={secret}"]}
    outcome = Outcome()
    outcome.add(part(drift=["/etc/gpu-fleet/alloy/export.alloy: content differs"], error=error), Cleaner([secret]))
    outcome.add(b'{"event":"facts","facts":{"alloy":"alloy"}}', Cleaner([secret]))
    report = outcome.parts["alloy"]
    assert report.status == "failed" and report.error and report.error.code == "failed"
    assert outcome.drift() == ["alloy: /etc/gpu-fleet/alloy/export.alloy: content differs"]
    assert outcome.facts == {"alloy": "alloy"}
    if len(secret) > 1:  # "a" is in every text
        assert report.error.message == "curl: (22) 'https://writer:[secret]@mimir'"
        assert report.error.log == ("password=[secret]",)


# --- what is kept -----------------------------------------------------------------------------------------------------------


def test_lines_are_the_same_however_the_stream_is_cut() -> None:
    data = b"one\n\ntwo\nthree"
    for size in range(1, len(data) + 1):
        lines = Lines(100)
        found = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
        assert (found, lines.rest) == ([b"one", b"", b"two"], b"three")


def test_of_a_line_without_end_only_the_beginning_is_kept() -> None:
    lines = Lines(1000)
    for _ in range(200):
        assert lines.feed(b"x" * (256 << 10)) == []
    assert lines.rest == b"x" * 1000
    assert lines.feed(b"end\nnext\n") == [b"x" * 1000, b"next"]


def test_what_is_kept_of_a_host_that_prints_without_end_is_bounded() -> None:
    outcome, cleaner = Outcome(), Cleaner(["correct-horse-battery"])
    error = {"code": "x", "message": "first " + "x" * 20_000, "log": ["y" * 3_000] * 50}
    for number in range(20_000):
        outcome.add(b"\xff\x00 noise %d " % number + b"x" * 500, cleaner)
        if number < 300:
            name = f"p{number}" + "x" * 1_000_000 * (number == 7)
            outcome.add(json.dumps({"event": "facts", "facts": {f"F{number}": "x" * 500}}).encode(), cleaner)
            report = {"status": "x" * 500, "drift": ["d" * 3_000] * 50, "changes": ["c" * 3_000] * 50, "error": error}
            outcome.add(json.dumps({"event": "part", "part": name, **report}).encode(), cleaner)
    assert len(json.dumps({"facts": outcome.facts, "drift": outcome.drift()})) < 64 << 10, "of each host in the state"
    with pytest.raises(HostError) as raised:
        _raise_failures(outcome)
    assert len(str(raised.value)) < 64 << 10, "of each host in one message"
    assert str(raised.value).startswith("x: p0: first xxx"), "the first error is the cause"
    assert outcome.drift()[-1].endswith(": and 50 more")
    outcome.add(json.dumps({"event": "needs", "files": ["a" * 64] * 20_000}).encode(), cleaner)
    assert len(outcome.needs) < 1_000


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"part"}',
        b'{"event":"part","part":["a"],"status":1,"error":"x","drift":"y","changes":[1,null,{}]}',
        b'{"event":"facts","facts":{"A":{"b":1},"C":null}}',
        b'{"event":"facts","facts":7}',
        b'{"event":"renamed"}',
        b'{"event":"needs","files":"x"}',
        b'{"event":"needs","files":[1,null,"../../etc/shadow","A"]}',
        b'{"event":{}}',
        b"{" + b'"a":{' * 100_000,
        b'{"event":"part","part":"a","error":{"log":7}}',
        b"[1]",
        b"{\xff",
    ],
)
def test_an_event_of_another_shape_ends_in_no_traceback(line: bytes) -> None:
    outcome = Outcome()
    outcome.add(line, Cleaner())
    assert not outcome.has_result
    assert (outcome.drift(), outcome.failures().keys() - {"a"}, outcome.needs) == ([], set(), ())
