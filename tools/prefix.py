"""Sets the prefix of the names under which the packages are published.

`python3 -m tools.prefix NEW` sets it, and `--index URL` first checks that an index would accept the
names. The folders and the modules that users import keep their names: `packages/mesh-core` contains
`mesh_core`, and is installed with `pip install torchmesh-core`.

The prefix is a setting, `distribution-prefix` in pyproject.toml. The names also appear where they
have to be literal: in the metadata of the packages, in commands of the documentation, and in error
messages. This command rewrites all of them.
"""

import argparse
import html
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.workspace import PACKAGES, ROOT, read_toml

#: Files about earlier releases and decisions keep the names of their time.
HISTORY = ("docs/decisions/", "CHANGELOG.md")

_INDEX_TYPE = "application/vnd.pypi.simple.v1+json"
# An index may reply with a page of links although JSON was requested.
_LINK = re.compile(r"<a [^>]*>([^<]*)</a>")
_FORM = re.compile(r"[a-z][a-z0-9]*")
_PARTS = tuple(name.removeprefix("mesh-") for name in PACKAGES)


def prefix(root: Path = ROOT) -> str:
    """Return the prefix that is set."""
    setting: str = read_toml(root / "pyproject.toml")["tool"]["mesh"]["distribution-prefix"]
    return setting


def distributions(of_prefix: str) -> list[str]:
    """Return the names of all distributions with a prefix."""
    return [f"{of_prefix}-{part}" for part in _PARTS]


def renamed(text: str, old: str, new: str) -> str:
    """Return a text in which distributions, and the files of wheels, have a new prefix."""
    parts = "|".join(_PARTS)
    named = re.compile(rf"(?<![\w.-]){re.escape(old)}([-_])({parts})(?![\w])")
    return named.sub(rf"{new}\1\2", text)


def taken(names: Iterable[str], existing: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each name that an index would refuse, and the existing name that is too similar.

    PyPI ignores separators in a comparison, and does not distinguish 1, i and l, nor 0 and o.
    """
    wanted = {_folded(name): name for name in names}
    for other in existing:
        if name := wanted.get(_folded(other)):
            yield name, other


def existing_names(index: str) -> list[str]:
    """Return the names of all projects of an index.

    Raises:
        OSError: The index does not respond.
    """
    request = urllib.request.Request(index, headers={"Accept": _INDEX_TYPE})
    with urllib.request.urlopen(request, timeout=120) as reply:
        text = reply.read().decode()
    if reply.headers.get_content_type() == "text/html":
        return [html.unescape(name) for name in _LINK.findall(text)]
    return [project["name"] for project in json.loads(text)["projects"]]


def set_prefix(new: str, root: Path = ROOT) -> list[Path]:
    """Give all distributions a new prefix, and return the changed files."""
    old = prefix(root)
    changed = []
    for path in _texts(root):
        text = path.read_text("utf-8")
        if path == root / "pyproject.toml":
            result = text.replace(
                f'distribution-prefix = "{old}"', f'distribution-prefix = "{new}"'
            )
        else:
            result = renamed(text, old, new)
        if result != text:
            path.write_text(result, "utf-8")
            changed.append(path)
    return changed


def _folded(name: str) -> str:
    return re.sub(r"[._-]", "", name.lower()).translate(str.maketrans("lio", "110"))


def _texts(root: Path) -> Iterator[Path]:
    listed = subprocess.check_output(["git", "ls-files"], cwd=root, text=True).splitlines()
    for name in listed:
        path = root / name
        if name.startswith(HISTORY) or name.endswith(HISTORY) or not path.is_file():
            continue
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        yield path


def main() -> int:
    """Check the prefix, or set another one."""
    parser = argparse.ArgumentParser(description="Set the prefix of the published names.")
    parser.add_argument("prefix", nargs="?", default=prefix(), help="default: the current one")
    parser.add_argument("--index", metavar="URL", help="simple API of an index that must accept it")
    options = parser.parse_args()
    names = distributions(options.prefix)
    if not _FORM.fullmatch(options.prefix):
        parser.error(f"{options.prefix!r}: a prefix consists of lower-case letters and digits")
    if options.index:
        existing = set(existing_names(options.index))
        # Its own projects do not prevent further releases.
        refused = list(taken(names, existing - set(names)))
        for name, other in refused:
            print(f"{name} is too similar to {other}: choose another prefix", file=sys.stderr)
        if refused:
            return 1
        print(f"the index accepts {', '.join(names)}")
    for path in set_prefix(options.prefix):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
