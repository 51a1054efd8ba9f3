"""Services: replicas of an actor behind one handle.

A `Service` keeps a number of replicas of an actor, sends each call to the replica with the least
load, replaces replicas that die, and can scale with its load.
"""

from mesh_core._services.errors import ServiceOverloaded as ServiceOverloaded
from mesh_core._services.errors import SessionMoved as SessionMoved
from mesh_core._services.options import Autoscale as Autoscale
from mesh_core._services.options import HealthCheck as HealthCheck
from mesh_core._services.options import ServiceOptions as ServiceOptions
from mesh_core._services.service import Service as Service
from mesh_core._services.session import Session as Session
from mesh_core._services.view import ReplicaStatus as ReplicaStatus
from mesh_core._services.view import ServiceStatus as ServiceStatus
