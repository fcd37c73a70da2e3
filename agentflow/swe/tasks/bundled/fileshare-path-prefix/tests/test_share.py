import os

import pytest

from fileshare import OutsideShare, Share


@pytest.fixture
def share(tmp_path):
    for name in ("data/a/x.txt", "data/b.txt", "database/users.db"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    os.symlink("../database", tmp_path / "data/out")
    os.symlink("b.txt", tmp_path / "data/link.txt")
    return Share(tmp_path / "data")


@pytest.mark.parametrize("path", ["../database/users.db", "a/../../database/users.db"])
def test_a_neighbour_is_outside(share, path):
    with pytest.raises(OutsideShare):
        share.read(path)


def test_a_link_that_leads_out_is_outside(share):
    with pytest.raises(OutsideShare):
        share.read("out/users.db")


def test_absolute_means_the_root_of_the_share(share):
    assert share.read("/b.txt") == b"data/b.txt"


@pytest.mark.parametrize("path", ["b.txt", "a/../b.txt", "link.txt"])
def test_inside(share, path):
    assert share.read(path) == b"data/b.txt"


def test_the_parent_is_outside(share):
    with pytest.raises(OutsideShare):
        share.read("../nothing")


def test_missing(share):
    with pytest.raises(FileNotFoundError):
        share.read("a/none.txt")
