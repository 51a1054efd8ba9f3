"""Tests of mesh-rdma that require a machine with a verbs device."""
