"""Workers on the hosts of a world, and programs that attach them to a job."""

from tests.hosts.cluster.cluster import Worker as Worker
from tests.hosts.cluster.cluster import WorkerCluster as WorkerCluster
from tests.hosts.cluster.program import Program as Program
