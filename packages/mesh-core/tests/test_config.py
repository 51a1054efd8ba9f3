"""Settings: valid values, precedence of layers, and visibility."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mesh_core._configuration import config as _config
from mesh_core._configuration import settings as _config_settings
from mesh_core._configuration.config import (
    Config,
    clear_runtime_config,
    configure,
    configured,
    effective,
    get_global_config,
    get_runtime_config,
)
from mesh_core._configuration.settings import PEER_NAMES, SETTINGS
from mesh_core._errors import ConfigError, MeshError
from mesh_core._testing.config import parametrize_config, parametrize_config_pointwise


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the defaults, and restore all settings after the test."""
    monkeypatch.setattr(_config, "_layers", _config._Layers())
    for variable in list(os.environ):
        if variable.startswith("MESH_"):
            monkeypatch.delenv(variable)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def say(what: Any, name: str, value: object) -> Any:
    """Pass a setting whose name is a variable."""
    return what(**{name: value})


# The tests below check the precedence of layers.


def test_defaults_apply_without_configuration() -> None:
    assert effective() == Config()
    assert effective().mailbox_len_max == 10_000
    assert get_runtime_config() == {}


def test_each_layer_overrides_the_layers_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["cast_fanout", "log_tail_lines", "mailbox_len_max", "event_ring_len_max"]
    table = "".join(f"{name} = 100\n" for name in names)
    monkeypatch.setenv("MESH_CONFIG", write(tmp_path / "mesh.toml", f"[core]\n{table}"))
    for name in names[1:]:
        monkeypatch.setenv(f"MESH_{name.upper()}", "200")
    for name in names[2:]:
        say(configure, name, 300)
    with say(configured, names[3], 400):
        assert [effective()[name] for name in names] == [100, 200, 300, 400]
    assert [effective()[name] for name in names] == [100, 200, 300, 300]


def test_configure_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_LOG_FORWARD", "false")
    assert effective().log_forward is False
    configure(log_forward=True)
    assert effective().log_forward is True


def test_clear_undoes_configure_and_reads_the_environment_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure(mailbox_len_max=5)
    monkeypatch.setenv("MESH_MAILBOX_LEN_MAX", "7")
    clear_runtime_config()
    assert effective().mailbox_len_max == 7


def test_the_runtime_config_shows_only_configured_settings() -> None:
    configure(mailbox_len_max=5)
    with configured(log_prefix=False):
        assert get_runtime_config() == {"mailbox_len_max": 5}
        assert get_global_config() == {**dict(Config()), "mailbox_len_max": 5, "log_prefix": False}


def test_configure_changes_nothing_if_one_setting_is_invalid() -> None:
    with pytest.raises(ConfigError):
        configure(mailbox_len_max=5, log_tail_lines=-1)
    assert get_runtime_config() == {}


def test_configured_blocks_nest_and_restore_the_previous_settings() -> None:
    with configured(mailbox_len_max=5, log_prefix=False) as outer:
        assert outer["mailbox_len_max"] == 5
        with configured(mailbox_len_max=6) as inner:
            assert (inner.mailbox_len_max, inner.log_prefix) == (6, False)
        assert effective() == outer
    assert effective() == Config()


def test_configure_inside_a_block_affects_settings_the_block_does_not_set() -> None:
    with configured(mailbox_len_max=5):
        configure(mailbox_len_max=6, log_tail_lines=7)
        assert (effective().mailbox_len_max, effective().log_tail_lines) == (5, 7)
    assert effective().mailbox_len_max == 6


def test_a_configured_block_does_not_affect_other_threads() -> None:
    seen = []
    with configured(mailbox_len_max=5):
        thread = threading.Thread(target=lambda: seen.append(effective().mailbox_len_max))
        thread.start()
        thread.join()
    assert seen == [10_000]


async def test_configured_blocks_are_isolated_by_task_and_inherited_by_child_tasks() -> None:
    both_inside = asyncio.Barrier(2)

    async def inside(length: int) -> tuple[int, int]:
        with configured(mailbox_len_max=length):
            await both_inside.wait()
            child = await asyncio.create_task(asyncio.to_thread(effective))
            return effective().mailbox_len_max, child.mailbox_len_max

    seen = await asyncio.gather(inside(5), inside(6))
    assert list(seen) == [(5, 5), (6, 6)]
    assert effective().mailbox_len_max == 10_000


def test_a_new_process_inherits_the_configuration_of_its_spawner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MESH_MAILBOX_LEN_MAX", "7")
    with configured(mailbox_len_max=5, log_dir="/logs", preload=["json"]):
        sent = effective().as_mapping()
        here = effective()
    _config.inherit(sent)
    assert effective() == here
    configure(mailbox_len_max=6)
    assert (effective().mailbox_len_max, effective().log_dir) == (6, Path("/logs"))


