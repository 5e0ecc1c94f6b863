"""Reading sources and finding files."""
from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from torchlint import files
from torchlint.discover import discover
from torchlint.files import Source, UnreadableFile, decode, read_source


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"", "", "utf-8"),
        (b"x = '\xc3\xa9'\r\ny = 2", "x = 'é'\r\ny = 2", "utf-8"),
        (b"\xef\xbb\xbfx = 1\n", "x = 1\n", "utf-8-sig"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "# -*- coding: latin-1 -*-\nx = 'é'\n", "iso-8859-1"),
        (b"#!/x\r# vim: coding=latin-1\r'\xe9'\r", "#!/x\r# vim: coding=latin-1\r'é'\r", "iso-8859-1"),
    ],
)
def test_bytes_become_text_and_text_becomes_the_same_bytes(data: bytes, text: str, encoding: str) -> None:
    source = decode(data, "a.py")
    assert (source.text, source.encoding) == (text, encoding)
    assert source.encode(source.text) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x = 1\n\ny = '\xff'\n", "line 3: byte 0xff is not valid utf-8"),
        (b"\xff\xfex\x00", "line 1: byte 0xff is not valid utf-8"),
        (b"# coding: nonsense\n", "unknown encoding: nonsense"),
        (b"# coding: hex\n", "encoding 'hex' cannot be read"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "byte order mark"),
        (b"# coding: ascii\nx = '\xe9'", "line 2: byte 0xe9 is not valid ascii"),
    ],
)
def test_undecodable_bytes_are_one_clear_line(data: bytes, message: str) -> None:
    with pytest.raises(UnreadableFile, match=message) as caught:
        decode(data, "a.py")
    assert "\n" not in str(caught.value)


def test_lines_are_split_where_python_splits_them() -> None:
    text = "a = 1\r\nb = '\x0c\x1c\u2028'\rc = 3\nd"
    source = Source("a.py", text)
    assert source.lines == ("a = 1\r\n", "b = '\x0c\x1c\u2028'\r", "c = 3\n", "d")
    assert [node.lineno for node in source.tree.body] == [1, 2, 3, 4]
    assert (source.newline, Source("b.py", "x").newline) == ("\r\n", "\n")


def test_a_pickled_source_leaves_its_tree_behind() -> None:
    source = Source("a.py", "x = 1\n", "utf-8-sig")
    assert source.tree
    copy = pickle.loads(pickle.dumps(source))
    assert copy == source
    assert "tree" not in vars(copy)


def test_an_invalid_escape_in_the_file_is_not_our_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert Source("a.py", r"x = '\d'").tree
    assert not recwarn.list


def test_a_file_that_cannot_be_read_or_is_huge(tmp_path, monkeypatch) -> None:
    with pytest.raises(UnreadableFile, match="No such file"):
        read_source(tmp_path / "gone.py")
    with pytest.raises(UnreadableFile, match="Is a directory"):
        read_source(tmp_path)
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    (tmp_path / "big.py").write_text("x = 1\n" * 2)
    with pytest.raises(UnreadableFile, match="larger than 10 bytes"):
        read_source(tmp_path / "big.py")


# -- discovery ----------------------------------------------------------------------------------


