"""A folder becomes a value: equal folders are one version, and what does not belong stays out or is refused."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from echod.deploy.ignore import ignored
from echod.deploy.snapshot import file_of, is_misnamed, module_of, package_of, served_folder, taken
from echod.errors import Refused


def folder_of(top: Path, files: dict[str, bytes | str], name: str = "functions") -> Path:
    folder = top / name
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


FILES: dict[str, bytes | str] = {"shop.py": "x = 1\n", "sub/cart.py": "y = 2\n", "data/rows.csv": "a,b\n"}


def test_the_same_content_is_the_same_version_whatever_its_times_and_order(tmp_path: Path) -> None:
    one = folder_of(tmp_path / "one", FILES)
    other = folder_of(tmp_path / "other", dict(reversed(FILES.items())))
    os.utime(other / "shop.py", (time.time() - 1e6, time.time() - 1e6))
    (other / "sub" / "cart.py").chmod(0o755)
    assert taken(one).version == taken(other).version
    (other / "shop.py").write_text("x = 2\n")
    assert taken(one).version != taken(other).version


def test_modules_are_named_without_the_folder_and_helpers_are_not_among_them(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {**FILES, "_private.py": "", "test_shop.py": "", "tests/more.py": "", "notes.txt": ""})
    assert taken(folder).modules == ("shop", "sub.cart")
    assert {module_of(path) for path in ("sub/__init__.py", "conftest.py", "_lib/a.py")} == {None}
    assert file_of("sub.cart") == "sub/cart.py"


def test_a_file_that_no_import_could_name_is_no_module() -> None:
    dotted = ("report.v2.py", "v1.2/report.py", "a\\..\\b.py", "a..py")
    assert [module_of(path) for path in dotted] == [None] * 4
    assert [
        path for path in (*dotted, "_a.b.py", "tests/a.b.py", ".a.py", "a.b.txt", "a-b.py") if is_misnamed(path)
    ] == [*dotted]
    for path in ("a-b.py", "1/2.py", "ünï.py"):
        assert file_of(module_of(path) or "") == path


def test_caches_environments_dot_files_and_secrets_stay_out(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        {
            "shop.py": "",
            ".env": "TOKEN=x",
            "prod.env": "TOKEN=x",
            ".git/config": "",
            "__pycache__/shop.cpython-311.pyc": b"\0",
            "shop.pyc": b"\0",
            "shop.py~": "",
            "shop.py.tmp": "",
            "sedAb1cD2": "",
            "my-env/pyvenv.cfg": "",
            "my-env/lib/thing.py": "",
            "node_modules/left-pad/index.js": "",
            "state/valkey.sock.txt": "",
            "sub/.hidden/a.py": "",
        },
    )
    assert list(taken(folder, state=folder / "state").contents) == ["shop.py"]


def test_echodignore_works_as_git_has_it(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        {
            ".echodignore": "# notes\n*.csv\n!keep.csv\n/build/\ndocs/**/draft.md\nimg[0-9].png\n",
            "a.csv": "",
            "keep.csv": "",
            "sub/b.csv": "",
            "build/out.py": "",
            "sub/build/in.py": "",
            "docs/x/y/draft.md": "",
            "docs/draft.md": "",
            "docs/final.md": "",
            "img1.png": "",
            "imgx.png": "",
        },
    )
    assert list(taken(folder).contents) == ["docs/final.md", "imgx.png", "keep.csv", "sub/build/in.py"]


@pytest.mark.parametrize(
    ("pattern", "left_out", "stays"),
    [
        ("[z-a].txt", ["[z-a].txt"], ["z.txt"]),
        ("[!].txt", ["[!].txt"], ["!.txt", "a.txt"]),
        ("[].txt", ["[].txt"], ["].txt"]),
        ("[!]].txt", ["a.txt"], ["].txt"]),
        ("[]a].txt", ["].txt", "a.txt"], ["b.txt"]),
        ("[!a].txt", ["b.txt"], ["a.txt"]),
        ("[^a].txt", ["b.txt"], ["a.txt"]),
        ("[", ["["], ["a"]),
        ("a[&&b].txt", ["a&.txt", "ab.txt"], ["aa.txt"]),
    ],
)
def test_a_set_of_characters_is_one_or_taken_literally(pattern: str, left_out: list[str], stays: list[str]) -> None:
    decide = ignored(pattern)
    assert [decide(name, False) for name in (*left_out, *stays)] == [True] * len(left_out) + [False] * len(stays)


def test_a_link_that_echodignore_names_may_lead_anywhere(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"shop.py": "", ".echodignore": "passwd\ndata/\nloop\ngone\n"})
    for link, target in (("passwd", "/etc/passwd"), ("data", "/etc"), ("loop", "."), ("gone", "nowhere")):
        (folder / link).symlink_to(target)
    assert [*taken(folder).contents] == ["shop.py"]


def test_a_package_may_be_called_env_and_an_environment_is_told_by_what_it_has(tmp_path: Path) -> None:
    environments = {"env2/pyvenv.cfg": "", "env2/x.py": "", "conda/conda-meta/history": "", "conda/x.py": ""}
    folder = folder_of(tmp_path, {"env/shop.py": "", "venv/cart.py": "", **environments})
    assert taken(folder).modules == ("env.shop", "venv.cart")


def test_a_link_inside_is_followed_and_one_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"shop.py": "x = 1\n", "lib/more.py": "y = 1\n"})
    (folder / "again.py").symlink_to("shop.py")
    (folder / "lib2").symlink_to("lib")
    assert taken(folder).contents["again.py"] == b"x = 1\n"
    assert taken(folder).contents["lib2/more.py"] == b"y = 1\n"
    (folder / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(Refused, match=r"passwd: expected a link to a file of the folder, got one to /etc/passwd"):
        taken(folder)


@pytest.mark.parametrize(
    ("link", "target"), [("loop", "."), ("lib/up", ".."), ("lib/self", "../lib"), ("gone", "nowhere")]
)
def test_a_link_that_goes_round_or_nowhere_is_refused(tmp_path: Path, link: str, target: str) -> None:
    folder = folder_of(tmp_path, {"lib/more.py": ""})
    (folder / link).symlink_to(target)
    with pytest.raises(Refused, match=link):
        taken(folder)


def test_links_that_go_round_by_way_of_each_other_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a/x.py": "", "b/y.py": ""})
    (folder / "a" / "to_b").symlink_to("../b")
    (folder / "b" / "to_a").symlink_to("../a")
    with pytest.raises(Refused, match="a folder around it"):
        taken(folder)


def test_too_large_a_folder_names_its_largest_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"shop.py": ""})
    with (folder / "movie.bin").open("wb") as movie:
        movie.truncate(21_000_000)
    with pytest.raises(Refused, match=r"at most 20 MB, got 21\.0 MB \(largest: movie\.bin"):
        taken(folder)


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {f"{number}.txt": "" for number in range(10_001)})
    with pytest.raises(Refused, match=r"at most 10000 files, got 10001; name the others in \.echodignore"):
        taken(folder)
    (folder / ".echodignore").write_text("*.txt\n")
    assert taken(folder).contents == {}


def test_a_path_that_no_target_would_take_is_refused_here(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"/".join("a" * 33): ""})
    with pytest.raises(Refused, match="32 folders deep"):
        taken(folder)


def test_a_project_serves_its_functions_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"shop.py": ""})
    assert served_folder(tmp_path) == folder.resolve()
    assert served_folder(folder) == folder.resolve()
    (tmp_path / "own.py").write_text("")
    assert served_folder(tmp_path) == tmp_path.resolve()
    with pytest.raises(Refused, match="an existing folder; `echod init"):
        served_folder(tmp_path / "nope")
    with pytest.raises(Refused, match=r"`echod init '.*/a b'` makes one"):
        served_folder(tmp_path / "a b" / "functions")
    with pytest.raises(Refused, match="a folder, got a file"):
        served_folder(folder / "shop.py")


def test_the_package_is_named_as_the_folder_is(tmp_path: Path) -> None:
    assert package_of(tmp_path / "functions") == "functions"
    assert package_of(tmp_path / "my-app") == "my_app"
    assert package_of(tmp_path / "json") == "json_"


def test_a_file_name_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"shop.py": ""})
    (Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.py"))).write_text("")
    with pytest.raises(Refused, match="UTF-8"):
        taken(folder)


def test_what_looks_like_a_secret_is_withheld_and_named_unless_it_is_taken_in(tmp_path: Path) -> None:
    names = ("id_rsa", "certs/server.pem", "certs/ca.pem", "secrets.json", "service-account-1.json", ".env", "prod.env")
    kept = {"shop.py", "id_rsa.pub", "keys.py", "secrets.py", "x.key/data.txt"}
    folder = folder_of(tmp_path, dict.fromkeys((*names, *kept, ".git/x", "a.pyc"), ""))
    snapshot = taken(folder)
    assert snapshot.contents.keys() == kept
    assert sorted(snapshot.withheld) == sorted(names)
    (folder / ".echodignore").write_text("!certs/ca.pem\n!.env\nid_rsa\n")
    snapshot = taken(folder)
    assert snapshot.contents.keys() == {*kept, "certs/ca.pem"}
    assert sorted(snapshot.withheld) == sorted({*names} - {"certs/ca.pem", "id_rsa"})  # that one was asked for


@pytest.mark.parametrize(("owner", "step"), [(os, "scandir"), (Path, "read_bytes")])
@pytest.mark.parametrize("another", [False, True])
def test_a_folder_that_goes_while_it_is_read_is_gone_and_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str, another: bool
) -> None:
    folder = folder_of(tmp_path, {"shop.py": "x = 1\n"})
    whole = getattr(owner, step)

    def as_it_goes(*given: object) -> object:
        if not (away := tmp_path / "away").exists():
            folder.rename(away)
            if another:
                folder.mkdir()
        return whole(*given)

    monkeypatch.setattr(owner, step, as_it_goes)
    with pytest.raises(Refused, match="is gone"):
        taken(folder)
