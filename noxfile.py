"""The checks of the repository: see `nox -l`. `python3 -m tools test` runs all of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox
import nox.command

# Nox loads this file by its path, so the root of the repository is not on the module path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools import bytecode, compiled, system, toolbox
from tools.cargo_tree import cargo_tree
from tools.pins import outside_requirements
from tools.wheels import wheel
from tools.workspace import PACKAGES, ROOT, cache_folder, package, packages

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "types", "rust", "tests", "layers"]

os.environ.update(toolbox.environment())

PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")

#: Rust crates of the extension modules: they link only inside a Python, so cargo cannot test them.
EXTENSION_CRATES = "*-py"

#: Packages whose tests need only Python packages.
PLAIN_PACKAGES = tuple(
    name
    for name in PACKAGES
    if name not in ("mesh-jobs", "mesh-rdma", "mesh-telemetry", "mesh-fs", "mesh-tensor")
)

#: A distribution that uses only the public modules of mesh-jobs and provides a backend.
EXAMPLE_BACKEND = ROOT / "tests/fixtures/mesh-jobs-example"

#: The Kubernetes client library before a change in the way it sends requests.
OLDER_KUBERNETES = "kubernetes==35.0.0"

#: What the tests of each package need: a dependency group, other packages, and system programs.
TESTS_OF_PACKAGES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "mesh-core": ("test", (), {}),
    "mesh-rdma": ("rdma", (), system.VERBS),
    "mesh-tensor": ("tensor", ("mesh-rdma",), {}),
    "mesh-fs": ("fs", ("mesh-jobs",), system.FUSE),
    "mesh-telemetry": ("telemetry", ("mesh-jobs",), {**system.BROWSER, **system.TERMINAL}),
    "mesh-jobs": ("jobs", (), {**system.SSH, **system.HOSTS, **system.KUBE}),
}

#: Selects the Kubernetes tests that depend on that library.
OF_KUBERNETES_CLIENT = (
    "test_watches or port_forward or created_and_deleted or permission or until_the_job_is_killed"
    " or on_leaving or drain or terminating"
)

#: The tests of mesh-rdma that require a verbs device.
OF_VERBS = "packages/mesh-rdma/tests/verbs"

#: Each process runs a contiguous part of the tests, so that few files set up what their tests share
#: in several processes.
IN_ORDER = ("--dist=worksteal",)

#: The other systems of docs/comparison.md, and their dependency groups.
PEER_GROUPS = {
    "monarch": "bench",
    "ray": "bench-ray",
    "dask": "bench-dask",
    "xoscar": "bench-xoscar",
    "torchrun": "bench-torchrun",
}

#: The exit status of bench/run.py if a count could not be measured.
COUNTS_UNJUDGED = 2


@nox.session
@nox.parametrize("part", [nox.param(part, id=part) for part in (*PLAIN_PACKAGES, "across")])
def tests(session: nox.Session, part: str) -> None:
    """Run the tests of each package in isolation, then the tests across packages.

    The tests of mesh-jobs, mesh-rdma, mesh-telemetry, mesh-fs and mesh-tensor are run by `jobs`,
    `rdma`, `telemetry`, `fs` and `tensor`, with their dependencies. Arguments replace the folders
    and files to test: `nox -s "tests(mesh-core)" -- packages/mesh-core/tests/test_futures.py`.
    """
    if part == "across":
        _install(session, "jobs", *PACKAGES)
        folders = [f"tests/{name}" for name in ("integration", "compat", "plugins", "mistakes")]
        _pytest(session, *(session.posargs or ["tests/test_programs.py", *folders]))
    else:
        _prepare(session, part)
        # More processes would only wait for the processors while other sessions run.
        all_tests = [f"packages/{part}/tests", "--numprocesses=2", *IN_ORDER, "-m", "not slow"]
        _pytest(session, *(session.posargs or all_tests))


@nox.session(venv_backend="none")
def rust(session: nox.Session) -> None:
    """Format, lint, document and test the Rust workspace; `-- --ignored` runs slow tests only."""
    session.env["PYO3_PYTHON"] = str(toolbox.ensure())
    session.env["RUSTDOCFLAGS"] = "--deny warnings"
    ours = ["--workspace", "--locked", "--quiet"]
    tested = [*ours, "--exclude", EXTENSION_CRATES]
    with cargo_tree() as tree, session.chdir(tree):
        _run_each(
            session,
            ["cargo", "fmt", "--all", "--check"],
            ["cargo", "test", "--no-fail-fast", *tested, "--", *session.posargs],
            ["cargo", "clippy", *ours, "--all-targets", "--", "--deny", "warnings"],
            ["cargo", "doc", *tested, "--no-deps"],
        )


@nox.session
def lint(session: nox.Session) -> None:
    """Check the format, import contracts and house rules, and test the tools."""
    _install(session, "lint")
    session.env["PYTHONPATH"] = os.pathsep.join(str(one.source.parent) for one in packages())
    _run_each(
        session,
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["lint-imports", "--no-cache"],
        ["python", "-m", "tools.tidy"],
        ["python", "-m", "pytest", "tools/tests"],
    )


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy and pyright, and that both reject wrong programs."""
    _install(session, "types", *PACKAGES)
    session.env["MYPY_CACHE_DIR"] = str(cache_folder() / "mypy")
    own = ["noxfile.py", "tools", "tests/hosts", *(str(one.source) for one in packages())]
    stubs = [stub for one in packages() for stub in one.source.glob("_*.pyi")]
    stubtest = [["stubtest", f"{stub.parent.name}.{stub.stem}"] for stub in stubs]
    complete = ["pyright", "--ignoreexternal", "--verifytypes"]
    _run_each(
        session,
        ["mypy", *own],
        *stubtest,
        ["pyright"],
        *([*complete, one.import_name] for one in packages() if one.offers_names),
        ["python", "-m", "pytest", "tests/types"],
    )


