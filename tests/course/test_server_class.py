"""A class on one server, from the login to the page that comes back: JupyterHub, local users,
nbgrader's exchange.

Ada solves an exercise in a browser, Bob hands in what he was given, Eve hands in as Bob and with
links to the answer key; Grace, whose files nobody else may read, collects, grades and returns. The
users are real ones, in a world of their own (server_world.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.course import server_world
from tests.course.server_world import CLONE, LECTURER, World
from tools.authoring.course import HERE
from tools.exercises import sheets
from tools.server.install import COURSE_ID, PROXY, ROOT

SHEET = sheets.load(HERE, ["00"])[0]
ASSIGNMENT = SHEET.lesson.name
SOLVED = min(SHEET.exercises, key=lambda name: len(SHEET.cell("answer", name).source))
POINTS = SHEET.cell("checks", SOLVED).metadata["points"]
STUDENTS = ("ada", "bob", "eve")
WAIT_MS = 600_000
_LISTENS = "0A"  # a state in /proc/net/tcp
INBOUND = f"/srv/nbgrader/exchange/{COURSE_ID}/inbound"
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false"},
}

pytestmark = [pytest.mark.ci, pytest.mark.slow, pytest.mark.timeout(2400)]


@dataclass(frozen=True)
class Server:
    """The world of a class that is set up, with the students' passwords as `tools.server add`
    printed them.
    """

    world: World
    passwords: dict[str, str]
    before: tuple[object, ...]

    def shell(self, lines: str, user: str) -> str:
        return self.world.done("bash", "-ec", f"{_ENVIRONMENT}\n{lines}", user=user)

    def refused(self, lines: str, user: str) -> str:
        """Return what a command said that must not succeed."""
        ran = self.world.run("bash", "-ec", lines, user=user)
        assert ran.returncode != 0, ran.stdout
        return ran.stderr


_ENVIRONMENT = (
    f"export PATH={shlex.quote(sys.prefix)}/bin:$PATH PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1"
)


@pytest.fixture(scope="module")
def server():
    """A server that was set up by the commands of instructor.md, with an assignment handed out."""
    why = server_world.refusal()
    if why:
        pytest.skip(why)
    if not Path(sys.prefix, PROXY).exists():
        pytest.skip("the proxy of the hub is not installed; run `make .venv/server.stamp`")
    before = _users_and_folders()
    with server_world.world(ROOT) as world:
        made = Server(world, {}, before)
        # `make student`, without running every notebook again
        made.shell(
            f"""cd {CLONE} && python - <<'END'
