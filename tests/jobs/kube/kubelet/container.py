"""A container, represented by a process with its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.jobs.kube.api.kind import Object
from tests.jobs.kube.api.store import now_text
from tests.jobs.kube.kubelet.container_environment import MARK, CannotCreate, ContainerEnvironment
from tests.jobs.kube.kubelet.probe import Probe

#: Delay before the second restart of a container, doubled each time. Real: 10 s, and 300 s at most.
BACK_OFF_S = 1.0
BACK_OFF_MAX_S = 30.0

#: Images with this prefix do not exist in any registry.
MISSING_IMAGE = "missing.invalid/"

#: The processes are killed when their parent exits.
_TIED = ("setpriv", "--pdeathsig", "KILL", "--")


class Container:
    """Starts the process, restarts it if necessary, and tracks its state."""

    def __init__(
        self, spec: Object, folder: Path, container_environment: ContainerEnvironment
    ) -> None:
        self.spec = spec
        self.name = str(spec["name"])
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.is_ready = False
        self.restarts = 0
        self.environment: dict[str, str] = {}
        self._last: Object = {}
        self._folder = folder
        self._container_environment = container_environment
        self._probe = Probe(spec, "readinessProbe")
        self._liveness = Probe(spec, "livenessProbe")
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0
        self._back_off = 0.0
        self._next = 0.0

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit status, or None if it is running or was not started."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    def log_path(self, previous: bool = False) -> Path:
        number = self._began - 1 - (1 if previous else 0)
        return self._folder / f"{self.name}.{number}.log"

    def start(self, pod: Object) -> None:
        """Start the process; on failure the state contains the reason."""
        image = str(self.spec["image"])
        if image.startswith(MISSING_IMAGE):
            reason = "ImagePullBackOff" if "waiting" in self._last else "ErrImagePull"
            self._last = {"waiting": {}}
            message = f'failed to pull and unpack image "{image}": not found'
            self.state = {"waiting": {"reason": reason, "message": message}}
            return
        try:
            self.environment = self._container_environment.environment(pod, self.spec)
            command = self._container_environment.command(pod, self.spec, self.environment)
        except CannotCreate as error:
            reason = "CreateContainerConfigError"
            self.state = {"waiting": {"reason": reason, "message": str(error)}}
            return
        self._began += 1
        self._run(command)

    def _run(self, command: list[str]) -> None:
        try:
            if not command:
                raise FileNotFoundError("no command: images are not looked into here")
            # A command that setpriv cannot find is reported here, as by a container runtime.
            if not os.path.isabs(command[0]) or not os.access(command[0], os.X_OK):
                command = [_found(command[0], self.environment), *command[1:]]
            with self.log_path().open("ab") as log:
                self._process = subprocess.Popen(
                    [*_TIED, *command],
                    env=self.environment,
                    cwd=self.spec.get("workingDir") or self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self.log_path().touch()
            self.state = {"terminated": _end(128, "StartError", str(error))}
            return
        self._probe.begin()
        self._liveness.begin()
        self.state = {"running": {"startedAt": now_text()}}

    def look(self, address: str, killed_for: str = "") -> None:
        """Update the state: the process may have exited or become ready."""
        if self._process is None or "running" not in self.state:
            return
        code = self._process.poll()
        if code is None:
            self.is_ready = self._probe.ask(address, self.environment)
            self._liveness.ask(address, self.environment)
            if self._liveness.has_failed:
                # An unresponsive process gets no grace period.
                self._process.kill()
            return
        self.is_ready = False
        started = self.state["running"]["startedAt"]
        number = 128 - code if code < 0 else code
        reason = killed_for or ("Completed" if code == 0 else "Error")
        self.state = {"terminated": {**_end(number, reason, ""), "startedAt": started}}
        self.kill_all(self.environment.get(MARK, ""))

    def restart(self, pod: Object) -> None:
        """Restart an exited process, with a delay if it has been restarted before."""
        now = time.monotonic()
        if "terminated" in self.state:
            self._last = self.state
            self._next = now + self._back_off
            self._back_off = min(BACK_OFF_MAX_S, max(BACK_OFF_S, 2 * self._back_off))
            message = f"back-off restarting failed container {self.name}"
            self.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        if now >= self._next:
            if "terminated" in self._last:
                self.restarts += 1
            else:
                self._next = now + BACK_OFF_S
            self.start(pod)

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            try:
                os.kill(self._process.pid, number)
            except ProcessLookupError:
                return

    def kill_all(self, pod_uid: str) -> None:
        """Kill all remaining descendants, as the end of a container does."""
        if not pod_uid:
            return
        for pid in processes_of(pod_uid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def status(self) -> Object:
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "process",
            "ready": self.is_ready and "running" in self.state,
            "started": "running" in self.state,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self._last if "terminated" in self._last else {},
        }


def _end(code: int, reason: str, message: str) -> Object:
    ended = {"exitCode": code, "reason": reason, "startedAt": now_text(), "finishedAt": now_text()}
    return {**ended, "message": message} if message else ended


def _found(program: str, environment: dict[str, str]) -> str:
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise FileNotFoundError(f'exec: "{program}": executable file not found in $PATH')


def processes_of(pod_uid: str) -> list[int]:
    """Return the running processes of a pod, identified by their environment."""
    mark = f"{MARK}={pod_uid}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found