def make(folder, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def shown(folder, monkeypatch, *paths: str, exclude: tuple[str, ...] = ()) -> list[str]:
    monkeypatch.chdir(folder)
    found = discover(paths or (".",), exclude, ".")
    assert not found.errors
    return [file.shown for file in found.files]


def test_only_python_files_and_not_what_tools_made(tmp_path, monkeypatch) -> None:
    make(tmp_path, "a.py", "b.txt", "c.ipynb", "d.pyi", "pkg/e.py", ".venv/f.py", "node_modules/g.py",
         ".git/h.py", "build/i.py", "dist/__init__.py", "dist/j.py", "env/pyvenv.cfg", "env/k.py",
         "lib/site-packages/l.py", "pkg/__pycache__/m.py")
    assert shown(tmp_path, monkeypatch) == ["a.py", "dist/__init__.py", "dist/j.py", "pkg/e.py"]


def test_a_named_path_is_looked_at_whatever_the_rules_above_say(tmp_path, monkeypatch) -> None:
    make(tmp_path, ".venv/a.py", ".venv/b/c.py", "notes.txt", "skipped/d.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text(".venv/\n/skipped/\n")
    paths = (".venv", "notes.txt", "skipped/d.py", "skipped")
    expected = [".venv/a.py", ".venv/b/c.py", "notes.txt", "skipped/d.py"]
    assert shown(tmp_path, monkeypatch, *paths) == expected


def test_gitignore_nested_negated_and_from_above(tmp_path, monkeypatch) -> None:
    make(tmp_path, "src/keep.py", "src/gen_a.py", "src/sub/gen_b.py", "src/sub/gen_c.py", "src/out/x.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_bytes(b"gen_*.py\n/src/out/\n!\n# comment \xff\n")
    (tmp_path / "src/sub/.gitignore").write_text("!gen_c.py\n")
    assert shown(tmp_path, monkeypatch) == ["src/keep.py", "src/sub/gen_c.py"]
    assert shown(tmp_path / "src", monkeypatch, "sub") == ["sub/gen_c.py"]


def test_files_agree_with_git_itself(tmp_path, monkeypatch) -> None:
    make(tmp_path, "a.py", "b/a.py", "b/c/a.py", "b/c/x y.py", "d/e.py", "d/keep/e.py", "logs/1.py",
         "f[1].py")
    (tmp_path / ".gitignore").write_text("/a.py\nb/**/a.py\n!b/a.py\nd/*\n!d/keep/\nlogs\nf[[]1].py\n\\#x\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=tmp_path,
                            capture_output=True, text=True, check=True)
    assert sorted(shown(tmp_path, monkeypatch)) == sorted(listed.stdout.splitlines())
    assert len(listed.stdout.splitlines()) == 3


def test_exclude_uses_gitignore_rules(tmp_path, monkeypatch) -> None:
    make(tmp_path, "a.py", "vendored/b.py", "pkg/vendored/c.py", "pkg/d_pb2.py")
    assert shown(tmp_path, monkeypatch, exclude=("/vendored/", "*_pb2.py")) == ["a.py", "pkg/vendored/c.py"]


def test_each_file_once_in_a_fixed_order(tmp_path, monkeypatch) -> None:
    make(tmp_path, "b.py", "a/z.py", "a/y.py")
    os.symlink(tmp_path / "b.py", tmp_path / "c.py")
    paths = ("a/y.py", ".", "a", "./b.py")
    assert shown(tmp_path, monkeypatch, *paths) == ["a/y.py", "b.py", "a/z.py"]


def test_a_loop_of_links_is_survived(tmp_path, monkeypatch) -> None:
    make(tmp_path, "pkg/a.py")
    os.symlink(tmp_path, tmp_path / "pkg" / "loop")
    os.symlink("self.py", tmp_path / "self.py")
    os.symlink("gone.py", tmp_path / "dangling.py")
    assert shown(tmp_path, monkeypatch) == ["pkg/a.py"]
    assert shown(tmp_path, monkeypatch, "pkg/loop/pkg/loop") == ["pkg/loop/pkg/loop/pkg/a.py"]


def test_a_very_deep_directory(tmp_path, monkeypatch) -> None:
    folder = tmp_path
    for _ in range(60):
        folder = folder / "d"
    make(folder, "a.py")
    assert shown(tmp_path, monkeypatch) == ["d/" * 60 + "a.py"]


def test_what_is_missing_is_an_error_and_the_rest_is_found(tmp_path, monkeypatch) -> None:
    make(tmp_path, "a.py")
    monkeypatch.chdir(tmp_path)
    found = discover(["nope", "a.py", "nope.py"])
    assert [file.shown for file in found.files] == ["a.py"]
    assert [str(error) for error in found.errors] == [
        "nope: no such file or directory", "nope.py: no such file or directory"]


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch) -> None:
    make(tmp_path, "a.py", "shut/b.py")
    scandir = os.scandir

    def refusing(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    monkeypatch.chdir(tmp_path)
    found = discover(["."])
    assert [file.shown for file in found.files] == ["a.py"]
    assert [str(error) for error in found.errors] == ["shut: cannot be listed: Permission denied"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are not text")
def test_a_file_name_that_is_no_text(tmp_path, monkeypatch) -> None:
    name = os.fsdecode(b"bad\xff.py")
    make(tmp_path, name)
    assert shown(tmp_path, monkeypatch) == [name]


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    with pytest.raises(UnreadableFile, match="pipe"):
        read_source(pipe)