from pathlib import Path
from tools.exercises import handout
from tools.authoring.course import HERE
handout.fill(HERE, Path.home() / "student")
handout.nbgrader_folder(HERE, Path.home() / "class", ["{SHEET.lesson.number}"])
END
cd ~/class && nbgrader generate_assignment {ASSIGNMENT}""",
            LECTURER,
        )
        made.shell(
            f"""cd {CLONE} && python -m tools.server install --lecturer {LECTURER} \\
            --tree ~{LECTURER}/student --environment {shlex.quote(sys.prefix)}""",
            "root",
        )
        printed = made.shell(
            f"cd {CLONE} && python -m tools.server add {' '.join(STUDENTS)}", "root"
        )
        made.passwords.update(line.split(",") for line in printed.splitlines())
        made.shell(f"cd ~/class && nbgrader release_assignment {ASSIGNMENT}", LECTURER)
        for student in ("ada", "bob"):
            made.shell(
                "\n".join(_setting(name, content) for name, content in SETTINGS.items()), student
            )
        yield made


def _users_and_folders() -> tuple[object, ...]:
    """Return what this machine, outside of the world, has of users, their homes, and the folders of
    a class.
    """
    users = tuple(Path("/etc", name).read_bytes() for name in ("passwd", "group"))
    folders = ("/home", "/srv", "/etc/jupyter", "/etc/jupyterhub")
    return *users, *(sorted(os.listdir(one)) if Path(one).is_dir() else None for one in folders)


def _setting(name: str, content: dict[str, str]) -> str:
    path = f"$HOME/.jupyter/lab/user-settings/{name}"
    return f"mkdir -p $(dirname {path}) && echo '{json.dumps(content)}' > {path}"


@pytest.fixture(scope="module")
def hub(server, tmp_path_factory):
    """The address of the running JupyterHub; the configuration is the installed one, but for the
    ports and waits.
    """
    log = tmp_path_factory.mktemp("hub") / "log"
    ports = _free_ports(3)
    address = f"http://127.0.0.1:{ports[0]}"
    command = f"""{_ENVIRONMENT}
        cd /srv/course/state && exec jupyterhub --config /etc/jupyterhub/jupyterhub_config.py \\
        --JupyterHub.bind_url={address} --JupyterHub.hub_port={ports[1]} \\
        --ConfigurableHTTPProxy.api_url=http://127.0.0.1:{ports[2]} \
        --Spawner.start_timeout={WAIT_MS // 1000} --Spawner.http_timeout={WAIT_MS // 1000}"""
    with log.open("w") as said:
        process = subprocess.Popen(
            server.world.command("bash", "-c", command), stdout=said, stderr=said
        )
        try:
            deadline = time.monotonic() + WAIT_MS / 1000
            while not _answers(f"{address}/hub/login"):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"the hub did not start:\n{log.read_text()[-4000:]}")
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait(120)