@nox.session
def layers(session: nox.Session) -> None:
    """Install each wheel alone in a clean environment, and check what it brings."""
    _install(session, "test")
    session.install("uv", "packaging")
    built = [wheel(one) for one in packages()]
    _pytest(session, "tests/layers", env={"MESH_WHEELS": os.pathsep.join(map(str, built))})


@nox.session
def examples(session: nox.Session) -> None:
    """Run every example, including the notebooks."""
    _install(session, "examples", "mesh-jobs", "mesh-rdma", "mesh-tensor", "mesh-telemetry")
    _pytest(session, "tests/examples", *(session.posargs or ["-m", "not slow"]))


@nox.session
def docs(session: nox.Session) -> None:
    """Run every code block of the documentation, and check its links."""
    _install(session, "docs", *PACKAGES)
    _pytest(session, "tests/docs", *(session.posargs or ["-m", "not slow"]))


@nox.session
def site(session: nox.Session) -> None:
    """Build the website into site/, and read it in a browser: `-- serve` shows it instead."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "site"))
    # Material for MkDocs prints a notice about MkDocs 2 to each build.
    env = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", *(session.posargs or ["build", "--strict", "--quiet"]), env=env)
    if not session.posargs:
        _have(session, system.BROWSER)
        _pytest(session, "tests/site")


@nox.session
def readme(session: nox.Session) -> None:
    """Run the commands of README, docs/start.md and CONTRIBUTING in a new clone."""
    _install(session, "test")
    _pytest(session, "tests/readme", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Benchmark: core, hosts, jobs, rdma, fs, tensor, telemetry, record, counts, all."""
    arguments = session.posargs or ["core"]
    if arguments[0] == "all":
        _compare(session, *arguments[1:])
    elif arguments[0] == "counts":
        _install(session, "test", "mesh-core")
        # Without strace the system calls cannot be counted, only the context switches.
        session.run("python", "bench/run.py", *arguments, success_codes=[0, COUNTS_UNJUDGED])
    elif arguments[0] == "jobs":
        _install(session, "jobs", "mesh-jobs")
        _have(session, system.SLURM)
        session.run("python", "bench/run.py", *arguments)
    elif arguments[0] == "hosts":
        _install(session, "test", "mesh-core")
        _have(session, system.HOSTS)
        session.run("python", "bench/run.py", *arguments)
    else:
        session.env["UV_CONSTRAINT"] = ""
        named = {part: f"mesh-{part}" for part in ("rdma", "fs", "tensor", "telemetry")}
        measured = named.get(arguments[0], "mesh-core")
        groups = {
            "mesh-fs": "bench-torch",
            "mesh-tensor": "bench-torch",
            "mesh-telemetry": "bench-telemetry",
        }
        group = groups.get(measured, "bench")
        _install(session, group, measured)
        if measured == "mesh-fs":
            _have(session, system.MOUNTS)
        if measured == "mesh-telemetry":
            _have(session, system.BROWSER)
        session.run("python", "bench/run.py", *arguments)


