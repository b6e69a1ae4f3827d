"""What a server is set up with: the files say what they must, and the set-up refuses what would go
wrong.
"""

from __future__ import annotations

import configparser
import json
import os
import pwd
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools.exercises import handout
from tools.grading.sandbox import Limits
from tools.server import exchange, install
from tools.server.__main__ import main
from tools.server.install import FILES, ROOT, Place, ServerError

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (FILES / "cluster" / "Dockerfile").read_text()
TEMPLATES = (
    "jupyterhub_config.py",
    "nbgrader_config.py",
    "lecturer_config.py",
    "exchange.py",
    "start",
    "jupyterhub.service",
)
WORDS = {
    "PLACE": "/a",
    "STATE": "/b",
    "EXCHANGE": "/c",
    "NODE": "/d",
    "PROXY": "/e",
    "BIN": "/f",
    "PREFIX": "",
}


class _Once(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would silently take one."""


def _once(loader: _Once, node: yaml.MappingNode) -> dict:
    keys = [loader.construct_object(key) for key, _ in node.value]
    assert len(keys) == len(set(keys)), keys
    return loader.construct_mapping(node, deep=True)


_Once.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _once)


def values(name: str) -> dict:
    return yaml.load((FILES / name).read_text(), _Once)


def gibibytes(text: str) -> float:
    """Return what JupyterHub makes of 3G: the unit is 1024**3 bytes."""
    from jupyterhub.traitlets import ByteSpecification
    from traitlets import HasTraits

    class Holder(HasTraits):
        size = ByteSpecification()

    return Holder(size=text).size / 2**30


@pytest.mark.parametrize(
    "name",
    [
        "jupyterhub_config.py",
        "nbgrader_config.py",
        "lecturer_config.py",
        "exchange.py",
        "start",
        "jupyterhub.service",
    ],
)
def test_every_word_of_a_file_is_filled_in(name):
    text = install.fill_in(name, WORDS)
    assert not re.search(r"@[A-Z]+@", text)
    if name.endswith(".py"):
        compile(text, name, "exec")


def test_the_start_is_shell_and_the_service_is_a_unit(tmp_path):
    script = tmp_path / "start"
    script.write_text(install.fill_in("start", WORDS))
    assert subprocess.run(["sh", "-n", script]).returncode == 0
    unit = configparser.ConfigParser(strict=True)
    unit.optionxform = str
    unit.read_string(install.fill_in("jupyterhub.service", WORDS))
    assert unit["Service"]["ExecStart"].split()[0] == "/f/jupyterhub"


def test_the_hub_listens_to_this_machine_alone_without_a_certificate(tmp_path):
    from traitlets.config import PyFileConfigLoader

    (tmp_path / "hub.py").write_text(install.fill_in("jupyterhub_config.py", WORDS))
    config = PyFileConfigLoader("hub.py", path=str(tmp_path)).load_config()
    assert config.JupyterHub.bind_url == "http://127.0.0.1:8000"
    assert config.PAMAuthenticator.allowed_groups == {install.STUDENTS, install.LECTURERS}
    assert "admin_users" not in config.Authenticator
    assert "allow_all" not in config.Authenticator


def test_the_proxy_is_pinned_by_content_and_names_no_host():
    lock = json.loads((FILES / "proxy" / "package-lock.json").read_text())
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert "node_modules/configurable-http-proxy" in packages
    assert all(one["integrity"].startswith("sha512-") for one in packages.values())
    assert not any("resolved" in one for one in packages.values())
    wanted = json.loads((FILES / "proxy" / "package.json").read_text())
    assert lock["packages"][""]["dependencies"] == wanted["dependencies"]


def test_what_a_student_may_take_is_what_grading_gives():
    memory = Limits().memory_bytes / 2**30
    littlest, cluster = values("littlest/config.yaml"), values("cluster/values.yaml")
    assert gibibytes(littlest["limits"]["memory"]) == memory
    assert gibibytes(cluster["singleuser"]["memory"]["limit"]) == memory
    assert littlest["limits"]["cpu"] == cluster["singleuser"]["cpu"]["limit"] == 2


def test_the_littlest_jupyterhub_gets_what_its_schema_takes():
    """The types are those of tljh/config_schema.py; auth and services are its free parts."""
    config = values("littlest/config.yaml")
    assert set(config) == {"user_environment", "users", "auth", "limits", "https", "services"}
    assert config["user_environment"]["default_app"] in ("jupyterlab", "classic")
    assert isinstance(config["limits"]["memory"], str)
    assert isinstance(config["limits"]["cpu"], int)
    assert set(config["https"]) == {"enabled", "letsencrypt"}
    assert config["users"]["extra_user_groups"] == {install.LECTURERS: config["users"]["admin"]}


def test_the_cluster_starts_the_image_that_its_page_builds():
    image = values("cluster/values.yaml")["singleuser"]["image"]
    # the version stands in one place (tests/test_publishing.py)
    assert image == {"name": "course", "tag": "this-term"}
    assert f"--tag {image['name']}:{image['tag']} " in DOCKERFILE


def test_nobody_gets_into_a_cluster_by_signing_up():
    for settings in (
        values("cluster/values.yaml")["hub"]["config"],
        values("littlest/config.yaml")["auth"],
    ):
        assert settings["NativeAuthenticator"]["open_signup"] is False


def test_the_image_has_a_python_and_the_packages_that_the_course_takes():
    [version] = re.findall(r"^FROM python:([\d.]+)-slim$", DOCKERFILE, re.MULTILINE)
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(f"{version}.0")
    server = {Requirement(one) for one in PROJECT["dependency-groups"]["server"]}
    named = {Requirement(one) for one in re.findall(r'"([^"]+[<>=][^"]+)"', DOCKERFILE)}
    assert {one.name for one in named} == {"jupyterhub", "nbgrader"}
    assert named <= server


def test_an_idle_server_ends_itself_with_settings_that_jupyter_knows():
    """A misspelt one would be taken in silence."""
    from jupyter_server.serverapp import ServerApp
    from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
    from jupyter_server_terminals.terminalmanager import TerminalManager

    known = {kind.__name__: kind for kind in (ServerApp, MappingKernelManager, TerminalManager)}
    given = dict(re.findall(r"--(\w+\.\w+)=(\w+)", (FILES / "start").read_text()))
    times_s = {name: int(value) for name, value in given.items() if name.endswith("timeout")}
    assert len(times_s) == 3
    assert all(60 * 30 <= one <= 3600 * 12 for one in times_s.values())
    # a page that is left open keeps none
    assert given["MappingKernelManager.cull_connected"] == "True"
    for name in (*times_s, "MappingKernelManager.cull_connected"):
        kind, trait = name.split(".")
        assert known[kind].class_traits(config=True)[trait]


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_what_is_made_is_open_to_all_whatever_the_administrators_umask(
    tmp_path, monkeypatch, umask
):
    """Of what is made the leaf was opened and the folders above it were not: no student got in."""
    tree, etc, root = tmp_path / "student", tmp_path / "etc", tmp_path / "srv" / "course"
    (tree / "course").mkdir(parents=True)
    (tree / "README.md").touch()
    tmp_path.chmod(0o755)
    monkeypatch.setattr(install, "ETC", etc)
    monkeypatch.setattr(install, "refuse", lambda *_: None)
    monkeypatch.setattr(install, "_run", lambda *_, **__: None)
    monkeypatch.setattr(install, "node_of", lambda environment: environment / "node")
    monkeypatch.setattr(os, "chown", lambda *_: None)
    made = Place(root, tmp_path / "srv" / "nbgrader" / "exchange", root / "environment")
    before = os.umask(umask)
    try:
        written = install.install(made, me(), tree)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    for path in (*written, made.exchange, root / "tree" / "course", root / "server" / "start"):
        closed = [
            one
            for one in (path, *path.parents)
            if one.is_relative_to(tmp_path) and not one.stat().st_mode & 0o004
        ]
        assert [one for one in closed if one != made.exchange] == [], path
    assert made.state.stat().st_mode & 0o777 == 0o700


def place(folder: Path) -> Place:
    return Place(folder / "place", folder / "exchange", folder / "environment")


@pytest.fixture
def as_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def me() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def test_set_up_needs_root(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ServerError, match="sudo"):
        install.install(place(tmp_path), me(), tmp_path)
    with pytest.raises(ServerError, match="sudo"):
        install.add(["ada"])


def test_set_up_names_what_is_missing(tmp_path, as_root, monkeypatch):
    monkeypatch.setattr(install, "ETC", tmp_path / "etc")
    with pytest.raises(ServerError, match="no local user 'no-such-user'"):
        install.install(place(tmp_path), "no-such-user", tmp_path)
    with pytest.raises(ServerError, match="make student"):
        install.install(place(tmp_path), me(), tmp_path / "absent")


def test_no_package_is_fetched_for_a_set_up_that_is_refused(tmp_path, as_root, monkeypatch, capsys):
    monkeypatch.setattr(install, "packages", lambda *_: pytest.fail("packages were fetched"))
    assert main(["install", "--lecturer", "no-such-user", "--place", str(tmp_path / "place")]) == 1
    assert "no local user 'no-such-user'" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_set_up_refuses_a_clone_that_students_can_read(tmp_path, as_root, monkeypatch):
    monkeypatch.setattr(install, "ETC", tmp_path / "etc")
    monkeypatch.setattr(install, "shut_from_others", lambda path: None)
    with pytest.raises(ServerError, match="holds the solutions"):
        install.install(place(tmp_path), me(), tmp_path)


def test_set_up_refuses_a_python_that_students_cannot_read(tmp_path, as_root, monkeypatch):
    monkeypatch.setattr(install, "ETC", tmp_path / "etc")
    closed = tmp_path / "closed"
    monkeypatch.setattr(
        install,
        "shut_from_others",
        lambda path: closed if path in (ROOT, tmp_path / "place") else None,
    )
    with pytest.raises(ServerError, match="closed to them"):
        install.install(place(tmp_path), me(), tmp_path)


def test_set_up_leaves_the_configuration_of_somebody_else(tmp_path, as_root, monkeypatch):
    monkeypatch.setattr(install, "ETC", tmp_path)
    (tmp_path / "jupyterhub").mkdir()
    (tmp_path / "jupyterhub" / "jupyterhub_config.py").write_text("c = get_config()\n")
    with pytest.raises(ServerError, match="somebody else's"):
        install.install(place(tmp_path), me(), tmp_path)
    assert os.listdir(tmp_path) == ["jupyterhub"]


def known(monkeypatch, tmp_path, **ids):
    """Have these users, all with the home ``tmp_path``, and record what is run."""
    ran = []

    def find(name):
        return pwd.struct_passwd((name, "x", ids[name], 0, "", str(tmp_path), "/bin/sh"))

    monkeypatch.setattr(install.pwd, "getpwnam", find)
    monkeypatch.setattr(install.grp, "getgrnam", lambda name: None)
    monkeypatch.setattr(install, "_exists", lambda name: name in ids)
    monkeypatch.setattr(install, "_run", lambda *command, **_: ran.append(command[0]))
    return ran


@pytest.mark.parametrize(
    "number", [8, os.getuid() + 5000], ids=["of the system", "whose home is another's"]
)
def test_nobody_of_the_system_becomes_a_student(tmp_path, as_root, monkeypatch, number):
    """Closing the home of daemon, /usr/sbin, would close it for all."""
    ran = known(monkeypatch, tmp_path, mail=number)
    before = tmp_path.stat().st_mode
    with pytest.raises(ServerError, match="'mail' is a user of the system and no person"):
        install.add(["ada", "mail"])
    assert (ran, tmp_path.stat().st_mode) == ([], before)


def test_no_password_is_lost_where_a_later_name_is_refused(tmp_path, as_root, monkeypatch, capsys):
    ids = {}
    known(monkeypatch, tmp_path, **ids)
    monkeypatch.setattr(install.pwd, "getpwnam", lambda name: pwd.getpwuid(os.getuid()))
    monkeypatch.setattr(install.Path, "chmod", lambda *_: None)

    def run(*command, **_):
        if command[-1] == "B ob":
            raise ServerError("useradd failed: invalid user name")

    monkeypatch.setattr(install, "_run", run)
    assert main(["add", "ada", "B ob", "cleo"]) == 1
    said = capsys.readouterr()
    assert re.fullmatch(r"ada,(?:[0-9a-f]{4}-){3}[0-9a-f]{4}\n", said.out)
    assert "invalid user name" in said.err


def test_the_first_closed_folder_on_the_way_is_named(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    inner.chmod(0o755)
    (tmp_path / "a").chmod(0o750)
    found = install.shut_from_others(inner)
    assert found is not None
    assert (tmp_path / "a").is_relative_to(found)
    assert install.shut_from_others(Path("/usr/bin")) is None


def test_settings_of_jupyterlab_that_are_there_stay(tmp_path):
    (tmp_path / "page_config.json").write_text('{"theme": "dark", "disabledExtensions": ["other"]}')
    made = json.loads(install._page_config(tmp_path))
    assert made["theme"] == "dark"
    assert made["disabledExtensions"] == {"other": True} | dict.fromkeys(
        install.NOT_FOR_STUDENTS, True
    )


def test_a_submission_is_a_students_by_the_owner_of_its_folder(tmp_path):
    own = os.lstat(tmp_path)
    assert exchange._not_theirs(own, me()) == ""
    assert "belongs to" in exchange._not_theirs(own, "bob")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert exchange._not_theirs(os.lstat(link), me()) == "it is no folder"


@pytest.mark.timeout(20)
def test_only_plain_files_of_the_owner_are_read(tmp_path):
    (tmp_path / "plain").write_text("12345")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    os.mkfifo(tmp_path / "pipe")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert exchange._read(folder, "plain", os.getuid(), 3) == b"123"
        with pytest.raises(OSError, match="symbolic links"):
            exchange._read(folder, "link", os.getuid(), 3)
        with pytest.raises(exchange.Refused, match="no plain file"):
            exchange._read(folder, "pipe", os.getuid(), 3)
        with pytest.raises(exchange.Refused, match="another user"):
            exchange._read(folder, "plain", os.getuid() + 1, 3)
    finally:
        os.close(folder)


def test_the_formgrader_of_a_lecturers_own_machine_is_as_guarded_as_the_servers():
    _, guards = (
        (FILES / "nbgrader_config.py").read_text().split("\n# A student's code runs in the sandbox")
    )
    assert guards.count("\nc.") == 2
    assert guards.strip() in handout._CONFIG
