"""Fuzz the parsers of data from other hosts: `python3 -m tools nox -s fuzz -- --seconds 600`.

The targets are in fuzz/. Rust targets are built with coverage instrumentation by the stable
compiler. All targets run concurrently for a limited time; a failure prints the input that causes
it. The corpus is kept in the cache.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools import system, toolbox
from tools.cargo_tree import cargo_tree
from tools.workspace import ROOT, cache_folder, read_toml

CRATE = ROOT / "fuzz"

#: For all targets together, without the build: enough to run the kept inputs and a few new ones.
SECONDS = 12.0
#: Limit of resident memory per target, including the fuzzer's own tables and corpus.
MEMORY_MAX_MB = 512
#: Time limit of a single input; no target waits for anything.
INPUT_LIMIT_S = 20
#: Time that a target may take to exit after its share of the time.
END_LIMIT_S = 60.0

#: libFuzzer requires counters of edges and the operands of comparisons from LLVM.
COVERAGE_FLAGS = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
)

_END = re.compile(
    r"^#(?P<runs>\d+)\s+DONE\s+cov: (?P<cov>\d+).* corp: (?P<corpus>\d+)/.* rss: (?P<rss>\d+)Mb",
    re.MULTILINE,
)
_FOUND = re.compile(r"Test unit written to (?P<path>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """A program that accepts bytes, and the folders of its inputs."""

    name: str
    command: tuple[str, ...]

    @property
    def seeds(self) -> Path:
        """The inputs in the repository."""
        return CRATE / "seeds" / self.name

    @property
    def corpus(self) -> Path:
        """The inputs that previous runs have added."""
        return cache_folder() / "fuzz" / "corpus" / self.name

    @property
    def found(self) -> Path:
        """The folder for inputs that make the target fail."""
        return cache_folder() / "fuzz" / "found" / self.name


@dataclass(frozen=True)
class Finding:
    """The result of running one target."""

    target: Target
    status: int
    output: str

    @property
    def failed(self) -> bool:
        """Whether the status was not 0, or the final statistics are missing."""
        return self.status != 0 or _END.search(self.output) is None

    def line(self) -> str:
        """Return the row of the target in the table."""
        name = f"{self.target.name:<12}"
        end = _END.search(self.output)
        if self.failed or end is None:
            return f"{name}  failed with status {self.status}"
        runs, cov, corpus, rss = (int(end[key]) for key in ("runs", "cov", "corpus", "rss"))
        return f"{name}  {runs:>9} runs  {cov:>5} edges  {corpus:>5} inputs kept  {rss:>4} MB"

    def report(self) -> str:
        """Return the information that is necessary to reproduce and fix the failure."""
        lines = [f"== {self.target.name} failed; the end of its output:"]
        lines += self.output.splitlines()[-40:]
        found = _FOUND.search(self.output)
        if found:
            again = ["--target", self.target.name, "--input", found["path"]]
            lines.append(f"input: {found['path']}")
            lines.append(f"again: python3 -m tools nox -s fuzz -- {shlex.join(again)}")
        return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Build and run the selected targets, and return the exit status."""
    asked = _arguments(argv)
    os.environ.update(toolbox.environment())
    if packages := system.ensure(system.FUZZ):
        print(f"not installed: apt-get install {' '.join(packages)}", file=sys.stderr)
        return 2
    # A build of another clone would replace the programs while they run.
    with cargo_tree() as tree:
        return _run_chosen(asked, _targets(_build(tree / CRATE.name)))


def _run_chosen(asked: argparse.Namespace, targets: Sequence[Target]) -> int:
    unknown = set(asked.target) - {target.name for target in targets}
    if unknown:
        names = ", ".join(target.name for target in targets)
        print(f"no target {', '.join(sorted(unknown))}: there are {names}", file=sys.stderr)
        return 2
    chosen = [one for one in targets if not asked.target or one.name in asked.target]
    if asked.input:
        return max(subprocess.run([*one.command, str(asked.input)]).returncode for one in chosen)
    findings = _run_all(chosen, asked.seconds, asked.jobs)
    for finding in findings:
        print(finding.line())
    for finding in findings:
        if finding.failed:
            print(finding.report(), file=sys.stderr)
    return 1 if any(finding.failed for finding in findings) else 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nox -s fuzz --", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all targets together")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="side by side")
    parser.add_argument("--target", action="append", default=[], help="only this one")
    parser.add_argument("--input", type=Path, help="run this input once, instead of fuzzing")
    return parser.parse_args(argv)


def _build(crate: Path) -> Path:
    """Compile the targets, and return their folder."""
    host = _host_triple()
    folder = cache_folder() / "cargo-fuzz"
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--bins", "--target", host]
    # With `--target` the flags apply only to the target, not to build scripts.
    env = {**os.environ, "CARGO_TARGET_DIR": str(folder), "RUSTFLAGS": " ".join(COVERAGE_FLAGS)}
    subprocess.run(command, check=True, cwd=crate, env=env)
    return folder / host / "release"


def _host_triple() -> str:
    said = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    (host,) = (line[6:] for line in said.splitlines() if line.startswith("host: "))
    return host


def _targets(folder: Path) -> list[Target]:
    manifest = read_toml(CRATE / "Cargo.toml")
    len_max = manifest["package"]["metadata"]["input-len-max"]
    programs = {one["name"]: [str(folder / one["name"])] for one in manifest["bin"]}
    for script in sorted((CRATE / "targets").glob("*.py")):
        programs[script.stem] = [sys.executable, str(script)]
    return [Target(one, (*programs[one], f"-max_len={len_max[one]}")) for one in sorted(programs)]


def _run_all(targets: Sequence[Target], seconds: float, jobs: int) -> list[Finding]:
    """Run all targets, each with the same share of the time."""
    share = max(1.0, seconds * min(jobs, len(targets)) / len(targets))
    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(lambda target: _run(target, share), targets))


def _run(target: Target, seconds: float) -> Finding:
    finding = _fuzz(target, seconds)
    found = _FOUND.search(finding.output)
    if found and Path(found["path"]).name.startswith("timeout-"):
        # The timeout is wall-clock time, which includes suspension of the machine or process.
        alone = subprocess.run([*target.command, found["path"]], capture_output=True)
        if alone.returncode == 0:
            return _fuzz(target, seconds)
    return finding


def _fuzz(target: Target, seconds: float) -> Finding:
    target.corpus.mkdir(parents=True, exist_ok=True)
    target.found.mkdir(parents=True, exist_ok=True)
    command = [
        *target.command,
        # libFuzzer adds new inputs to the first folder.
        str(target.corpus),
        str(target.seeds),
        f"-max_total_time={int(seconds)}",
        f"-rss_limit_mb={MEMORY_MAX_MB}",
        f"-timeout={INPUT_LIMIT_S}",
        f"-artifact_prefix={target.found}/",
        "-len_control=20",
    ]
    try:
        ended = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds + END_LIMIT_S,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
        return Finding(target, -9, f"{said}\nit did not end within {late.timeout:.0f} s")
    return Finding(target, ended.returncode, ended.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
