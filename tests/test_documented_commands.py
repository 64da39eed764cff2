"""Every command of the documents is run by a test, or says what it needs: documented_commands.yaml."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from gpu_fleet.stackfile.sections import SECRETS
from lab.standins import programs
from tests.checkout import REPO
from tests.documents import PAGES, SHELL, Command, blocks, commands, looks_like_commands
from tests.places import Place, two_hosts

REGISTRY = yaml.safe_load((REPO / "tests/documented_commands.yaml").read_text())
MAKEFILE = (REPO / "Makefile").read_text()
OF_ANY_TARGET = {"STACK", "STACKS"}


def documented() -> Iterator[Command]:
    """Those that need nothing that a test cannot have, of pages that no test runs as a whole."""
    for page in PAGES:
        if str(page.relative_to(REPO)) in REGISTRY["pages"]:
            continue
        for block in blocks(page):
            if block.language in SHELL and not block.needs:
                yield from commands(block)


def form(text: str) -> str:
    words = text.split()
    if words[0] == "make":
        variables = set(re.findall(r"(?<=\s)([A-Z_]+)=", text)) - OF_ANY_TARGET
        return " ".join(["make", words[1], *sorted(variables)])
    if words[0] == "pulumi":
        text = re.sub(r"\s+(--stack \S+|<<?\s*\S+|>\s*\S+)", "", text)
        return re.sub(r"(config set --secret) gpu-fleet:\w+$", r"\1", text)
    return " ".join(words)


@cache
def forms() -> dict[str, list[Command]]:
    found: dict[str, list[Command]] = {}
    for command in documented():
        if command.text.split()[0] not in REGISTRY["shell"]:
            found.setdefault(form(command.text), []).append(command)
    return found


def test_every_command_is_run_by_a_test_or_says_what_it_needs() -> None:
    known = {*REGISTRY["here"], *REGISTRY["commands"]}
    lacking = [f"{found[0].block.place}: {name}" for name, found in forms().items() if name not in known]
    assert not lacking, (
        'name the test that runs them in tests/documented_commands.yaml, or write ```sh title="needs …":\n' + "\n".join(lacking)
    )


def test_the_registry_lists_only_what_is_documented_and_each_once() -> None:
    assert not set(REGISTRY["here"]) & set(REGISTRY["commands"])
    assert {*REGISTRY["here"], *REGISTRY["commands"]} - set(forms()) == set()


@pytest.mark.parametrize("name", [*REGISTRY["pages"], *REGISTRY["commands"]])
def test_the_test_of_a_command_exists_and_runs_it(name: str) -> None:
    test, proof = (REGISTRY["pages"] | REGISTRY["commands"])[name]
    path, _, function = test.partition("::")
    file = REPO / path
    beside = [REPO / "tests/conftest.py", *(parent / "conftest.py" for parent in file.parents if parent.is_relative_to(REPO))]
    if function:
        defined = {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
        assert function in defined, f"{path} has no test {function}"
    assert any(proof in text.read_text() for text in (file, *beside) if text.is_file()), f"{path} does not have: {proof}"


def test_no_commands_are_in_a_block_without_a_language() -> None:
    hidden = [block.place for page in PAGES for block in blocks(page) if looks_like_commands(block)]
    assert not hidden, "write ```sh, so that the commands are tested: " + ", ".join(hidden)


@cache
def of_make() -> dict[str, Command]:
    """By text; those too that need what no test can have."""
    pages = (*PAGES, *(REPO / "alerts/runbooks").glob("*.md"))
    everywhere = [command for page in pages for block in blocks(page) if block.language in SHELL for command in commands(block)]
    return {command.text: command for command in everywhere if command.text.startswith("make ")}


def test_make_knows_the_targets_and_variables_that_documents_give_it() -> None:
    assert of_make()
    for text, command in of_make().items():
        known = set(re.findall(r"\$[({]([A-Z_]+)[)},]", MAKEFILE)) | {"PLAN", "PRICE", "TO", "BASE", "LIMIT", "STACKS_TO"}
        unknown = set(re.findall(r"(?<=\s)([A-Z_]+)=", text)) - known
        assert not unknown, f"{command.block.place}: {text}: the Makefile reads no {', '.join(unknown)}"
        dry = subprocess.run(
            ["sh", "-c", text.replace("make ", "make --dry-run ", 1)], cwd=REPO, capture_output=True, text=True, check=False
        )
        assert dry.returncode == 0, f"{command.block.place}: {text}\n{dry.stderr}"


def test_what_people_give_to_a_target_is_set_by_no_other_line_of_the_makefile() -> None:
    """Set-up's list of Pythons was the value of `make offline-kit PYTHONS=...` for those who gave none."""
    given = {name for text in of_make() for name in re.findall(r"(?<=\s)([A-Z_]+)=", text)}
    assert given and given & set(re.findall(r"(?m)^(?:export )?([A-Z_]+) *[:?+]?= *\S", MAKEFILE)) == set()