def _free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens, and which the system gives to nobody who asks for
    any.
    """
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    others = [port for port in range(10_000, 65_536) if not lowest <= port <= highest]
    found: list[int] = []
    for port in random.sample(others, len(others)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(
        f"of {len(others)} ports outside {lowest} to {highest} fewer than {count} are free"
    )


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def _log_in(chromium, hub: str, user: str, password: str):
    page = chromium.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{hub}/hub/login")
    page.fill("#username_input", user)
    page.fill("#password_input", password)
    with page.expect_response(lambda response: response.request.method == "POST") as answer:
        page.click("#login_submit")
    return page, answer.value.status


@pytest.fixture(scope="module")
def pages(server, hub, chromium):
    """Ada and Bob, each logged in with their own password, their JupyterLab open, the assignment
    fetched.
    """
    opened = {
        user: _log_in(chromium, hub, user, server.passwords[user])[0] for user in ("ada", "bob")
    }
    for user, page in opened.items():
        page.wait_for_url(f"**/user/{user}/lab*")
        _assignments(page)
        page.get_by_role("button", name="Fetch", exact=True).click()
        page.get_by_role("button", name="Submit", exact=True).wait_for()
    yield opened
    for page in opened.values():
        page.context.close()


def _assignments(page) -> None:
    page.get_by_role("menuitem", name="Nbgrader").click()
    page.get_by_role("menuitem", name="Assignment List").click()


def _hand_in(page) -> None:
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("button", name="Fetch Feedback").wait_for()


@pytest.fixture(scope="module")
def handed_in(server, hub, pages):
    """Ada writes an answer, runs the notebook and hands in; Bob hands in what he fetched.

    What Ada read is returned.
    """
    ada = pages["ada"]
    ada.goto(f"{hub}/user/ada/lab/tree/{ASSIGNMENT}/{SHEET.lesson.notebook_name}")
    answer = ada.locator(".jp-CodeCell", has_text=f"def {SOLVED}(").locator(".cm-content").first
    answer.click()
    ada.keyboard.press("Control+A")
    ada.keyboard.insert_text(SHEET.cell("answer", SOLVED).source)
    ada.get_by_role("menuitem", name="Run", exact=True).click()
    ada.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    passed = ada.locator(".jp-OutputArea-output", has_text="public checks passed").first
    passed.wait_for(state="attached")
    with ada.expect_response(
        lambda response: response.request.method == "PUT" and "/api/contents/" in response.url
    ):
        ada.keyboard.press("Control+S")
    _assignments(ada)
    for page in pages.values():
        _hand_in(page)
    return passed.inner_text()


@pytest.fixture(scope="module")
def attacked(server, handed_in):
    """Eve hands in as Bob, later than Bob himself, and as herself a link to the answer key."""
    server.shell(
        f"""cd {INBOUND}
        forged="bob+{ASSIGNMENT}+2099-01-01 00:00:00.000000 UTC+AAAAAAAAAAAA"
        mkdir "$forged" && echo forged > "$forged/{SHEET.lesson.notebook_name}"
        linked="eve+{ASSIGNMENT}+2026-01-01 00:00:00.000000 UTC+BBBBBBBBBBBB"
        mkdir "$linked" && cd "$linked"
        ln -s /home/{LECTURER}/class/source/{ASSIGNMENT}/{SHEET.lesson.notebook_name} {SHEET.lesson.notebook_name}""",  # noqa: E501
        "eve",
    )


@pytest.fixture(scope="module")
def naive(server, attacked):
    """What nbgrader's own collection takes from these submissions: the wrong version, to see that
    the attacks work.
    """
    folder = "/home/grace/class/naive"
    said = server.shell(
        f"""cd ~/class && nbgrader collect {ASSIGNMENT} --CourseDirectory.submitted_directory=naive \\
        --ExchangeFactory.collect=nbgrader.exchange.default.ExchangeCollect""",  # noqa: E501
        LECTURER,
    )
    return functools.partial(_submission, server, folder), said


@pytest.fixture(scope="module")
def collected(server, naive):
    """What Grace collects with the installed configuration, when Eve has added a pipe and a name
    without a date.
    """
    server.shell(
        f"""cd {INBOUND} && mkdir "eve+{ASSIGNMENT}+yesterday+CCCCCCCCCCCC"
        mkfifo "eve+{ASSIGNMENT}+2026-01-01 00:00:00.000000 UTC+BBBBBBBBBBBB/submission_secret.txt" """,  # noqa: E501
        "eve",
    )
    said = server.shell(f"cd ~/class && timeout 120 nbgrader collect {ASSIGNMENT}", LECTURER)
    return functools.partial(_submission, server, "/home/grace/class/submitted"), said


def _submission(server: Server, folder: str, student: str) -> str:
    """Return the text of what was collected of a student, "" where there is no notebook."""
    path = f"{folder}/{student}/{ASSIGNMENT}/{SHEET.lesson.notebook_name}"
    return server.shell(f"if [ -e {path} ]; then cat {path}; fi", LECTURER)


@pytest.fixture(scope="module")
def graded(server, collected):
    """The table of grades, by student, after what `make grade` runs and the return of the pages."""
    server.shell(f"cd {CLONE} && python -m tools.grading ~/class/submitted", LECTURER)
    server.shell(f"cd ~/class && nbgrader release_feedback {ASSIGNMENT}", LECTURER)
    lines = server.shell("cat ~/class/grades.csv", LECTURER).splitlines()
    columns = lines[0].split(",")
    rows = [dict(zip(columns, line.split(","), strict=False)) for line in lines[1:]]
    return {row["student"]: row for row in rows}


def test_a_wrong_password_is_refused(server, hub, chromium):
    page, status = _log_in(chromium, hub, "ada", server.passwords["bob"])
    assert status == 403
    page.get_by_text("Invalid username or password").wait_for()
    assert page.goto(f"{hub}/user/ada/lab").url.startswith(f"{hub}/hub/login")
    page.context.close()


def test_a_local_user_who_is_not_in_the_class_is_refused(server, hub, chromium):
    server.shell("useradd trent && echo trent:known-to-trent | chpasswd", "root")
    page, status = _log_in(chromium, hub, "trent", "known-to-trent")
    assert status == 403
    assert page.goto(f"{hub}/user/trent/lab").url.startswith(f"{hub}/hub/login")
    page.context.close()


def test_every_student_has_a_password_of_their_own_and_a_closed_home(server):
    assert len(set(server.passwords.values())) == len(STUDENTS)
    assert all(
        re.fullmatch(r"(?:[0-9a-f]{4}-){3}[0-9a-f]{4}", one) for one in server.passwords.values()
    )
    assert set(server.shell("stat -c %a /home/*", "root").split()) == {"700"}


def test_a_student_cannot_open_the_server_of_another(pages, hub):
    answer = pages["ada"].context.new_page().goto(f"{hub}/user/bob/lab")
    assert answer.status in (403, 404)


def test_a_token_opens_what_is_its_owners_and_nothing_else(pages, hub):
    page = pages["ada"].context.new_page()
    # until its script has come, the button loads the page anew
    page.goto(f"{hub}/hub/token", wait_until="networkidle")
    page.get_by_role("button", name="Request new API token").click()
    page.locator("#token-result").wait_for()
    token = page.locator("#token-result").inner_text().strip()
    page.close()
    assert _status(f"{hub}/user/ada/api/contents", token) == 200
    assert _status(f"{hub}/hub/api/users/ada", token) == 200
    assert _status(f"{hub}/user/bob/api/contents", token) == 403
    assert _status(f"{hub}/hub/api/users/bob", token) in (403, 404)
    assert _status(f"{hub}/hub/api/users", token) == 403
    assert _status(f"{hub}/user/ada/api/contents", "0" * len(token)) == 403


def _status(address: str, token: str) -> int:
    request = urllib.request.Request(address, headers={"Authorization": f"token {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    "path",
    [
        "/home/bob",
        "/home/grace/class/source",
        f"{CLONE}/course/instructor",
        "/srv/course/state",
        INBOUND,
    ],
)
def test_the_kernel_refuses_a_student_what_is_not_theirs(server, pages, path):
    assert "Permission denied" in server.refused(f"ls {path}", "ada")


def test_nobody_can_listen_to_the_kernel_of_another(server, handed_in):
    """Through a port anybody on the machine hears what a kernel runs and prints; Ada's kernel has
    files in her home.
    """
    number = server.shell("id -u ada", "root").strip()
    sockets = [line.split() for line in server.shell("cat /proc/net/tcp", "root").splitlines()[1:]]
    listening = [one for one in sockets if one[3] == _LISTENS and one[7] == number]
    # her server asks for her token; the kernel's takes what its own processes print
    assert len(listening) <= 2
    assert '"transport": "ipc"' in server.shell("cat ~/.jupyter/run/kernel-*.json", "ada")
    assert "Permission denied" in server.refused("ls /home/ada/.jupyter/run", "eve")


def test_a_student_cannot_move_the_class_away_in_the_exchange(server):
    folder = f"/srv/nbgrader/exchange/{COURSE_ID}"
    assert "not permitted" in server.refused(f"mv {folder} {folder}.mine", "eve")
    assert "Permission denied" in server.refused(
        f"touch {folder}/outbound/{ASSIGNMENT}/mine", "eve"
    )


def test_a_student_does_not_see_the_lecturers_tools(pages):
    page = pages["bob"]
    page.get_by_role("menuitem", name="Nbgrader").click()
    assert page.get_by_role("menuitem", name="Assignment List").is_visible()
    assert not page.get_by_role("menuitem", name="Formgrader").is_visible()
    page.keyboard.press("Escape")


def test_the_lecturer_has_the_class_in_the_formgrader(server, graded, hub, chromium):
    server.world.done("bash", "-c", f"echo {LECTURER}:known-to-{LECTURER} | chpasswd")
    page, _ = _log_in(chromium, hub, LECTURER, f"known-to-{LECTURER}")
    page.wait_for_url(f"**/user/{LECTURER}/lab*")
    page.get_by_role("menuitem", name="Nbgrader").click()
    page.get_by_role("menuitem", name="Formgrader", exact=True).wait_for()
    page.goto(f"{hub}/user/{LECTURER}/formgrader/gradebook/{ASSIGNMENT}")
    page.get_by_text(SHEET.lesson.name).first.wait_for()
    page.context.close()


def test_the_lessons_lie_in_the_students_home(server, pages):
    assert "00_start_here.ipynb" in server.shell("ls ~/course", "bob")
    assert server.shell("find /srv/course/tree -path '*instructor*'", "root") == ""


def test_the_checks_run_in_the_students_own_server(handed_in):
    assert "public checks passed, hidden not run" in handed_in


def test_nbgraders_own_collection_takes_a_forgery_and_hands_out_the_key(naive):
    submission, _ = naive
    assert submission("bob") == "forged\n"
    assert "### BEGIN SOLUTION" in submission("eve")


def test_what_is_collected_is_each_students_own(collected):
    submission, said = collected
    assert SHEET.cell("answer", SOLVED).source.splitlines()[-2].strip() in submission("ada")
    assert sheets.STUB in submission("bob")
    assert submission("eve") == ""
    assert "is in the name of bob and belongs to eve" in said
    assert "its name is none that nbgrader gives" in said


def test_the_grades_are_what_was_handed_in(graded):
    assert float(graded["ada"]["score"]) == POINTS
    assert float(graded["bob"]["score"]) == 0
    assert "eve" not in graded


def test_each_student_fetches_their_own_page(server, graded, pages):
    for user, page in pages.items():
        page.get_by_role("button", name="Fetch Feedback").click()
        page.get_by_text("view feedback").first.wait_for()
        text = server.shell(f"cat ~/{ASSIGNMENT}/feedback/*/{ASSIGNMENT}.html", user)
        assert (f"{POINTS} of {POINTS} points" in text) == (user == "ada")
        assert "### BEGIN HIDDEN TESTS" not in text


def test_the_page_is_read_in_the_browser(server, graded, pages, hub):
    [stamp] = server.shell(f"ls ~/{ASSIGNMENT}/feedback", "ada").splitlines()
    page = pages["ada"].context.new_page()
    page.goto(f"{hub}/user/ada/files/{ASSIGNMENT}/feedback/{stamp}/{ASSIGNMENT}.html")
    page.get_by_text(f"{POINTS} of {POINTS} points").first.wait_for()
    page.close()


def test_the_pages_in_the_exchange_cannot_be_listed(server, graded):
    assert "Permission denied" in server.refused(f"ls {INBOUND}/../feedback", "eve")


def test_the_formgraders_autograde_runs_no_students_code(server, graded):
    autograde = (
        "nbgrader autograde --force --student ada --CourseDirectory.autograded_directory=rerun "
        f"{ASSIGNMENT}"
    )
    said = server.refused(f"{_ENVIRONMENT}\ncd ~/class && {autograde}", LECTURER)
    assert "run `make grade`" in said


def test_the_formgraders_feedback_shows_no_hidden_test(server, graded):
    feedback = (
        "nbgrader generate_feedback --student ada --CourseDirectory.feedback_directory=pages "
        f"{ASSIGNMENT}"
    )
    server.shell(f"cd ~/class && {feedback}", LECTURER)
    page = server.shell(f"cat ~/class/pages/ada/{ASSIGNMENT}/{ASSIGNMENT}.html", LECTURER)
    assert f"{POINTS} of {POINTS} points" in page
    assert "### BEGIN HIDDEN TESTS" in server.shell(
        f"cat ~/class/autograded/ada/{ASSIGNMENT}/*.ipynb", LECTURER
    )
    assert "### BEGIN HIDDEN TESTS" not in page


def test_nothing_of_it_reaches_this_machine(server):
    assert _users_and_folders() == server.before
