"""A worker that does not run."""

from mesh_core import Credentials, attach_to_workers, configure

configure(attach_timeout_s=3)
hosts = attach_to_workers(["tcp://127.0.0.1:1"], credentials=Credentials.create())
hosts.initialized.get()