def test_each_secret_that_a_page_sets_is_known_or_named_by_a_receiver() -> None:
    for page in PAGES:
        text = page.read_text()
        named = {*SECRETS, *re.findall(r"Secret: (\w+)", text)}
        for key in re.findall(r"pulumi config set --secret gpu-fleet:([A-Za-z]+)", text):
            assert key in named or key == "NAME", f"{page.relative_to(REPO)}: {key} is no secret of a stack"


# --- run here ---------------------------------------------------------------------------------------------------------------

STACK_FILE = "Pulumi.s.yaml"
# What the person types at the prompt or has in a file; `monitoring.key` is made by a command of the same page.
FILES = ("key-file", "key.pem", "kubeconfig", "token-file")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with two_hosts(tmp_path_factory.mktemp("documented")) as place:
        place.write_stack()
        (place.project / "Pulumi.training.yaml").rename(place.project / STACK_FILE)
        (place.home / "pulumi-state").mkdir()
        for name in FILES:
            (place.project / name).write_text("of the person\n")
        for variable in ("PULUMI_BACKEND_URL", "PULUMI_STACK"):
            del place.environment[variable]
        place.environment |= {
            **programs.environment("s", "eu-central-training", "rented"),
            "PULUMI_CREDENTIALS_PATH": str(place.home),  # not the login of whoever runs the tests
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_OPTION_YES": "true",
            "STAND_INS": "1",
        }
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
        for arguments in (("init", "--quiet", "--initial-branch=main"), ("add", "--all", "--", ".", ":!.venv")):
            subprocess.run(["git", *arguments], cwd=place.project, check=True, capture_output=True)
        commit = ["git", *identity, "commit", "--quiet", "--message", "of the test"]
        subprocess.run(commit, cwd=place.project, check=True, capture_output=True)
        os.utime(place.checkout / "requirements.txt", (0, 0))  # they are installed
        yield place


def test_the_commands_that_a_person_types_one_after_another_work_as_they_are_documented(place: Place) -> None:
    stack = (place.project / STACK_FILE).read_text()
    for name in REGISTRY["here"]:
        for text in dict.fromkeys(command.text for command in forms()[name]):
            if name == "make up-all":
                salt = re.search(r"(?m)^encryptionsalt: .*$", (place.project / STACK_FILE).read_text())
                assert salt
                # Only the hosts of the example: without the secrets of sections that it lacks.
                (place.project / STACK_FILE).write_text(f"{salt[0]}\n{stack}")
                for other in ("eu-central-training", "rented"):
                    (place.project / f"Pulumi.{other}.yaml").unlink()
            typed(place, text)


def typed(place: Place, text: str) -> None:
    text = text.replace("file://~", "file://$HOME")  # pulumi finds the real home, whatever HOME says
    if text.startswith("pulumi config") and "--stack" not in text:
        text += " --stack s"  # in `make shell STACK=s` it is selected
    done = subprocess.run(
        ["sh", "-c", f"printf 'typed\\n' | {{ {text}; }}" if re.match(r"pulumi config set --secret [^<]*$", text) else text],
        cwd=place.project,
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