@nox.session
def hosts(session: nox.Session) -> None:
    """Run the tests across hosts, in namespaces of this machine: `-- -k power_cut`."""
    _install(session, "test", "mesh-jobs", "mesh-rdma", "mesh-fs")
    _have(session, system.HOSTS)
    chosen = session.posargs or ["-m", "not slow"]
    session.run("python", "-m", "tests.hosts", *chosen)


@nox.session
def jobs(session: nox.Session) -> None:
    """Run the tests of jobs on local processes, sshd and a Kubernetes API."""
    _prepare(session, "mesh-jobs")
    session.install(str(EXAMPLE_BACKEND))
    folders = ["packages/mesh-jobs/tests", "tests/jobs", str(EXAMPLE_BACKEND / "tests")]
    chosen = session.posargs or ["-m", "not slow"]
    options = ["--numprocesses=2", *IN_ORDER, "--ignore=tests/jobs/slurm"]
    _pytest(session, *folders, *options, *chosen)


@nox.session
def slurm(session: nox.Session) -> None:
    """Run the tests of SLURM jobs on a cluster of emulated hosts."""
    _install(session, "jobs", "mesh-jobs", "mesh-rdma", "mesh-tensor")
    _have(session, system.SLURM)
    chosen = session.posargs or ["-m", "not slow"]
    session.run("python", "-m", "tests.jobs.slurm", *chosen)


@nox.session
def rdma(session: nox.Session) -> None:
    """Run the tests of RDMA that need no verbs device."""
    _prepare(session, "mesh-rdma")
    chosen = session.posargs or ["-m", "not slow"]
    _pytest(session, "packages/mesh-rdma/tests", f"--ignore={OF_VERBS}", *chosen)
    _pytest(session, "tests/rdma", *chosen)


@nox.session
def verbs(session: nox.Session) -> None:
    """Run the tests of RDMA over verbs, in a virtual machine with verbs devices."""
    _install(session, "verbs", "mesh-rdma")
    # In the virtual machine compilation takes many times as long, and its result would be lost.
    # Some packages contain files for other versions of Python, which are skipped with status 1.
    compile_all = ["python", "-m", "compileall", "-qq", "-j2", session.virtualenv.location]
    session.run(*compile_all, success_codes=[0, 1])
    bytecode.store(_python(session))
    _have(session, system.VERBS)
    # Every test is slow in the virtual machine, because its processor is emulated.
    in_machine = ["python", "-m", "tests.rdma.vm", "--limit=600", "--"]
    in_machine += ["python", "-m", "tools.twice", "--timeout=300", "-p", "no:randomly"]
    session.run(*in_machine, OF_VERBS, *(session.posargs or ["-m", "not slow"]))


@nox.session
def tensor(session: nox.Session) -> None:
    """Run the tests of distributed tensors, with gloo, and of tensors in messages."""
    _prepare(session, "mesh-tensor")
    # Torch is not installed for the other tests of mesh-core.
    folders = ["packages/mesh-tensor/tests", "packages/mesh-core/tests/test_pickle_tensors.py"]
    _pytest(session, *folders, *(session.posargs or ["-m", "not slow"]))


@nox.session
def telemetry(session: nox.Session) -> None:
    """Run the tests of telemetry, with other engines and third-party clients."""
    _prepare(session, "mesh-telemetry")
    chosen = session.posargs or ["-m", "not slow"]
    _pytest(session, "packages/mesh-telemetry/tests", "--numprocesses=2", *IN_ORDER, *chosen)


