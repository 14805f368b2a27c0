"""The Debian package and the wheel of `make package`: what is in the package, and that both work on a system that has
nothing else; for the wheel nothing but Python and the packages that it requires.

`--package FILE` and `--wheel FILE` name them; without them the tests are skipped. The system is a minimal Debian of the
same release, which mmdebstrap downloads and makes in a minute, as root or in a user namespace.
"""

import os
import pathlib
import re
import subprocess
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# These run inside the clean system.
PROGRAM_SESSION = """
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
PYTHON_SESSION = """
set -eu
python3 -m venv /opt/tamis
echo /opt/packages > "$(ls -d /opt/tamis/lib/python3*/site-packages)/others.pth"
/opt/tamis/bin/pip install --quiet --no-index --no-deps --disable-pip-version-check /tmp/*.whl
cd "$(mktemp -d)"
/opt/tamis/bin/python - <<'EOF'
import torch, tamis
assert tamis.__file__.startswith("/opt/tamis/"), tamis.__file__
q, k = torch.randn(2, 1, 40, 4, 16, requires_grad=True).unbind()
u = tamis.screening(q, k, torch.randn(1, 40, 4, 8), torch.full((4,), 3.0), torch.zeros(4))
u.sum().backward()
model = tamis.load("/opt/checkpoint")
tokens = torch.arange(9)[None] % model.config.vocab_size
model.save("copy")
assert torch.equal(tamis.load("copy")(tokens), model(tokens))
assert model.generate(tokens, 3).shape == (1, 3)
EOF
/opt/tamis/bin/pip uninstall --quiet --yes tamis
test ! -e "$(echo /opt/tamis/lib/python3*/site-packages/tamis)"
echo finished
"""


def named_file(pytestconfig, option: str) -> pathlib.Path:
    file = pytestconfig.getoption(option)
    if file is None:
        pytest.skip(f"needs a {option}; `make package` runs it")
    return file.resolve()


@pytest.fixture(scope="module")
def package(pytestconfig) -> pathlib.Path:
    return named_file(pytestconfig, "package")


@pytest.fixture(scope="module")
def wheel(pytestconfig) -> pathlib.Path:
    return named_file(pytestconfig, "wheel")


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


def run_on_clean_system(directory: pathlib.Path, session: str, installs: list[str], hooks: list[str]) -> None:
    """Runs the session on a new Debian with the packages `installs`, after the customize-hooks of mmdebstrap."""
    probe = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "true"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("mmdebstrap needs to mount file systems, which this machine does not let it")
    release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    script = directory / "session.sh"
    script.write_text(session)
    printed = directory / "printed"  # some versions of mmdebstrap send what a hook prints to the standard error
    run(
        "mmdebstrap", "--quiet", "--variant=apt", *(["--components=main,universe"] if release["ID"] == "ubuntu" else []),
        *(f"--include={name}" for name in installs), *(f"--customize-hook={hook}" for hook in hooks),
        f"--customize-hook=copy-in {script} /tmp",
        f'--customize-hook=cd "$1" && chroot . sh /tmp/session.sh > {printed}',
        release["VERSION_CODENAME"], "/dev/null",
    )  # fmt: skip
    assert printed.read_text().rstrip().endswith("finished"), printed.read_text()


def test_it_works_on_a_clean_system(package, tmp_path):
    install = f'chroot "$1" apt-get install -y -qq --no-install-recommends /tmp/{package.name} >&2'
    run_on_clean_system(tmp_path, PROGRAM_SESSION, [], [f"copy-in {package} /tmp", install])


def test_the_wheel_works_on_a_clean_system(wheel, tmp_path):
    """torch and the rest of what it requires are those of the calling Python: 5 GB, which are linked where possible."""
    others = sysconfig.get_path("purelib")
    link = f'cp -a --link {others} "$1/opt/packages" 2>/dev/null || {{ rm -rf "$1/opt/packages"; cp -a {others} "$1/opt/packages"; }}'
    copy = f'cp -r {ROOT / "tests/data/version-0.1/swax"} "$1/opt/checkpoint"'
    run_on_clean_system(tmp_path, PYTHON_SESSION, ["python3-venv"], [f"copy-in {wheel} /tmp", link, copy])
