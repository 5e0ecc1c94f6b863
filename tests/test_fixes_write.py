"""Writing files whole or not at all, and patches that git takes."""
from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from torchlint.files import Source, decode
from torchlint.fixes import write
from torchlint.fixes.patch import diff, patch, patches, quoted
from torchlint.fixes.write import Change, Failure, write_file, write_files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def files(tmp_path):
    """Three files, and changes of all of them."""
    paths = [tmp_path / f"{name}.py" for name in "abc"]
    for path in paths:
        path.write_bytes(b"old\r\n")
    return paths, [Change(str(path), b"old\r\n", b"new\r\n") for path in paths]


def test_bytes_are_written_as_they_are(files):
    paths, changes = files
    assert write_files(changes) == []
    assert [path.read_bytes() for path in paths] == [b"new\r\n"] * 3
    assert names(paths[0].parent) == ["a.py", "b.py", "c.py"]


def test_permissions_are_kept(files):
    paths, _ = files
    paths[0].chmod(0o751)
    assert write_file(str(paths[0]), b"old\r\n", b"new") is None
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o751


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_is_kept(files):
    paths, changes = files
    os.chown(paths[0], 1234, 4321)
    assert write_files(changes[:1]) == []
    assert (paths[0].stat().st_uid, paths[0].stat().st_gid) == (1234, 4321)


def test_a_file_whose_owner_a_new_one_cannot_have_is_written_to(files, monkeypatch):
    paths, changes = files

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    real = os.stat

    def other_owner(path, **kwargs):
        found = real(path, **kwargs)
        return os.stat_result([*found[:4], 4242, *found[5:]]) if str(path).endswith("a.py") else found

    monkeypatch.setattr(os, "stat", other_owner)
    inodes = [path.stat().st_ino for path in paths]
    assert write_files(changes) == []
    monkeypatch.undo()
    assert [path.read_bytes() for path in paths] == [b"new\r\n"] * 3
    assert [path.stat().st_ino == inode for path, inode in zip(paths, inodes, strict=True)] == [True, False, False]
    assert names(paths[0].parent) == ["a.py", "b.py", "c.py"]


def test_links_stay_links(files):
    paths, _ = files
    link = paths[0].parent / "link.py"
    link.symlink_to("a.py")
    assert write_file(str(link), b"old\r\n", b"new") is None
    assert link.is_symlink() and paths[0].read_bytes() == b"new"


def test_a_file_that_has_changed_is_left_alone(files):
    paths, changes = files
    paths[1].write_bytes(b"edited")
    failures = write_files(changes)
    assert [str(failure) for failure in failures] == [
        f"{paths[1]}: not written: it has changed since it was read"
    ]
    assert [path.read_bytes() for path in paths] == [b"new\r\n", b"edited", b"new\r\n"]


def test_missing_files_and_directories_are_failures(tmp_path):
    (tmp_path / "dir.py").mkdir()
    failures = write_files([Change(str(tmp_path / name), b"", b"x") for name in ("dir.py", "none.py")])
    assert [failure.why for failure in failures] == ["not a regular file", "No such file or directory"]


def test_a_file_that_may_not_be_written_is_a_failure(files, monkeypatch):
    paths, changes = files
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("b.py"))
    assert write_files(changes) == [Failure(str(paths[1]), "permission denied")]


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_rename_takes_the_others_back(files, monkeypatch, call, error):
    paths, changes = files
    calls = []
    real = os.replace

    def replace(old, new):
        calls.append(new)
        if len(calls) == call:
            raise error
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    inodes = [path.stat().st_ino for path in paths]
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            write_files(changes)
    else:
        assert [failure.why for failure in write_files(changes)] == ["No space left on device"] * 3
    assert len(calls) == call
    assert [path.read_bytes() for path in paths] == [b"old\r\n"] * 3
    assert [path.stat().st_ino for path in paths] == inodes
    assert names(paths[0].parent) == ["a.py", "b.py", "c.py"]


def test_without_hard_links_the_old_bytes_come_back(files, monkeypatch):
    paths, changes = files
    real, calls = os.replace, []

    def replace(old, new):
        calls.append(new)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        real(old, new)

    def no_links(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "link", no_links)
    assert len(write_files(changes)) == 3
    assert [path.read_bytes() for path in paths] == [b"old\r\n"] * 3
    assert names(paths[0].parent) == ["a.py", "b.py", "c.py"]


