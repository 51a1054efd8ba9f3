"""A SLURM cluster of Debian packages: a controller and nodes, each an emulated host."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from tests.hosts.world import Host, HostProcess, World
from tests.jobs.slurm.settings import CONTROLLER, gres_conf, slurm_conf

#: Time limit for an operation of a daemon, in seconds.
_LIMIT_S = 60.0

#: States of nodes that run jobs or accept new ones.
_USABLE = ("idle", "mixed", "allocated")

#: Prefixes of the command lines of the daemons and their helper processes.
_DAEMONS = ("munged ", "slurmctld ", ": slurmscriptd", "slurmd ", "slurmstepd: ")


class SlurmCluster:
    """A controller and nodes n1, n2 and so on, which share one folder.

    with SlurmCluster(folder) as cluster:
        cluster.controller.run(["srun", "--nodes=2", "hostname"], env=cluster.variables)

    It ends with the process that created it, and leaves nothing behind except the folder.
    """

    def __init__(self, folder: Path, nodes: int = 4, shared: Sequence[Path] = ()) -> None:
        """Start the cluster and wait until all nodes are idle.

        Args:
            folder: An empty folder for the state of the daemons, visible on all hosts.
            nodes: Number of nodes, without the controller.
            shared: Additional folders that all hosts see, like a network drive.

        Raises:
            EnclosureGone: Namespaces cannot be created here.
            TimeoutError: The nodes did not come up; the note contains the logs of the daemons.
        """
        self.folder = folder
        names = [CONTROLLER, *(f"n{number + 1}" for number in range(nodes))]
        self._daemons: dict[str, HostProcess] = {}
        self._log = (folder / "daemons.log").open("w")
        self.world = World(names, shared=[folder, *shared])
        try:
            self._configure()
            self._start_munge()
            self.start_controller("-c")
            for node in self.nodes:
                self._start_node(node)
            self.wait_until({node.name: _USABLE for node in self.nodes})
        except BaseException:
            self.close()
            raise

    @property
    def controller(self) -> Host:
        """The host of the controller, which is also the login host."""
        return self.world[CONTROLLER]

    @property
    def nodes(self) -> list[Host]:
        """The hosts on which jobs run."""
        return [host for host in self.world if host.name != CONTROLLER]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which SLURM commands find this cluster."""
        return {"SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}

    def start_controller(self, *options: str) -> None:
        """Start the controller from its saved state, and return when it replies."""
        self._start(CONTROLLER, CONTROLLER, ["slurmctld", "-D", *options])
        self._wait("the controller does not answer", lambda: self._states() is not None)

    def stop_controller(self) -> None:
        """Stop the controller, which saves its state; jobs on the nodes continue."""
        self._daemons[CONTROLLER].terminate()
        self._daemons[CONTROLLER].wait(_LIMIT_S)
        self.kill_controller()

    def kill_controller(self) -> None:
        """Kill the controller: changes of the last seconds may be lost."""
        self._daemons.pop(CONTROLLER).release()

    def power_cut(self, name: str) -> None:
        """Cut the power of a node."""
        self.world[name].power_cut()
        self._daemons.pop(name).release()

    def power_on(self, name: str) -> None:
        """Boot a node, and return when it accepts jobs again."""
        self.world[name].power_on()
        self._start_node(self.world[name])
        self.wait_until({name: _USABLE})

    def repair(self) -> None:
        """Restore everything that was stopped, and wait until all nodes are usable."""
        if CONTROLLER not in self._daemons:
            self.start_controller()
        for node in self.nodes:
            if node.name not in self._daemons:
                self.power_on(node.name)
        # A controller that was killed drains nodes with jobs that it does not know, either now or a
        # moment later.
        self._wait("the nodes cannot be used again", self._resumed)

    def _resumed(self) -> bool:
        """Return whether all nodes are usable, and resume drained nodes."""
        states = self._states() or {}
        bad = [node.name for node in self.nodes if states.get(node.name) not in _USABLE]
        for name in bad:
            words = ["scontrol", "update", f"NodeName={name}", "State=RESUME"]
            self.controller.run(words, env=self.variables, check=False)
        return not bad

    def wait_until(self, wanted: dict[str, Sequence[str]], limit_s: float = _LIMIT_S) -> None:
        """Wait until each of these nodes is in one of its wanted states.

        Raises:
            TimeoutError: A node did not reach such a state; the note has the end of all logs.
        """

        def arrived() -> bool:
            states = self._states() or {}
            return all(states.get(name) in allowed for name, allowed in wanted.items())

        self._wait(f"the nodes are not as wanted: {wanted}", arrived, limit_s)

    def commands_on(self, name: str) -> list[str]:
        """Return the command lines of the processes on a node, without the daemons."""
        found = []
        for pid in self.world[name].pids():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # The process has exited.
            words = line.decode(errors="replace").replace("\0", " ").strip()
            if words and not words.startswith(_DAEMONS):
                found.append(words)
        return sorted(found)

    def close(self) -> None:
        """End all processes of the cluster, and the cluster."""
        self.world.close()
        for daemon in self._daemons.values():
            daemon.release()
        self._daemons.clear()
        self._log.close()

    def __enter__(self) -> SlurmCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _configure(self) -> None:
        for name in ("etc", "state", "spool", "run", "log"):
            (self.folder / name).mkdir()
        for node in self.nodes:
            (self.folder / "spool" / node.name).mkdir()
        text = slurm_conf(self.folder, self.controller, self.nodes)
        (self.folder / "etc" / "slurm.conf").write_text(text)
        (self.folder / "etc" / "gres.conf").write_text(gres_conf())

    def _start_munge(self) -> None:
        """Start the authentication service; its socket is a file that all hosts see."""
        run = self.folder / "run"
        key = self.folder / "etc" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        paths = {
            "socket": run / "munge.sock",
            "pid-file": run / "munge.pid",
            "seed-file": run / "munge.seed",
            "log-file": self.folder / "log" / "munged.log",
        }
        # `--force`: munged otherwise rejects folders that others can write to. Two threads: with a
        # single one it does not reply while a connection is open.
        words = ["munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}"]
        words += [f"--{name}={path}" for name, path in paths.items()]
        self._start("munge", CONTROLLER, words)
        self._wait("munged does not come up", paths["socket"].exists)

    def _start_node(self, node: Host) -> None:
        self._start(node.name, node.name, ["slurmd", "-D", "-N", node.name])

    def _start(self, key: str, host: str, argv: Sequence[str]) -> None:
        self._daemons[key] = self.world[host].popen(
            argv, stdout=self._log, stderr=self._log, env=self.variables
        )

    def _states(self) -> dict[str, str] | None:
        """Return the state of each node, or None if the controller does not reply."""
        words = ["sinfo", "--noheader", "--Node", "--format=%N %T", "--partition=main"]
        done = self.controller.run(words, env=self.variables, check=False)
        if done.returncode != 0:
            return None
        return {name: state for name, state in (line.split() for line in done.stdout.splitlines())}

    def _wait(self, failure: str, arrived: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
        until = time.monotonic() + limit_s
        while not arrived():
            if time.monotonic() > until:
                late = TimeoutError(failure)
                late.add_note(self._last_words())
                raise late
            time.sleep(0.05)

    def _last_words(self) -> str:
        logs = [self.folder / "daemons.log", *sorted((self.folder / "log").iterdir())]
        tails = [(log, log.read_text(errors="replace").splitlines()[-10:]) for log in logs]
        return "\n".join(f"== {log.name}\n" + "\n".join(lines) for log, lines in tails)
