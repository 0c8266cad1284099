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
AuthInfo=socket={folder}/munge/socket,cred_expire=5
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
AccountingStoragePass=socket={folder}/munge/socket
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
"""
NODES = """\
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr={address} Port=[{first}-{last}] CPUs={cpus} Boards=1 \
SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} State=UNKNOWN{gres}"""
# MariaDB authenticates root by the socket, without a password.
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
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
PARTITION = "Nodes=ALL MaxTime=INFINITE State=UP"
# Partition -> its own parameters. Jobs in `high` preempt those in the two low partitions.
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


def files(
    settings: Settings, folder: Path, host: str, address: str, port: int, first_job: int
) -> dict[str, str]:
    """The files of the state folder: name -> text. `port` is the first of the cluster's."""
    values = asdict(settings)
    values |= {"folder": folder, "host": host, "address": address, "port": port, "first_job": first_job}
    values |= {"database_port": port + 1, "first": port + 2, "last": port + 1 + settings.nodes}
    values["gres"] = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
    text = (SLURM_CONF + ACCOUNTING * settings.accounting).format(**values)
    lines = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    slurm = [f"{key}={value}" for key, value in (lines | settings.extra).items()]
    slurm += [NODES.format(**values)]
    slurm += [
        f"PartitionName={name} {PARTITION} {kind.format(**values)}" for name, kind in PARTITIONS.items()
    ]
    texts = {
        "slurm.conf": "\n".join([*slurm, ""]),
        # The GPUs are device files of the cluster's own.
        "gres.conf": f"Name=gpu File={folder}/dev/gpu[0-{settings.gpus - 1}]\n" if settings.gpus else "",
        # Without this file, or with cgroups switched off, slurmd 22.05 ends at once where there is no cgroup tree.
        "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
    }
    return texts | ({"slurmdbd.conf": SLURMDBD_CONF.format(**values)} if settings.accounting else {})
