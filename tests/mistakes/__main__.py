"""Shows the output of the programs, or rewrites the expected output.

python -m tests.mistakes --update           # all of them
python -m tests.mistakes --update ray_remote
python -m tests.mistakes ray_remote         # only shows the output
"""

import argparse

from tests.mistakes.runner import PROGRAMS, expected_file, seen_by_users


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mistakes", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PROGRAMS], help="programs; default: all")
    parser.add_argument("--update", action="store_true", help="rewrite the expected output")
    chosen = parser.parse_args()
    for name, seen in seen_by_users(chosen.names or list(PROGRAMS)).items():
        if chosen.update:
            expected_file(name).write_text(seen)
        else:
            print(f"--- {name}\n{seen}")


if __name__ == "__main__":
    main()
