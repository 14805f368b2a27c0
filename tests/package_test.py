"""The Debian package of `make package`: what is in it, and that it works on a system that has nothing else.

`--package FILE` names the package; without it the tests are skipped. The system is a minimal Debian of the same release,
which mmdebstrap downloads and makes in a minute, as root or in a user namespace.
"""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Runs inside the clean system.
SESSION = """
set -eu
cd "$(mktemp -d)"
tamis --version
test -f /usr/share/man/man1/tamis-train.1.gz -o -f /usr/share/man/man1/tamis-train.1
tamis train /usr/share/tamis/recipes/demo.toml --set run.dir=run --set train.steps=4 --set train.save_every=4 \\
  --set train.validate_every=4 --threads 1
tamis generate run --prompt 'A=' --max-new-tokens 4
tamis eval abc_digits run --lengths 256 --instances 5
tamis repro --list > studies
grep -c . studies
rm -r run studies
apt-get remove -y -qq tamis
test ! -e /usr/lib/tamis -a ! -e /usr/share/tamis
echo finished
"""


@pytest.fixture(scope="module")
def package(pytestconfig) -> pathlib.Path:
    file = pytestconfig.getoption("package")
    if file is None:
        pytest.skip("needs a package; `make package` runs it")
    return file.resolve()


def run(*command, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1200, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def test_it_knows_nothing_of_the_machine_that_built_it(package, tmp_path):
    run("dpkg-deb", "-x", package, tmp_path)
    libraries = [path for path in (tmp_path / "usr/lib/tamis").iterdir() if "tamis" in path.name]
    assert libraries
    for file in [tmp_path / "usr/bin/tamis", *libraries]:
        paths = re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", run("readelf", "-d", file))
        assert paths and all(path.startswith("$ORIGIN") for path in paths[0].split(":")), (file, paths)
        content = file.read_bytes()
        for path in (ROOT, pathlib.Path.home() / ".cargo"):
            assert str(path).encode() not in content, f"{file.name} holds {path}"


def test_it_works_on_a_clean_system(package, tmp_path):
    release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    session = tmp_path / "session.sh"
    session.write_text(SESSION)
    printed = run(
        "mmdebstrap", "--quiet", "--variant=apt", *(["--components=main,universe"] if release["ID"] == "ubuntu" else []),
        f"--customize-hook=copy-in {package} {session} /tmp",
        f'--customize-hook=chroot "$1" apt-get install -y -qq --no-install-recommends /tmp/{package.name} >&2',
        '--customize-hook=cd "$1" && chroot . sh /tmp/session.sh',
        release["VERSION_CODENAME"], "/dev/null",
    )  # fmt: skip
    assert printed.rstrip().endswith("finished"), printed