@nox.session
def fs(session: nox.Session) -> None:
    """Run the tests of mounts on real mounts."""
    _prepare(session, "mesh-fs")
    chosen = session.posargs or ["-m", "not slow"]
    # Two processes, because the tests spend most of their time waiting.
    _pytest(session, "packages/mesh-fs/tests", "--numprocesses=2", *IN_ORDER, *chosen)


@nox.session
def kube(session: nox.Session) -> None:
    """Run tests of namespaces, drains and the client library with an older client library."""
    _install(session, "jobs", "mesh-jobs")
    session.env["UV_CONSTRAINT"] = ""
    session.install(OLDER_KUBERNETES)
    _have(session, {**system.HOSTS, **system.KUBE})
    chosen = session.posargs or ["-k", OF_KUBERNETES_CLIENT, "-m", "not slow"]
    _pytest(session, "tests/jobs/kube", *chosen)


@nox.session
def chaos(session: nox.Session) -> None:
    """Inject a fault every 3 s under load: `nox -s chaos -- --minutes 10 --seed 7`."""
    _install(session, "test", "mesh-core")
    _have(session, system.HOSTS)
    session.run("python", "-m", "tests.hosts.chaos", *session.posargs)


@nox.session
def drains(session: nox.Session) -> None:
    """Move hosts to other machines under load: `nox -s drains -- --drains 1000 --seed 7`."""
    _install(session, "test", "mesh-core")
    _have(session, system.HOSTS)
    session.run("python", "-m", "tests.hosts.drains", *session.posargs)


@nox.session
def reproduce(session: nox.Session) -> None:
    """Record ten planted bugs on two hosts, and replay each with mesh-core and pytest alone."""
    _install(session, "test", "mesh-core")
    _have(session, system.HOSTS)
    _pytest(session, "tests/reproduce", *session.posargs)


@nox.session
def diagnose(session: nox.Session) -> None:
    """Plant hangs and memory deaths in training on two hosts, and check that they are named."""
    _install(session, "tensor", "mesh-jobs", "mesh-telemetry")
    _have(session, system.HOSTS)
    _pytest(session, "tests/diagnose", *session.posargs)


@nox.session
def campaign(session: nox.Session) -> None:
    """Inject failures into training on four hosts: `-- --failures 1000 --seed 7 --output out`."""
    _install(session, "tensor", "mesh-tensor", "mesh-rdma", "mesh-jobs")
    _have(session, system.HOSTS)
    _pytest(session, "tests/campaign")
    session.run("python", "-m", "tests.campaign", *session.posargs)


@nox.session
def images(session: nox.Session) -> None:
    """Build the container image without an engine, and run a worker in it; requires root."""
    _have(session, system.IMAGES)
    _install(session, "test", "mesh-jobs")
    session.install("pip")
    built = [str(wheel(package(name))) for name in ("mesh-core", "mesh-jobs")]
    _pytest(session, "tests/images", env={"MESH_WHEELS": os.pathsep.join(built)})


@nox.session
def agents(session: nox.Session) -> None:
    """Check that at most three queries explain each broken program of bench/agents."""
    _install(session, "agents", "mesh-telemetry", "mesh-jobs")
    session.run("python", "-m", "bench.agents", *session.posargs)


@nox.session
def security(session: nox.Session) -> None:
    """Run attacks by another user of this machine; requires root."""
    # Some Python packages are compiled against these Debian packages, so they come first.
    _have(session, system.SECURITY)
    _install(session, "security", *PACKAGES)
    _pytest(session, "tests/security", *(session.posargs or ["-m", "not slow"]))


@nox.session
@nox.parametrize("name", [nox.param(name, id=name) for name in TESTS_OF_PACKAGES])
def oldest(session: nox.Session, name: str) -> None:
    """Run the tests of a package with the oldest versions of other projects that it accepts."""
    _prepare(session, name)
    # The constraints contain the newest versions. Without --upgrade these would stay installed.
    session.env["UV_CONSTRAINT"] = ""
    required = outside_requirements(package(name))
    session.install("--upgrade", "--resolution=lowest-direct", *required)
    chosen = session.posargs or [f"--ignore={OF_VERBS}", "-m", "not slow"]
    _pytest(session, f"packages/{name}/tests", "--numprocesses=2", *IN_ORDER, *chosen)


