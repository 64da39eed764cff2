"""command:remote:Command and command:remote:CopyToRemote: commands and files on other machines, over SSH.

As in the official plugin every operation dials again, any dial error is retried, and without `hostKey` the host's key
is not verified; this project's own provider does all three otherwise.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from lab.standins.command.command import LIFECYCLE, RUNNING, CommandResource, Recorder, new_id, previous_output
from lab.standins.plugin import Call, Cancelled, Failure, ResourceType
from lab.standins.properties import UNKNOWN, Properties
from lab.standins.schema import ListOf, Object, Problem, Property

if TYPE_CHECKING:  # importing it takes 0.2 s, which a stack without remote commands need not wait for
    import asyncssh

ENDPOINT = {
    "host": Property(required=True),
    "port": Property(type="number", default=22),
    "user": Property(default="root"),
    "password": Property(secret=True),
    "privateKey": Property(secret=True),
    "privateKeyPassword": Property(secret=True),
    "agentSocketPath": Property(),
    "hostKey": Property(),
    "dialErrorLimit": Property(type="integer", default=10),
    "perDialTimeout": Property(type="integer", default=15),
}
PROXY = Object("command:remote:ProxyConnection", ENDPOINT)
CONNECTION = Property(
    type=Object("command:remote:Connection", {**ENDPOINT, "proxy": Property(type=PROXY)}), required=True, secret=True
)
COMMAND_INPUTS = {**RUNNING, **LIFECYCLE, "connection": CONNECTION}
COPY_INPUTS = {
    "connection": CONNECTION,
    "source": Property(type="asset", required=True),
    "remotePath": Property(required=True),
    "triggers": Property(type=ListOf("any"), replaces=True),
}
NO_OUTPUTS: dict[str, Property] = {}
FIRST_PAUSE_S, LONGEST_PAUSE_S, PAUSE_GROWTH = 0.1, 5.0, 1.5

T = TypeVar("T")


class RemoteCommand(CommandResource):
    type_name = "command:remote:Command"
    inputs = COMMAND_INPUTS

    def run(self, call: Call, command: str, inputs: Properties, previous: Properties) -> Properties:
        return _finished(call, _run(call, command, inputs, previous))


async def _run(call: Call, command: str, inputs: Properties, previous: Properties) -> Properties:
    recorder = Recorder(inputs.get("logging"), call.log)
    async with connected(call, inputs["connection"]) as connection:
        # A server that does not accept a variable says nothing; the official plugin learns of it and fails, see its docs.
        process = await connection.create_process(
            command, env={**inputs.get("environment", {}), **previous_output(inputs, previous)}, encoding=None
        )

        async def read(name: str, stream: asyncssh.SSHReader[bytes]) -> None:
            async for line in stream:
                recorder.take(name, line)

        if inputs.get("stdin"):
            process.stdin.write(inputs["stdin"].encode())
        process.stdin.write_eof()
        await asyncio.gather(read("stdout", process.stdout), read("stderr", process.stderr))
        await process.wait()
        if process.exit_signal:
            raise recorder.failure(f"Process exited with status 1 from signal {process.exit_signal[0]}", command)
        if process.exit_status is None:
            raise recorder.failure("wait: remote command exited without exit status or exit signal", command)
        if process.exit_status:
            raise recorder.failure(f"Process exited with status {process.exit_status}", command)
    return recorder.outputs()


class CopyToRemote(ResourceType):
    """Copies a file, a text or a directory; what was copied stays when the resource goes, as in the official plugin."""

    type_name = "command:remote:CopyToRemote"
    inputs = COPY_INPUTS
    outputs = NO_OUTPUTS

    def check(self, inputs: Properties) -> Iterator[Problem]:
        source = inputs["source"]
        if source != UNKNOWN and "path" not in source and "text" not in source:
            yield Problem("source", "asset must be a path-based file asset, a text asset or a path-based archive")

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        _finished(call, _copy(call, inputs))
        return new_id(""), {}

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        """A new host or a new key alone copies nothing."""
        if news["source"].get("hash") != olds["source"].get("hash") or news["remotePath"] != olds["remotePath"]:
            _finished(call, _copy(call, news))
        return {}

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        pass


async def _copy(call: Call, inputs: Properties) -> None:
    import asyncssh

    source, target = inputs["source"], inputs["remotePath"]
    async with connected(call, inputs["connection"]) as connection, connection.start_sftp_client() as sftp:
        try:
            if "text" in source:
                await _copy_text(sftp, source["text"], target)
            else:
                await _copy_path(sftp, source["path"], target)
        except (asyncssh.SFTPError, OSError) as error:
            raise Failure(f"failed to copy to remote path {target}: {error}") from error


async def _copy_text(sftp: asyncssh.SFTPClient, text: str, target: str) -> None:
    if await sftp.isdir(target):
        raise Failure(f"remote path {target} is a directory; when using a text asset, remotePath must be a file path")
    await sftp.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
    async with sftp.open(target, "wb") as file:
        await file.write(text.encode())


async def _copy_path(sftp: asyncssh.SFTPClient, source: str, target: str) -> None:
    """`dir` goes to target/dir, `dir/` to target; a file goes into an existing directory, or to exactly that name."""
    local = Path(source)
    if local.is_dir():
        into = PurePosixPath(target) if source.endswith("/") else PurePosixPath(target, local.name)
        if await sftp.exists(str(into)) and not await sftp.isdir(str(into)):
            raise Failure(f"remote path {into} exists but is not a directory")
        await sftp.makedirs(str(into), exist_ok=True)
        for path in sorted(local.rglob("*")):
            remote = str(into / path.relative_to(local).as_posix())
            if path.is_dir():
                await sftp.makedirs(remote, exist_ok=True)
            else:
                await _copy_file(sftp, path, remote)
    elif await sftp.isdir(target):
        await _copy_file(sftp, local, str(PurePosixPath(target, local.name)))
    else:
        await sftp.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
        await _copy_file(sftp, local, target)


async def _copy_file(sftp: asyncssh.SFTPClient, local: Path, remote: str) -> None:
    async with sftp.open(remote, "wb") as file:
        await file.write(local.read_bytes())


@contextlib.asynccontextmanager
async def connected(call: Call, endpoint: Properties) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection to the host, through the proxy where there is one."""
    async with contextlib.AsyncExitStack() as stack:
        tunnel = None
        if proxy := endpoint.get("proxy"):
            try:
                tunnel = await stack.enter_async_context(await _dial(call, "Dial proxy", proxy, None))
            except Failure as failure:
                raise Failure(f"proxy: {failure}") from failure
        yield await stack.enter_async_context(await _dial(call, "Dial", endpoint, tunnel))


