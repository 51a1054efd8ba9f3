"""A virtual machine with verbs on software RoCE: `python -m tests.rdma.vm -- COMMAND`."""
