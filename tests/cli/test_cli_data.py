from dataclasses import replace
from pathlib import Path

import pytest
from datafiles import write_cola
from typer.testing import CliRunner
from webserver import Behaviour, serving

from kepsvgp.cli import app
from kepsvgp.data.download import catalogue
from kepsvgp.errors import UserError


def run(*arguments: str, root: Path):
    return CliRunner().invoke(app, ["data", *arguments, "--data-root", str(root)])


def test_list_says_what_is_here_and_which_file_goes_where(tmp_path: Path) -> None:
    write_cola(tmp_path, (3, 2, 1))
    (tmp_path / "cifar-100-python").mkdir()

    shown = run("list", root=tmp_path)

    assert shown.exit_code == 0
    entries = {entry.split("\n")[0]: entry for entry in shown.stdout.split("\n\n")}
    assert "yes       cola_public" in entries["cola"]
    assert "in part   cifar-100-python lacks cifar-100-python/meta" in entries["cifar100"]
    assert "here      no" in entries["imdb"]
    assert str(tmp_path / "downloads" / "aclImdb_v1.tar.gz") in entries["imdb"]
    assert "scikit-learn" in entries["digits"]


def test_verify_exits_with_1_for_damage(tmp_path: Path) -> None:
    assert run("verify", root=tmp_path).exit_code == 0
    assert run("verify", "cola", root=tmp_path).exit_code == 1

    write_cola(tmp_path, (3, 2, 1))
    shown = run("verify", root=tmp_path)

    assert shown.exit_code == 1
    assert "damaged       raw/in_domain_dev.tsv" in shown.stdout


@pytest.mark.parametrize("command", ["list", "verify"])
def test_digits_are_a_data_set_without_a_file(tmp_path: Path, command: str) -> None:
    alone = run(command, "digits", root=tmp_path)
    beside = run("list", "digits", "cola", root=tmp_path)

    assert alone.exit_code == 0
    assert "digits\n" in alone.stdout
    assert "comes with scikit-learn" in alone.stdout
    assert "cola" not in alone.stdout
    assert {"digits", "cola"} <= set(beside.stdout.splitlines())
    assert "digits" not in run("list", "cola", root=tmp_path).stdout.splitlines()
    assert run(command, "digit", root=tmp_path).exit_code != 0


def test_fetch_downloads_and_says_so(tmp_path: Path, monkeypatch) -> None:
    import hashlib
    import shutil

    write_cola(tmp_path / "source", (3, 2, 1))
    packed = shutil.make_archive(
        str(tmp_path / "packed"), "zip", tmp_path / "source", base_dir="cola_public"
    )
    content = Path(packed).read_bytes()
    (cola,) = catalogue.find(["cola"])
    local = replace(cola, md5=hashlib.md5(content).hexdigest())
    monkeypatch.setattr(catalogue, "DATA_SETS", (local,))
    with serving(Behaviour({"/mirror/cola.zip": content}, cut_after=400)) as address:
        shown = run("fetch", "cola", "--url", f"{address}/mirror/cola.zip", root=tmp_path / "r")
        again = run("fetch", "cola", root=tmp_path / "r")

    assert shown.exit_code == 0, shown.output
    assert "cola: fetched in" in shown.stdout
    assert "cola: already in" in again.stdout
    assert (tmp_path / "r" / "cola_public" / "raw" / "in_domain_dev.tsv").exists()


def test_unknown_name_and_url_for_many_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="got imbd"):
        raise run("fetch", "imbd", root=tmp_path).exception or AssertionError
    with pytest.raises(UserError, match="--url is for one data set"):
        raise run("fetch", "imdb", "cola", "--url", "http://x", root=tmp_path).exception or (
            AssertionError
        )