async def _dial(
    call: Call, what: str, endpoint: Properties, tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    import asyncssh

    try:
        options = _options(endpoint)
    except (asyncssh.KeyImportError, ValueError) as error:
        raise Failure(f"failed to parse the key: {error}") from error
    timeout_s = endpoint["perDialTimeout"] or None

    async def dial() -> asyncssh.SSHClientConnection:
        return await asyncio.wait_for(
            asyncssh.connect(endpoint["host"], int(endpoint["port"]), tunnel=tunnel or (), **options), timeout_s
        )

    return await _tried(call, what, endpoint["dialErrorLimit"], dial)


async def _tried(call: Call, what: str, limit: int, dial: Callable[[], Awaitable[T]]) -> T:
    import asyncssh

    failed, pause_s = 0, FIRST_PAUSE_S
    while True:
        try:
            return await dial()
        except (asyncssh.Error, OSError, TimeoutError) as error:
            if 0 <= limit <= failed:
                cause = str(error) or "i/o timeout"
                raise Failure(f"after {failed} failed attempts: ssh: handshake failed: {cause}") from error
            failed += 1
            call.log(f"{what} {failed}/{'inf' if limit < 0 else limit} failed: retrying")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * PAUSE_GROWTH, LONGEST_PAUSE_S)


def _options(endpoint: Properties) -> dict[str, Any]:
    import asyncssh

    options: dict[str, Any] = {"username": endpoint["user"], "config": None, "known_hosts": None}
    if host_key := endpoint.get("hostKey"):
        options["known_hosts"] = ([asyncssh.import_public_key(host_key)], [], [])
    if private_key := endpoint.get("privateKey"):
        options["client_keys"] = [asyncssh.import_private_key(private_key, endpoint.get("privateKeyPassword"))]
        options["agent_path"] = endpoint.get("agentSocketPath")
    elif agent := endpoint.get("agentSocketPath"):
        options["agent_path"] = agent
    if password := endpoint.get("password"):
        options["password"] = password
    return options


def _finished(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """Runs it in an event loop of its own, which Ctrl-C ends."""
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(work)
        with call.ending(lambda: loop.call_soon_threadsafe(task.cancel)):
            return loop.run_until_complete(task)
    except (asyncio.CancelledError, concurrent.futures.CancelledError):
        raise Cancelled from None
    finally:
        loop.close()