@nox.session(venv_backend="none")
def sim(session: nox.Session) -> None:
    """Simulate the real state machines: `nox -s sim -- --seeds 200`, or `-- --actors 100000`."""
    with cargo_tree() as tree:
        run = ["cargo", "run", f"--manifest-path={tree / 'Cargo.toml'}", "--package", "mesh-sim"]
        run += ["--release", "--locked", "--quiet", "--"]
        session.run(*run, *(session.posargs or ["--seeds", "200"]), external=True)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Fuzz the parsers of data from other hosts: `nox -s fuzz -- --seconds 600`."""
    session.run("python3", "-m", "tools.fuzz", *session.posargs, external=True)


@nox.session
def soak(session: nox.Session) -> None:
    """Start and stop programs in every way: `nox -s soak -- --programs 1000`."""
    _install(session, "test", "mesh-core")
    _pytest(session, "tests/soak", *session.posargs)


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build the wheel of every package into dist/."""
    target = ROOT / "dist"
    target.mkdir(exist_ok=True)
    for one in packages():
        session.log(f"{shutil.copy(wheel(one), target)}")


@nox.session
def release(session: nox.Session) -> None:
    """Build, check and try the files of a release: `-- --index local` publishes them here."""
    _install(session, "release")
    session.run("python", "-m", "tools.publish", *session.posargs)


def _compare(session: nox.Session, *args: str) -> None:
    """Measure all systems of docs/comparison.md, each in an environment of its own."""
    session.env["UV_CONSTRAINT"] = ""
    _install(session, "bench-mesh", "mesh-core", "mesh-jobs", "mesh-tensor", "mesh-rdma")
    _have(session, system.HOSTS)
    uv = toolbox.program("uv")
    interpreters = {"mesh": str(_python(session))}
    for name, group in PEER_GROUPS.items():
        folder = Path(session.virtualenv.location).with_name(group)
        project = f"{ROOT / 'pyproject.toml'}:{group}"
        session.run(uv, "venv", "-q", "--allow-existing", str(folder), external=True)
        session.run(
            uv, "pip", "install", "-q", "-p", str(folder), "--group", project, external=True
        )
        interpreters[name] = str(folder / "bin" / "python")
    options = [f"--python={name}={path}" for name, path in interpreters.items()]
    session.run("python", "-m", "bench.comparison", *options, *args)


def _install(session: nox.Session, group: str, *names: str) -> None:
    """Install a dependency group, and packages as wheels, which all sessions share."""
    wanted = {one for name in names for one in (name, *package(name).siblings)}
    try:
        built = [str(wheel(package(name))) for name in sorted(wanted)]
    except subprocess.CalledProcessError as error:
        session.error(f"a wheel could not be built: status {error.returncode}")
    required = nox.project.dependency_groups(PYPROJECT, group)
    session.install(*required, *built, *compiled.find_links(required))
    bytecode.restore(_python(session))


def _prepare(session: nox.Session, name: str) -> None:
    """Install a package and what its tests need."""
    group, others, programs = TESTS_OF_PACKAGES[name]
    # pyfuse3 is compiled against the headers that some of them contain, so they come first.
    _have(session, programs)
    _install(session, group, name, *others)


def _pytest(session: nox.Session, *args: str, env: dict[str, str] | None = None) -> None:
    slowest = ["--durations=15", "--durations-min=2"]
    try:
        session.run("python", "-m", "tools.twice", *slowest, *args, env=env)
    finally:
        bytecode.store(_python(session))


def _python(session: nox.Session) -> Path:
    return Path(session.bin) / "python"


def _have(session: nox.Session, programs: dict[str, str]) -> None:
    """Install missing system programs, or fail."""
    if packages := system.ensure(programs):
        session.error(f"not installed: apt-get install {' '.join(packages)}")


def _run_each(session: nox.Session, *commands: list[str]) -> None:
    """Run all commands even if one fails, so that one run shows all errors."""
    failed = 0
    for command in commands:
        try:
            session.run(*command, external=command[0] == "cargo")
        except nox.command.CommandFailed:
            failed += 1
    if failed:
        session.error(f"{failed} of {len(commands)} commands failed")