def test_a_config_is_sent_as_plain_data() -> None:
    config = Config(
        log_dir="/logs", preload=["json", "os.path"], call_timeout_s=timedelta(minutes=1)
    )
    assert all(
        isinstance(value, (str, int, float, tuple, type(None)))
        for value in config.as_mapping().values()
    )
    assert Config.from_mapping(config.as_mapping()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(pickle.loads(pickle.dumps(config))) == hash(config)
    assert config != Config()


def test_a_config_is_immutable() -> None:
    config = effective()
    with pytest.raises(AttributeError, match=r"use configure\(\)"):
        config.mailbox_len_max = 3
    with pytest.raises(AttributeError):
        del config.mailbox_len_max
    with pytest.raises(KeyError):
        config["mailbox"]


def test_the_repr_shows_settings_that_differ_from_the_defaults() -> None:
    assert repr(Config(mailbox_len_max=5)) == "Config(mailbox_len_max=5)"


# The tests below check valid values and types.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (30, 30.0),
        (0.25, 0.25),
        ("30s", 30.0),
        ("5m", 300.0),
        ("5 min", 300.0),
        ("1h 30m", 5400.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ("2.5", 2.5),
        ("2 days", 172_800.0),
        (timedelta(seconds=90), 90.0),
        (None, None),
    ],
)
def test_durations_are_accepted_in_common_forms(given: Any, expected: float | None) -> None:
    configure(call_timeout_s=given)
    assert effective().call_timeout_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(65_536, 65_536), ("64 KiB", 65_536), ("1MB", 10**6), ("2 GiB", 2**31), ("70_000", 70_000)],
)
def test_sizes_are_accepted_in_common_forms(given: Any, expected: int) -> None:
    configure(segment_threshold_bytes=given)
    assert effective().segment_threshold_bytes == expected


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("mailbox_len_max", 0, "a whole number from 1 to"),
        ("mailbox_len_max", 1.5, "a whole number"),
        ("mailbox_len_max", True, "a whole number"),
        ("mailbox_len_max", "10", "a whole number"),
        ("log_forward", 1, "True or False"),
        ("log_forward", "yes", "True or False"),
        ("call_timeout_s", -1, "more than 0"),
        ("call_timeout_s", 0, "more than 0"),
        ("call_timeout_s", float("nan"), "a duration"),
        ("call_timeout_s", float("inf"), "a duration"),
        ("call_timeout_s", True, "a duration"),
        ("call_timeout_s", "soon", "'1h 30m'"),
        ("call_timeout_s", "5 parsecs", "a duration"),
        ("stop_grace_s", None, "a duration, 0 or more"),
        ("frame_len_max", "64 KiX", "bytes"),
        ("frame_len_max", 2**31, "to 1,073,741,824"),
        ("process_start", "spawn", "'fork' or 'exec'"),
        ("process_start", ["fork"], "'fork' or 'exec'"),
        ("preload", "torch", "as a tuple or list"),
        ("preload", ["not a module"], "names of modules"),
        ("preload", 3, "names of modules"),
        ("log_dir", 3, "the path of a directory"),
        ("log_dir", "", "the path of a directory"),
    ],
)
def test_the_error_for_an_invalid_value_says_what_is_allowed(
    name: str, value: Any, allowed: str
) -> None:
    for refuse in (configure, configured, Config):
        with pytest.raises(ConfigError, match=re.escape(f"{name} cannot be {value!r}")) as caught:
            say(refuse, name, value)
        assert allowed in str(caught.value)
    assert isinstance(caught.value, (MeshError, ValueError))


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("mailbox_len", "did you mean mailbox_len_max"),
        ("call_timeout", "did you mean call_timeout_s"),
        ("tail_log_line", "log_tail_lines"),
        ("qqqq", "the settings are attach_timeout_s, call_timeout_s"),
    ],
)
def test_an_unknown_setting_is_refused_with_similar_names(name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'") as caught:
        say(configure, name, 1)
    assert suggestion in str(caught.value)


def test_the_setting_names_of_monarch_are_accepted() -> None:
    names: dict[str, Any] = {"enable_log_forwarding": False, "tail_log_lines": 5}
    configure(**names)
    assert (effective().log_forward, effective().log_tail_lines) == (False, 5)
    assert set(PEER_NAMES.values()) <= set(SETTINGS)


# The tests below check the environment and the file.


@pytest.mark.parametrize(
    ("variable", "text", "name", "expected"),
    [
        ("MESH_MAILBOX_LEN_MAX", "10_000", "mailbox_len_max", 10_000),
        ("MESH_CALL_TIMEOUT_S", "none", "call_timeout_s", None),
        ("MESH_CALL_TIMEOUT_S", "5m", "call_timeout_s", 300.0),
        ("MESH_LOG_PREFIX", "off", "log_prefix", False),
        ("MESH_LOG_DIR", "/logs", "log_dir", Path("/logs")),
        ("MESH_PRELOAD", "json, os.path", "preload", ("json", "os.path")),
        ("MESH_PRELOAD", "", "preload", None),
        ("MESH_PROCESS_START", "exec", "process_start", "exec"),
        ("MESH_SEGMENT_THRESHOLD_BYTES", "1 MiB", "segment_threshold_bytes", 2**20),
    ],
)
def test_environment_variables_are_parsed(
    variable: str, text: str, name: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    assert effective()[name] == expected


def test_the_error_names_an_invalid_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_MAILBOX_LEN_MAX", "many")
    with pytest.raises(ConfigError, match="'many' \\(from MESH_MAILBOX_LEN_MAX\\): it takes"):
        effective()


def test_a_misspelt_variable_causes_a_warning_and_an_unrelated_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MESH_MAILBX_LEN_MAX", "5")
    monkeypatch.setenv("MESH_SERVICE_HOST", "10.0.0.1")
    with pytest.warns(UserWarning, match="did you mean MESH_MAILBOX_LEN_MAX") as warned:
        effective()
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[core]\nmailbox_len = 1\n", "did you mean mailbox_len_max"),
        ("[core]\nmailbox_len_max = 0\n", "mailbox_len_max cannot be 0 \\(in '"),
        ("mailbox_len_max = 5\n", r"is not in a table: move it below \[core\]"),
        ("[core\n", "cannot be read"),
    ],
)
def test_the_error_names_an_invalid_configuration_file(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_CONFIG", write(tmp_path / "mesh.toml", text))
    with pytest.raises(ConfigError, match=message) as caught:
        effective()
    assert "mesh.toml" in str(caught.value)


def test_a_missing_configuration_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_CONFIG", "/no/such/mesh.toml")
    with pytest.raises(ConfigError, match="No such file"):
        effective()


def test_tables_of_other_packages_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[core]\nlog_tail_lines = 3\n[fs]\nanything = 1\n"
    monkeypatch.setenv("MESH_CONFIG", write(tmp_path / "mesh.toml", text))
    assert effective().log_tail_lines == 3


# The tests below check that types and table are consistent.


def test_type_declarations_and_the_table_name_the_same_settings() -> None:
    source = Path(_config_settings.__file__).read_text()
    typed = re.search(r"class Settings.*?\n\n\n", source, re.DOTALL)
    assert typed is not None
    assert re.findall(r"^        (\w+): ", typed[0], re.MULTILINE) == sorted(SETTINGS)
    attributes = re.search(
        r"if TYPE_CHECKING:\n        \w+: .*?\n\n", Path(_config.__file__).read_text(), re.DOTALL
    )
    assert attributes is not None
    assert re.findall(r"^        (\w+): ", attributes[0], re.MULTILINE) == list(SETTINGS)


def test_every_default_is_a_valid_value() -> None:
    for setting in SETTINGS.values():
        assert setting.kind.read(setting.default) == setting.default


def test_guide_lists_every_setting_with_its_default() -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "configuration.md"
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", guide.read_text(), re.MULTILINE))
    assert rows == {name: repr(setting.default) for name, setting in SETTINGS.items()}


# The tests below check the decorator for several settings.


def cases_of(test: Any) -> list[str]:
    """Run a decorated test in each of its cases, and return their names."""
    (mark,) = test.pytestmark
    for case in mark.args[1]:
        test(mesh_config=case)
    return [mark.kwargs["ids"](case) for case in mark.args[1]]


def test_parametrize_config_runs_a_test_under_each_combination() -> None:
    seen = []

    @parametrize_config(log_tail_lines=[1, 2], log_prefix={True, False})
    def test() -> None:
        seen.append((effective().log_tail_lines, effective().log_prefix))

    assert cases_of(test) == [
        "log_tail_lines=1-log_prefix=False",
        "log_tail_lines=1-log_prefix=True",
        "log_tail_lines=2-log_prefix=False",
        "log_tail_lines=2-log_prefix=True",
    ]
    assert seen == [(1, False), (1, True), (2, False), (2, True)]


def test_parametrize_config_pointwise_runs_a_test_under_each_point() -> None:
    seen = []

    @parametrize_config_pointwise(log_tail_lines=[1, 2], log_prefix=[True, False])
    def test() -> None:
        seen.append((effective().log_tail_lines, effective().log_prefix))

    assert len(cases_of(test)) == 2
    assert seen == [(1, True), (2, False)]


@parametrize_config(log_tail_lines=[7])
async def test_parametrize_config_supports_async_tests_and_fixtures(tmp_path: Path) -> None:
    await asyncio.sleep(0)
    assert tmp_path.name
    assert effective().log_tail_lines == 7


def test_an_invalid_parametrization_is_refused_at_its_definition() -> None:
    with pytest.raises(ConfigError, match="log_tail_lines cannot be -1"):
        parametrize_config(log_tail_lines=[1, -1])
    with pytest.raises(ConfigError, match="log_tail_lines has 2, log_prefix has 1"):
        parametrize_config_pointwise(log_tail_lines=[1, 2], log_prefix=[True])
