"""The settings of a development cluster: its size, its partitions, and the files that Slurm's daemons read."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

SLURM_CONF = """\
ClusterName=cppo
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job may not start before its credentials have expired: by default that is two minutes.
AuthInfo=socket={munge_socket},cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# The nodes have the CPUs that this file says.
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=5,batch_sched_delay=0,sched_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# If its partition has a grace time, a preempted job gets its requested signal as a warning.
SlurmctldParameters=preempt_send_user_signal
GresTypes=gpu
MaxArraySize=10001
MaxJobCount=20000
FirstJobId={first_job}
ReturnToService=2
JobRequeue=1
DefMemPerCPU=100
# Timers that tests need to be short; on a production cluster they are minutes. Seconds from SIGTERM to SIGKILL, at a
# cancellation and at the time limit; until an unresponsive node is down and its jobs are requeued; that squeue
# remembers a job that has ended.
KillWait=15
SlurmdTimeout=30
SlurmctldTimeout=30
MinJobAge=300
InactiveLimit=0
AccountingStorageType=accounting_storage/none
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={address}
AccountingStoragePort={database_port}
AccountingStoragePass=socket={munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
"""
NODES = """\
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr={address} Port=[{first}-{last}] CPUs={cpus} Boards=1 \
SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} State=UNKNOWN{gres}
"""
# MariaDB authenticates root by the socket, without a password.
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={munge_socket}
DbdHost={host}
DbdAddr={address}
DbdPort={database_port}
CommunicationParameters=NoInAddrAny
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""
# Partition -> its parameters. Jobs in `high` preempt those in the two low partitions.
PARTITIONS = {
    "debug": "Default=YES PriorityTier=1 PreemptMode=OFF",
    "high": "PriorityTier=10 PreemptMode=OFF",
    "low": "PriorityTier=1 PreemptMode=REQUEUE GraceTime=0",
    "low_grace": "PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}",
}


@dataclass(frozen=True)
class Settings:
    """A cluster's size and kind.

    `extra` replaces or adds lines of slurm.conf, by Slurm's own names. `memory` is in MB per node, as configured in
    Slurm; it may exceed the machine's memory, as may CPUs. `grace` is the number of seconds between Slurm's warning and
    the preemption of a job in `low_grace`.
    """

    nodes: int = 4
    cpus: int = 2
    gpus: int = 8
    memory: int = 16000
    accounting: bool = True
    private_network: bool = False
    grace: int = 15
    extra: dict[str, str] = field(default_factory=dict)

    def node_names(self) -> list[str]:
        """The nodes: n1, n2, ..."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def daemons(self) -> list[str]:
        """All daemons of such a cluster, in the order in which they start."""
        database = ["mariadbd", "slurmdbd"] if self.accounting else []
        return ["munged", *database, "slurmctld", *(f"slurmd-{node}" for node in self.node_names())]

    def ports(self) -> int:
        """How many ports in a row it takes: the controller's, the accounting daemon's, one for each node."""
        return 2 + self.nodes


@dataclass(frozen=True)
class Place:
    """The location of a cluster: its state folder, host name and loopback address, and first TCP port."""

    folder: Path
    host: str
    address: str
    port: int
    first_job: int

    @property
    def conf(self) -> Path:
        """The path of slurm.conf, for SLURM_CONF."""
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """The socket of this cluster's own munged."""
        return self.folder / "munge" / "socket"

    @property
    def database_socket(self) -> Path:
        """The socket of this cluster's own MariaDB, which listens on no port."""
        return self.folder / "db" / "socket"


def files(settings: Settings, place: Place) -> dict[str, str]:
    """The files of the state folder: name -> text."""
    ports = {
        "database_port": place.port + 1,
        "first": place.port + 2,
        "last": place.port + 1 + settings.nodes,
    }
    values = asdict(settings) | vars(place) | ports | {"munge_socket": place.munge_socket}
    values["gres"] = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
    text = (SLURM_CONF + ACCOUNTING * settings.accounting).format(**values)
    lines = (
        dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#")) | settings.extra
    )
    partitions = [
        f"PartitionName={name} Nodes=ALL MaxTime=INFINITE State=UP {kind.format(grace=settings.grace)}\n"
        for name, kind in PARTITIONS.items()
    ]
    texts = {
        "slurm.conf": "".join(f"{key}={value}\n" for key, value in lines.items())
        + NODES.format(**values)
        + "".join(partitions),
        # The GPUs are device files of the cluster's own.
        "gres.conf": f"Name=gpu File={place.folder}/dev/gpu[0-{settings.gpus - 1}]\n"
        if settings.gpus
        else "",
        # Without this file, or with cgroups switched off, slurmd 22.05 ends at once where there is no cgroup tree.
        "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
    }
    return texts | ({"slurmdbd.conf": SLURMDBD_CONF.format(**values)} if settings.accounting else {})
