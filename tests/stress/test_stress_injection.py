"""Names and texts of strangers, which must command neither terminal, spreadsheet nor page."""

import csv
import io
import sys
import unicodedata
from pathlib import Path

import pytest

import kepsvgp
from kepsvgp.cli import main
from kepsvgp.errors import UserError, printable
from kepsvgp.files import CheckedFolder
from kepsvgp.serving import open_folder

HOSTILE = (
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[H",
    "\x1b[31mred",
    "\x9b31m",
    "a\rb",
    "back\b\b\bspace",
    "\x07bell",
    "\u202egnp.exe",
    "\u2066isolate",
    "nul\x00",
    "[red]markup[/red]",
    "half \ud800 pair",
)
FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("x")')


@pytest.mark.parametrize("text", HOSTILE)
def test_printable_text_commands_nothing(text, tried) -> None:
    shown = printable(text)

    assert all(ord(letter) >= 32 and not 127 <= ord(letter) < 160 for letter in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode()
    assert printable("lines\nand\ttabs, käse, 漢字, עברית") == "lines\nand\ttabs, käse, 漢字, עברית"
    tried("texts that would command a terminal", 1)


@pytest.mark.parametrize("text", [t for t in HOSTILE if "\x00" not in t and "\ud800" not in t])
def test_errors_about_hostile_names_command_nothing(
    text, tmp_path, monkeypatch, capsys, tried
) -> None:
    # a class of the test part that the train part has not is named in the error
    folder = tmp_path / "data"
    folder.mkdir()
    for part, classes in (("train", ("a", "b")), ("test", ("a", text))):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            writer.writerows((f"{part} {n}", classes[n % 2]) for n in range(40))
    arguments = ("train", "c.toml", "data.name=csv", f"data.path={folder}", f"model.{text}=1")
    (tmp_path / "c.toml").write_text('[data]\nname = "csv"\npath = "data"\n')
    monkeypatch.chdir(tmp_path)
    for said in (arguments, arguments[:-1]):
        monkeypatch.setattr(sys, "argv", ["kepsvgp", *said])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        err = capsys.readouterr().err
        assert "\x1b" not in err
        assert "\x07" not in err
        assert "\x9b" not in err
        assert "\u202e" not in err
        assert "\r" not in err.replace("\r\n", "")
        assert "error: " in err
    tried("texts that would command a terminal", 2)


def test_whoever_writes_csv_guards_against_formulas() -> None:
    package = Path(kepsvgp.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        writes = "csv.writer(" in text or "csv.DictWriter(" in text
        assert not writes or "csv_cell(" in text, path


class Terminal(io.StringIO):
    """Standard output that someone looks at."""

    def isatty(self) -> bool:
        return True


def test_predictions_of_hostile_classes_command_nothing(tried) -> None:
    from kepsvgp.serving.stream import FIELDS, _csv_writer

    shown, written = Terminal(), io.StringIO()
    names = [*HOSTILE, *(text for text in FORMULAS)]
    for stream in (shown, written):
        write = _csv_writer(stream)
        for name in names:
            entry = dict.fromkeys(FIELDS, 0.5) | {"row": name, "label": name, "abstain": None}
            write(entry)

    text = shown.getvalue()
    assert not any(
        unicodedata.category(letter) in ("Cc", "Cf", "Cs") for letter in set(text) - {"\n", "\t"}
    )
    found = list(csv.DictReader(io.StringIO(written.getvalue(), newline="")))
    for row, name in zip(found, names, strict=True):
        assert row["label"].replace("'", "") == name.replace("\r", "\n").replace("'", "")
    assert all(row[key][0] not in "=+-@\t\r" for row in found for key in ("row", "label"))
    tried("hostile names of classes and files in predictions", 2 * len(names))


OWN = ["own.Own", "own.Own"]
STRANGE_PARTS = {
    "config.json": {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}},
    "tokenizer_config.json": {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": OWN}},
    "preprocessor_config.json": {
        "image_processor_type": "Own",
        "auto_map": {"AutoImageProcessor": "own.Own"},
    },
}


@pytest.mark.parametrize("part", STRANGE_PARTS)
def test_code_in_the_folder_of_a_model_is_neither_run_nor_asked_for(
    part, tmp_path, monkeypatch, tried
) -> None:
    import families
    from serving.test_predict_command import tokenizer
    from transformers import ViTImageProcessor

    is_image = part == "preprocessor_config.json"
    model, _ = families.make("vit" if is_image else "bert")
    processor = ViTImageProcessor() if is_image else tokenizer()
    kepsvgp.save_pretrained(kepsvgp.convert(model), tmp_path, processor=processor)
    # with the right checksums, as whoever wants to harm would list them
    folder = CheckedFolder(tmp_path)
    folder.write_json(part, folder.read_json(part) | STRANGE_PARTS[part])
    trace = tmp_path / "it-ran"
    (tmp_path / "own.py").write_text(f"open({str(trace)!r}, 'w')\nclass Own: ...\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))

    with pytest.raises(UserError, match="read without"):
        open_folder(tmp_path)
    assert not trace.exists()
    assert sys.stdin.tell() == 0
    tried("folders of models with code in them", 1)
