"""A machine in which verbs run for real, on software RoCE: `python -m tests.rdma.vm -- COMMAND`."""
