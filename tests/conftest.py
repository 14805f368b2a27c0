"""Options and fixtures of the Python tests: the program under test, directories, trained runs, a page in a browser."""

import os
import pathlib

import pytest
from fork_server import ForkServers
from pages import Page, chromium_path
from program import INSTRUCTION_SETS, Program
from trained_runs import train_digits, train_letters

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77  # the exit code that ctest takes for a skipped test


def pytest_addoption(parser):
    parser.addoption(
        "--program", type=pathlib.Path, default=ROOT / "build/release/tamis", help="tamis; default: build/release/tamis"
    )
    parser.addoption("--no-forks", action="store_true", help="load the program anew for every run of it")
    parser.addoption("--consumer", action="store_true", help="also build a program against an installation")
    parser.addoption("--package", type=pathlib.Path, help="the Debian package to try")
    parser.addoption("--wheel", type=pathlib.Path, help="the wheel of the Python package to try")
    parser.addoption("--ctest", action="store_true", help=f"exit with {SKIPPED} when every test is skipped")


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("ctest") and exitstatus == pytest.ExitCode.OK and not reporter.stats.get("passed"):
        session.exitstatus = SKIPPED


@pytest.fixture(scope="session")
def program(pytestconfig):
    path = pytestconfig.getoption("program").resolve()
    if not path.is_file():
        pytest.exit(f"{path} is missing; build it with `make build`, or name it with --program", 2)
    library = path.parent / "libtamis_fork_server.so"
    if not library.exists() or pytestconfig.getoption("no_forks"):
        yield path
        return
    Program.forks = ForkServers(path, library, INSTRUCTION_SETS)
    yield path
    Program.forks.close()


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory) -> Program:
    """The program, in a directory that the tests of a file share."""
    return Program(program, tmp_path_factory.mktemp("tamis"))


@pytest.fixture
def run(tmp_path) -> pathlib.Path:
    """Where a test can put a run; nothing is there yet."""
    return tmp_path / "run"


@pytest.fixture(scope="module")
def digits(tamis) -> pathlib.Path:
    return train_digits(tamis)


@pytest.fixture(scope="module")
def letters(tamis) -> pathlib.Path:
    return train_letters(tamis)


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed (scripts/setup.sh test)"
    )
    path = chromium_path()
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium) -> Page:
    """A page with a profile of its own."""
    context = chromium.new_context()
    yield Page(context.new_page())
    context.close()
