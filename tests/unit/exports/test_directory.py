"""An export as a directory: its files, files that are replaced, and archives that try to leave the directory."""

import pytest

from madlib_mop.errors import InvalidParameter, Unsupported
from madlib_mop.exports.directory import write_directory
from madlib_mop.exports.formats import Format, archive

ADDITIONS = {"signature.json": "{}", "README.md": "# Card\n"}
SAVED = {"saved_model.pb": b"pb", "variables/variables.index": b"i"}


def test_the_model_and_what_is_beside_it(tmp_path):
    data = archive({"config.json": b"{}"}, ADDITIONS)
    paths = write_directory(tmp_path / "out", Format.KERAS, data)
    assert [path.name for path in paths] == ["model.keras", "signature.json", "README.md"]
    assert paths[0].read_bytes() == data and paths[2].read_text() == "# Card\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "model.keras", "signature.json"]


def test_a_saved_model_is_unpacked_and_replaced_as_a_whole(tmp_path):
    write_directory(tmp_path, Format.SAVED_MODEL, archive({**SAVED, "old": b"x"}, ADDITIONS))
    write_directory(tmp_path, Format.SAVED_MODEL, archive(SAVED, ADDITIONS))
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert found == [
        "README.md", "saved_model/saved_model.pb", "saved_model/variables/variables.index", "signature.json",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "..\\outside"])
def test_no_file_leaves_the_directory(tmp_path, name):
    with pytest.raises(Unsupported, match="is a path that leaves the archive"):
        write_directory(tmp_path / "out", Format.SAVED_MODEL, archive({**SAVED, name: b"x"}, ADDITIONS))
    assert not list(tmp_path.rglob("*"))


def test_links_directories_and_missing_parents_are_left_alone(tmp_path):
    data = archive({"config.json": b"{}"}, ADDITIONS)
    (tmp_path / "README.md").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidParameter, match="README.md exists, and is no file"):
        write_directory(tmp_path, Format.KERAS, data)
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "model.keras").exists()
    with pytest.raises(InvalidParameter, match="the directory above .* does not exist"):
        write_directory(tmp_path / "a" / "b", Format.KERAS, data)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameter, match="file is no directory"):
        write_directory(tmp_path / "file", Format.KERAS, data)
