"""A SLURM cluster of Debian's packages: a controller and nodes, each a host of a world."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from tests.hosts.world import Host, HostProcess, World
from tests.jobs.slurm.settings import CONTROLLER, gres_conf, slurm_conf

#: How long a daemon may take to do what it was asked.
_LIMIT_S = 60.0

#: Nodes that a job may be given, or has.
_USABLE = ("idle", "mixed", "allocated")

#: How the command lines of the daemons begin, and of what they run for themselves.
_DAEMONS = ("munged ", "slurmctld ", ": slurmscriptd", "slurmd ", "slurmstepd: ")


class SlurmCluster:
    """A controller and nodes n1, n2 and so on, which all see one folder.

    with SlurmCluster(folder) as cluster:
        cluster.controller.run(["srun", "--nodes=2", "hostname"], env=cluster.variables)

    It ends with the process that made it, and leaves nothing but what is in the folder.
    """

    def __init__(self, folder: Path, nodes: int = 4, shared: Sequence[Path] = ()) -> None:
        """Starts it, and waits until all nodes are idle.

        Args:
            folder: An empty folder for the state of the daemons; all hosts see it.
            nodes: How many nodes it has, besides the controller.
            shared: More that all hosts see, as on a network drive.

        Raises:
            EnclosureGone: Namespaces cannot be made here.
            TimeoutError: The nodes did not come up; the note has what the daemons said.
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
        """The host of the controller, where users log in too."""
        return self.world[CONTROLLER]

    @property
    def nodes(self) -> list[Host]:
        """The hosts that jobs run on."""
        return [host for host in self.world if host.name != CONTROLLER]

    @property
    def variables(self) -> dict[str, str]:
        """What tells the commands of SLURM of this cluster."""
        return {"SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}

    def start_controller(self, *options: str) -> None:
        """Starts the controller from its saved state, and returns when it answers."""
        self._start(CONTROLLER, CONTROLLER, ["slurmctld", "-D", *options])
        self._wait("the controller does not answer", lambda: self._states() is not None)

    def stop_controller(self) -> None:
        """Ends the controller, which saves its state; what runs on the nodes goes on."""
        self._daemons[CONTROLLER].terminate()
        self._daemons[CONTROLLER].wait(_LIMIT_S)
        self.kill_controller()

    def kill_controller(self) -> None:
        """Kills the controller: what it was told in the last seconds may be lost."""
        self._daemons.pop(CONTROLLER).release()

    def power_cut(self, name: str) -> None:
        """Takes a node's power."""
        self.world[name].power_cut()
        self._daemons.pop(name).release()

    def power_on(self, name: str) -> None:
        """Boots a node, and returns when jobs may run there again."""
        self.world[name].power_on()
        self._start_node(self.world[name])
        self.wait_until({name: _USABLE})

    def mend(self) -> None:
        """Brings back all that has been stopped, and waits until all nodes can be used."""
        if CONTROLLER not in self._daemons:
            self.start_controller()
        for node in self.nodes:
            if node.name not in self._daemons:
                self.power_on(node.name)
        # A controller that was killed finds jobs on nodes that it does not know, and drains those;
        # now, or in a moment.
        self._wait("the nodes cannot be used again", self._resumed)

    def _resumed(self) -> bool:
        """Says whether all nodes can be used, and resumes those that are drained."""
        states = self._states() or {}
        bad = [node.name for node in self.nodes if states.get(node.name) not in _USABLE]
        for name in bad:
            words = ["scontrol", "update", f"NodeName={name}", "State=RESUME"]
            self.controller.run(words, env=self.variables, check=False)
        return not bad

    def wait_until(self, wanted: dict[str, Sequence[str]], limit_s: float = _LIMIT_S) -> None:
        """Waits until each of these nodes is in one of the states given for it.

        Raises:
            TimeoutError: That did not happen; the note has the end of all logs.
        """

        def arrived() -> bool:
            states = self._states() or {}
            return all(states.get(name) in allowed for name, allowed in wanted.items())

        self._wait(f"the nodes are not as wanted: {wanted}", arrived, limit_s)

    def commands_on(self, name: str) -> list[str]:
        """Returns the command lines of what runs on a node, daemons left out."""
        found = []
        for pid in self.world[name].pids():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            words = line.decode(errors="replace").replace("\0", " ").strip()
            if words and not words.startswith(_DAEMONS):
                found.append(words)
        return sorted(found)

    def close(self) -> None:
        """Ends all that runs on the cluster, and the cluster."""
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
        """Starts the service that vouches for users; its socket is a file that all hosts see."""
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
        # Folders that others may write to are what it would else refuse; and it answers one
        # who connects with a second thread only.
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
        """Returns the state of each node, or None when the controller does not answer."""
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