def test_an_interrupt_while_new_files_are_prepared_leaves_all_old(files, monkeypatch):
    paths, changes = files
    calls = []

    def fsync(handle):
        calls.append(handle)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        write_files(changes)
    assert [path.read_bytes() for path in paths] == [b"old\r\n"] * 3
    assert names(paths[0].parent) == ["a.py", "b.py", "c.py"]


def test_a_file_that_changes_at_the_last_moment_stops_all(files, monkeypatch):
    paths, changes = files
    real = os.link

    def link(old, new):
        real(old, new)
        if str(old).endswith("c.py"):
            paths[1].write_bytes(b"edited")

    monkeypatch.setattr(os, "link", link)
    failures = write_files(changes)
    assert {failure.why for failure in failures} == {f"{paths[1]} has changed since it was read"}
    assert [path.read_bytes() for path in paths] == [b"old\r\n", b"edited", b"old\r\n"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_waits_for_the_renames(files, monkeypatch):
    paths, changes = files
    real = os.replace

    def replace(old, new):
        real(old, new)
        if str(new).endswith("a.py"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_files(changes)
    assert [path.read_bytes() for path in paths] == [b"new\r\n"] * 3


KILLED = """\
import os, signal, sys

name, number, paths = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
real, calls = getattr(os, name), []


def call(*args, **more):
    calls.append(args)
    if len(calls) == 2:
        os.kill(os.getpid(), number)
    return real(*args, **more)


setattr(os, name, call)
from torchlint.fixes.write import Change, write_files

write_files([Change(path, b"old\\r\\n", b"new\\r\\n") for path in paths])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("name", "number", "data"), [
    ("replace", signal.SIGTERM, b"new\r\n"),
    ("replace", getattr(signal, "SIGHUP", 0), b"new\r\n"),
    ("unlink", signal.SIGINT, b"new\r\n"),  # while the second names of the old files are removed
    ("unlink", signal.SIGTERM, b"new\r\n"),
    ("fsync", signal.SIGTERM, b"old\r\n"),  # before the first rename: nothing has happened yet
])
def test_a_signal_that_ends_the_program_leaves_whole_files_and_no_others(files, name, number, data):
    paths, _ = files
    command = [sys.executable, "-c", KILLED, name, str(int(number)), *map(str, paths)]
    ended = subprocess.run(command, capture_output=True, timeout=60)
    assert ended.returncode == -number or (number == signal.SIGINT and b"KeyboardInterrupt" in ended.stderr)
    assert [path.read_bytes() for path in paths] == [data] * 3
    assert names(paths[0].parent) == ["a.py", "b.py", "c.py"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_leaves_no_scratch_file_of_a_report(tmp_path):
    program = (
        "import os, signal, sys\nfrom torchlint import atomic\nreal = os.replace\n"
        "os.replace = lambda *args: (os.kill(os.getpid(), signal.SIGTERM), real(*args))\n"
        "atomic.write(sys.argv[1], b'new')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "report.txt")], timeout=60, check=False)
    assert ended.returncode == -signal.SIGTERM
    assert names(tmp_path) == ["report.txt"] and (tmp_path / "report.txt").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of POSIX")
def test_a_signal_that_is_ignored_stays_ignored(files, monkeypatch):
    paths, changes = files
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (signal.raise_signal(signal.SIGHUP), real(handle))[1])
    try:
        assert write_files(changes) == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert [path.read_bytes() for path in paths] == [b"new\r\n"] * 3


def test_other_threads_can_write(files):
    paths, changes = files
    found = []
    thread = threading.Thread(target=lambda: found.append(write_files(changes)))
    thread.start()
    thread.join(20)
    assert found == [[]] and paths[2].read_bytes() == b"new\r\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_process_leaves_old_or_new(tmp_path):
    path = tmp_path / "a.py"
    old, new = b"o" * 2_000_000, b"n" * 2_000_000
    path.write_bytes(old)
    program = (
        "import sys\nfrom torchlint.fixes.write import write_file\n"
        "old, new = b'o' * 2_000_000, b'n' * 2_000_000\nprint('ready', flush=True)\n"
        "while True:\n    write_file(sys.argv[1], old, new)\n    old, new = new, old\n"
    )
    for _ in range(3):
        start = path.read_bytes()
        text = program if start == old else program.replace("old, new = b'o'", "new, old = b'o'")
        child = subprocess.Popen([sys.executable, "-c", text, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        time.sleep(0.05)
        child.kill()
        child.wait()
        child.stdout.close()
        assert path.read_bytes() in (old, new)


def test_prepared_files_are_complete_before_the_first_rename(files, monkeypatch):
    paths, changes = files
    seen = []

    def replace(old, new):
        seen.append([path.read_bytes() for path in paths[0].parent.glob(".*") if ".old" not in path.name])
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(write.os, "replace", replace)
    write_files(changes)
    assert seen == [[b"new\r\n"] * 3]


# -- patches ---------------------------------------------------------------------------------


def git(folder, *args, data=None):
    return subprocess.run(
        ["git", *args], cwd=folder, input=data, capture_output=True, timeout=60,
        env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}, check=False,
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q")
    git(folder, "config", "core.autocrlf", "false")
    return folder


TEXTS = [
    (b"a\nb\nc\n", b"a\nB\nc\n"),
    (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n"),
    (b"a\nb", b"a\nB"),
    (b"a\nb", b"a\nb\nc"),
    (b"a\nb\n", b"a\nb"),
    (b"a\nb", b"a\nb\n"),
    (b"a\rb\rc", b"a\rB\rc"),
    (b"-- \n+++ \n--- \nx\n", b"+++ \n--- \ny\n"),
    (b"", b"import torch\n"),
    (b"x\n", b""),
    (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfA\nb\n"),
    (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfa\nB\n"),
    (b"# -*- coding: latin-1 -*-\nx = '\xe9'\ny = 1\n",
     b"# -*- coding: latin-1 -*-\nx = '\xe9'\ny = '\xfc'\n"),
    ("x = 'ü\u2028'\nb\n".encode(), "x = 'ü\u2028'\nc\n".encode()),
    (b"\x0c\nx\n", b"\x0c\ny\n"),
    (b"".join(b"line %d\n" % n for n in range(200)),
     b"".join(b"line %d\n" % n for n in range(200) if n % 50).replace(b"line 77\n", b"77\n")),
]


@pytest.mark.parametrize(("old", "new"), TEXTS)
def test_git_applies_the_patch(repository, old, new):
    (repository / "f.py").write_bytes(old)
    source = decode(old, "f.py")
    text = decode(new, "f.py").text
    data = patch(source, text)
    result = git(repository, "apply", "--verbose", "-", data=data)
    assert result.returncode == 0, result.stderr + data
    assert (repository / "f.py").read_bytes() == new


@pytest.mark.parametrize("name", [
    "a b.py", "tab\there.py", 'quote".py', "back\\slash.py", "ünï.py", "new\nline.py", "d e/f g.py",
    "bell\a.py", "日本.py", os.fsdecode(b"latin-\xff.py"),
])
def test_git_finds_files_with_strange_names(repository, name):
    path = repository / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"a\n")
    result = git(repository, "apply", "-", data=diff("a\n", "b\n", name).encode())
    assert result.returncode == 0, result.stderr
    assert path.read_bytes() == b"b\n"


@pytest.mark.parametrize("name", ["é.py", "日本.py", os.fsdecode(b"\xff.py")])
def test_the_name_of_a_file_is_in_the_encoding_of_the_system(repository, name):
    old = "# -*- coding: latin-1 -*-\n# é\na\n".encode("latin-1")
    (repository / name).write_bytes(old)
    source = decode(old, name)
    result = git(repository, "apply", "-", data=patch(source, source.text.replace("a\n", "b\n")))
    assert result.returncode == 0, result.stderr
    assert (repository / name).read_bytes() == "# -*- coding: latin-1 -*-\n# é\nb\n".encode("latin-1")


def test_names_are_quoted_as_git_does():
    assert quoted("a", "é.py") == '"a/\\303\\251.py"'
    assert quoted("b", "a b.py") == "b/a b.py\t"


def test_a_link_is_named_by_its_target_once(repository, monkeypatch):
    monkeypatch.chdir(repository)
    (repository / "target.py").write_bytes(b"a\n")
    (repository / "0link.py").symlink_to("target.py")
    data, base = patches([(Source(name, "a\n"), "b\n") for name in ("0link.py", "target.py")])
    assert base == "" and data.count(b"--- a/target.py\n") == 1 and b"0link" not in data
    assert git(repository, "apply", "-", data=data).returncode == 0
    assert (repository / "target.py").read_bytes() == b"b\n"


def test_files_above_are_named_from_the_root_of_the_repository(repository, monkeypatch):
    (repository / "here").mkdir()
    (repository / "pkg").mkdir()
    (repository / "pkg" / "use.py").write_bytes(b"a\n")
    monkeypatch.chdir(repository / "here")
    data, base = patches([(Source("../pkg/use.py", "a\n"), "b\n")])
    assert base == os.path.realpath(repository)
    assert git(repository, "apply", "-", data=data).returncode == 0
    assert (repository / "pkg" / "use.py").read_bytes() == b"b\n"


def test_several_files_make_one_patch(repository):
    for name in ("one.py", "two.py"):
        (repository / name).write_bytes(b"a\nlast")
    data = diff("a\nlast", "b\nlast", "one.py") + diff("a\nlast", "a\nend", "two.py")
    assert git(repository, "apply", "-", data=data.encode()).returncode == 0
    assert (repository / "one.py").read_bytes() == b"b\nlast"
    assert (repository / "two.py").read_bytes() == b"a\nend"


def test_no_change_is_no_patch():
    assert diff("a\n", "a\n", "f.py") == ""
    assert patch(Source("f.py", "a\n"), "a\n") == b""


def test_absolute_paths_are_made_relative():
    assert quoted("a", "/tmp/f.py") == "a/tmp/f.py"


# -- several names of one file -----------------------------------------------------------------


@pytest.fixture
def linked(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_bytes(b"old\n")
    os.link(one, other)
    return one, other


@pytest.mark.parametrize("new", [b"n", b"new and longer\n"])
def test_hard_links_stay_names_of_one_file(linked, new):
    assert write_file(str(linked[0]), b"old\n", new) is None
    assert [path.read_bytes() for path in linked] == [new, new]
    assert linked[0].stat().st_ino == linked[1].stat().st_ino and len(os.listdir(linked[0].parent)) == 2


def test_both_names_in_one_run(linked):
    assert write_files([Change(str(path), b"old\n", b"new\n") for path in linked]) == []
    assert [path.read_bytes() for path in linked] == [b"new\n", b"new\n"]
    assert linked[0].stat().st_ino == linked[1].stat().st_ino and len(os.listdir(linked[0].parent)) == 2


def test_a_link_and_its_target_in_one_run(tmp_path):
    (tmp_path / "real.py").write_bytes(b"old\n")
    (tmp_path / "link.py").symlink_to("real.py")
    assert write_files([Change(str(tmp_path / name), b"old\n", b"new\n") for name in ("link.py", "real.py")]) == []
    assert (tmp_path / "link.py").is_symlink() and (tmp_path / "real.py").read_bytes() == b"new\n"


def test_two_names_that_are_to_get_different_texts(linked):
    changes = [Change(str(path), b"old\n", text) for path, text in zip(linked, (b"one\n", b"two\n"), strict=True)]
    (failure,) = write_files(changes)
    assert "other.py" in failure.path and "it is the same file as" in failure.why
    assert [path.read_bytes() for path in linked] == [b"one\n", b"one\n"]


def test_what_was_written_to_a_shared_file_is_taken_back(linked, tmp_path, monkeypatch):
    (tmp_path / "z.py").write_bytes(b"old\n")
    real = os.replace

    def replace(old, new):
        if new.endswith("z.py"):
            raise OSError(28, "No space left on device")
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    changes = [Change(str(path), b"old\n", b"new\n") for path in (linked[0], tmp_path / "z.py")]
    assert [failure.why for failure in write_files(changes)] == ["No space left on device"] * 2
    assert [path.read_bytes() for path in (*linked, tmp_path / "z.py")] == [b"old\n"] * 3
    assert len(os.listdir(tmp_path)) == 3
