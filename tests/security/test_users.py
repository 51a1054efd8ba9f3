"""The two users have the properties that the attacks require."""

from __future__ import annotations

from tests.security.users import User

WHO = "import os, mesh_core; print(os.getuid(), os.getgroups(), mesh_core.__name__)"


def test_users_differ_and_both_can_run_mesh(owner: User, other_user: User) -> None:
    assert owner.run_python(WHO) == f"{owner.uid} [] mesh_core\n"
    assert other_user.run_python(WHO) == f"{other_user.uid} [] mesh_core\n"


def test_a_user_cannot_enter_the_home_of_another(owner: User, other_user: User) -> None:
    (owner.home / "secret").write_text("secret")
    assert "Permission denied" in other_user.run(["cat", str(owner.home / "secret")])


def test_a_program_of_a_user_can_start_the_interpreter_again(owner: User) -> None:
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'], check=True)"
    assert owner.run_python(again) == "1\n"
