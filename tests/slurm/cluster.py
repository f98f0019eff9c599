"""A one-node Slurm with accounting, from Debian's packages, in a folder of its own.

Root starts munge, MariaDB, slurmdbd, slurmctld and slurmd there, with configuration, keys, state
and sockets inside the folder and on free ports. The one thing outside is the link by which
Slurm's commands find their configuration, as on a node that gets it from its controller.
"""

import ctypes
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch")
ACCOUNT = "project"
PARTITIONS = {"cpu": "PriorityTier=1", "gpu": "PriorityTier=1", "urgent": "PriorityTier=2"}
# More than this machine has: the profile's requests are those of a cluster's nodes, and stay so.
CPUS, MEMORY_MB, GPUS = 64, 100_000, 2

_SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
{enforcement}
JobRequeue=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={folder}/munge.socket
AccountingStorageEnforce=associations,limits
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
{partitions}
"""
_CGROUPS = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=task=2"""
# Where no memory cgroup can be made, slurmd samples memory itself and kills what is above.
_SAMPLING = """\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill"""
_CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
"""
_SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={mysql}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_OWN_CONF = Path("/etc/slurm/slurm.conf")
_LINK = Path("/run/slurm/conf")


class ClusterError(Exception):
    """A daemon did not come up; the message ends with its log."""


def missing() -> str | None:
    """Why no cluster can be started here, or None."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "a Slurm of one node can only be started by root on Linux"
    absent = [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]
    if absent:
        return f"{', '.join(absent)} not found (tests/slurm/install.sh installs them)"
    if _OWN_CONF.exists() or _LINK.exists():
        return f"this machine has a Slurm of its own ({_OWN_CONF} or {_LINK})"
    return None


def memory_cgroups() -> bool:
    """Whether memory cgroups (version 1) can be made here and the freezer that goes with them."""
    for controller in ("memory", "freezer"):
        trial = Path("/sys/fs/cgroup", controller, f"trial-{os.getpid()}")
        try:
            trial.mkdir()
            trial.rmdir()
        except OSError:
            return False
    return True


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    """A running cluster: where it is, and what holds memory limits up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": _PATH}
        self.environment.pop("SLURM_CONF", None)
        self.cgroups = memory_cgroups()

    def call(self, *command: str) -> str:
        """Run a Slurm command and return what it prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster in `folder`, an absolute path, and stop it in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    slurm = Cluster(folder)
    ctld, slurmd, dbd, mysql = _free_ports(4)
    (folder / "slurm.conf").write_text(
        _SLURM_CONF.format(
            host=socket.gethostname().split(".")[0],
            folder=folder,
            ctld=ctld,
            slurmd=slurmd,
            dbd=dbd,
            enforcement=_CGROUPS if slurm.cgroups else _SAMPLING,
            cpus=CPUS,
            memory=MEMORY_MB,
            gpus=GPUS,
            partitions="\n".join(
                f"PartitionName={name} Nodes=ALL MaxTime=2-0 {options}"
                for name, options in PARTITIONS.items()
            ),
        )
    )
    (folder / "cgroup.conf").write_text(_CGROUP_CONF if slurm.cgroups else "")
    (folder / "gres.conf").write_text(f"Name=gpu File=/dev/tty[0-{GPUS - 1}]\n")
    (folder / "slurmdbd.conf").write_text(
        _SLURMDBD_CONF.format(folder=folder, dbd=dbd, mysql=mysql)
    )
    (folder / "slurmdbd.conf").chmod(0o600)
    for name in ("state", "spool", "mysql"):
        (folder / name).mkdir(exist_ok=True)
    with ExitStack() as stack:
        _LINK.parent.mkdir(exist_ok=True)
        _LINK.unlink(missing_ok=True)  # of a run that was killed
        _LINK.symlink_to(folder)
        stack.callback(_LINK.unlink)
        start = _Starter(slurm, stack)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munged.seed",
        )
        data = folder / "mysql"
        slurm.call("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}")
        (folder / "grants.sql").write_text(
            "CREATE DATABASE slurm;\n"
            "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
            "GRANT ALL ON slurm.* TO slurm@'127.0.0.1';\n"
        )
        start(
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={data}",
            f"--socket={folder}/mysql.socket",
            f"--pid-file={folder}/mysql.pid",
            f"--init-file={folder}/grants.sql",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            f"--port={mysql}",
        )
        _until(lambda: _listens(mysql), "mariadbd", folder)
        start("slurmdbd", "-D")
        _until(lambda: _listens(dbd), "slurmdbd", folder)
        _until(lambda: slurm.call("sacctmgr", "-i", "add", "cluster", "test"), "slurmdbd", folder)
        slurm.call("sacctmgr", "-i", "add", "account", ACCOUNT, "Cluster=test")
        slurm.call("sacctmgr", "-i", "add", "user", "root", f"Account={ACCOUNT}", "Cluster=test")
        start("slurmctld", "-D", "-c")
        _until(lambda: _listens(ctld), "slurmctld", folder)
        start("slurmd", "-D")
        _until(lambda: "idle" in slurm.call("sinfo", "-h", "-o", "%T"), "slurmd", folder)
        stack.callback(lambda: subprocess.run(["scancel", "-u", "root"], env=slurm.environment))
        yield slurm


class _Starter:
    def __init__(self, slurm: Cluster, stack: ExitStack) -> None:
        self.slurm = slurm
        self.stack = stack

    def __call__(self, *command: str) -> None:
        """Start a daemon in the foreground; it is stopped when the stack unwinds."""
        log = self.stack.enter_context((self.slurm.folder / f"{command[0]}.out").open("w"))
        process = subprocess.Popen(
            command,
            env={**self.slurm.environment, "SLURM_CONF": str(self.slurm.folder / "slurm.conf")},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )
        self.stack.callback(_stop, process)


def _die_with_parent() -> None:
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)


def _stop(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def _until(condition, name: str, folder: Path, seconds: float = 60) -> None:
    """Wait until `condition()` holds.

    Raises:
        ClusterError: it did not within `seconds`.
    """
    end = time.monotonic() + seconds
    problem = ""
    while time.monotonic() < end:
        try:
            if condition():
                return
        except ClusterError as error:
            problem = str(error)
        time.sleep(0.2)
    logs = [path for path in (folder / f"{name}.out", folder / f"{name}.log") if path.exists()]
    tails = "".join(f"\n{path}:\n{path.read_text(errors='replace')[-2000:]}" for path in logs)
    raise ClusterError(f"{name} did not come up in {seconds:.0f} s. {problem}{tails}")
