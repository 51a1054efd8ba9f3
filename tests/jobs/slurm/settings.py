"""The configuration of the cluster: a usual one, with short timeouts for failure detection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.hosts.world import Host

#: The resources that each node claims to have; SLURM does not check them.
CPUS = 8
MEMORY_MB = 4000
GPUS = 2

#: The host of the controller.
CONTROLLER = "ctl"

_CONTROLLER_PORT = 6817
_NODE_PORT = 6818


def slurm_conf(folder: Path, controller: Host, nodes: Sequence[Host]) -> str:
    """Return slurm.conf for these hosts; all state is in a folder that all of them see."""
    lines = [
        "ClusterName=mesh",
        f"SlurmctldHost={controller.name}({controller.address})",
        f"SlurmctldPort={_CONTROLLER_PORT}",
        "SlurmUser=root",
        "SlurmdUser=root",
        *_authentication(folder),
        *_files(folder),
        # The machine may not permit control groups, so nothing here uses them.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "MpiDefault=none",
        "SlurmdParameters=config_overrides",
        *_scheduling(),
        *_haste(),
    ]
    for node in nodes:
        lines.append(
            f"NodeName={node.name} NodeAddr={node.address} Port={_NODE_PORT} CPUs={CPUS}"
            f" RealMemory={MEMORY_MB} Gres=gpu:{GPUS} Feature=only-{node.name}"
        )
    lines += [
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10",
        "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF",
    ]
    return "\n".join(lines) + "\n"


def gres_conf() -> str:
    """Return gres.conf: any device files will do, because jobs only get their numbers."""
    return f"Name=gpu File=/dev/tty[1-{GPUS}]\n"


def _authentication(folder: Path) -> list[str]:
    # A requeued job waits until its old credential has expired: 120 s by default.
    return [
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/run/munge.sock,cred_expire=5",
        "CredType=cred/munge",
    ]


def _files(folder: Path) -> list[str]:
    return [
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        "JobCompType=jobcomp/none",
    ]


def _scheduling() -> list[str]:
    return [
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "GresTypes=gpu",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_min_interval=100000,bf_interval=1,batch_sched_delay=0",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "ReturnToService=2",
    ]


def _haste() -> list[str]:
    return [
        "SlurmctldTimeout=10",
        "SlurmdTimeout=6",
        "TCPTimeout=2",
        "MessageTimeout=5",
        "KillWait=5",
        "CompleteWait=0",
    ]
