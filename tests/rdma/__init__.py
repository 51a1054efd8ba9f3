"""Tests of mesh-rdma that need more than Python: a machine with a verbs device."""
