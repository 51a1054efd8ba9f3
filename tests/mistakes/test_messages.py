"""The messages that typical mistakes lead to."""

import pytest

from tests.mistakes.runner import PROGRAMS, expected_file, seen_by_users


@pytest.fixture(scope="module")
def seen() -> dict[str, str]:
    """Run all programs, several at a time."""
    return seen_by_users(list(PROGRAMS))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mistake_leads_to_the_expected_message(name: str, seen: dict[str, str]) -> None:
    expected = expected_file(name).read_text()
    assert seen[name] == expected, f"if it is better now: python -m tests.mistakes --update {name}"


def test_each_expected_message_has_a_program() -> None:
    folder = expected_file(next(iter(PROGRAMS))).parent
    assert {file.stem for file in folder.glob("*.txt")} == PROGRAMS.keys()
