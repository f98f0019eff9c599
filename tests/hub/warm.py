"""Jobs forked from a process that has the libraries loaded.

A rehearsal is some 1,500 small jobs, of which torch and transformers would take four seconds each
to import. What `python -m splade_rescale` does is the product's own all the same: here it is a few
lines that hand arguments, folder, environment and output to a server, which forks and calls
`splade_rescale.cli.main`. The fork joins the process group of its client, so that a signal to all
of a workflow reaches it; both must belong to the server's session for that.
"""

import array
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import splade_rescale

# Found before the package, whose modules it has all the same.
PACKAGE = """__path__.append({package!r})
"""
CLIENT = """import array, json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ), os.getpgrp()]).encode()
streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
server.sendmsg([len(request).to_bytes(4, "big")], streams)
server.sendall(request)
sys.exit(int(server.recv(16) or 3))
"""


@contextmanager
def warm_commands(
    variables: dict[str, str], package: Path | None = None
) -> Iterator[dict[str, str]]:
    """Yield an environment in which `python -m splade_rescale` is such a client.

    Args:
        variables: environment of the server, as libraries read some of it when they are loaded.
        package: what the server runs, where that is another copy than this process's.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        folder = Path(name)
        package = package or Path(splade_rescale.__file__).parent
        address = str(folder / "socket")
        client = folder / "splade_rescale"
        client.mkdir()
        (client / "__init__.py").write_text(PACKAGE.format(package=str(package)))
        (client / "__main__.py").write_text(CLIENT.format(address=address))
        server = subprocess.Popen(
            [sys.executable, __file__, address],
            env={**variables, "PYTHONPATH": str(package.parent)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            if server.stdout.readline() != "ready\n":
                raise RuntimeError("the server of warm commands did not start")
            yield {**variables, "PYTHONPATH": name}
        finally:
            server.terminate()
            server.wait()


def serve(address: str) -> None:
    """Fork a command for each connection, as long as the process lives that started this one."""
    import datasets  # noqa: F401
    import splade_rescale.encode
    import splade_rescale.evaluate
    import splade_rescale.hub
    import splade_rescale.index
    import splade_rescale.search
    import splade_rescale.train  # noqa: F401
    import transformers
    from splade_rescale import cli

    for architecture in ("Bert", "DistilBert", "Albert", "Roberta", "ModernBert", "Gte"):
        getattr(transformers, f"{architecture}ForMaskedLM")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    listener.settimeout(5)
    parent = os.getppid()
    print("ready", flush=True)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.setblocking(True)
        # Two forks: the job's parent waits for it, and nobody must wait for that parent.
        if os.fork() == 0:
            listener.close()
            if os.fork() == 0:
                _answer(connection, cli.main)
            os._exit(0)
        connection.close()
        os.wait()


def _answer(connection: socket.socket, command) -> None:
    """Run one command in a child and tell its exit status."""
    head, streams, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * 4))
    if not streams:  # the client was killed before it could say what it wants
        os._exit(1)
    descriptors = array.array("i", streams[0][2])
    length, request = int.from_bytes(head, "big"), b""
    while len(request) < length:
        request += connection.recv(length - len(request))
    *task, group = json.loads(request)
    try:
        # Before the fork: a signal to the group then finds this process or both, never none.
        os.setpgid(0, group)
        alive = connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:  # it waits for the answer
        alive = True
    except OSError:
        alive = False
    if not alive:  # the client was killed before this process could be
        os._exit(1)
    child = os.fork()
    if child == 0:
        connection.close()
        _become(task, descriptors)
        os._exit(_run(command))
    _, status = os.waitpid(child, 0)
    with suppress(BrokenPipeError):  # likewise
        connection.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def _become(task: list, descriptors: array.array) -> None:
    arguments, folder, variables = task
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["splade-rescale", *arguments]


def _run(command) -> int:
    try:
        command()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 2
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


if __name__ == "__main__":
    serve(sys.argv[1])
