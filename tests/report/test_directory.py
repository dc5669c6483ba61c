"""The directory of a report is of one report at a time, and goes with a report that was not made."""

from pathlib import Path

import pytest

from strandline.errors import OptionError, StrandlineError
from strandline.report.directory import held, put_in_place


def test_a_second_report_is_refused_while_the_first_is_made(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    with held(out):
        with pytest.raises(StrandlineError) as refused, held(out):
            pytest.fail("both hold it")
        assert str(refused.value) == f"another report is being made in {out}; wait for it, or name another --out"
        (out / "report.html").touch()
    with held(out):
        pass
    assert [file.name for file in out.iterdir()] == ["report.html"]


def test_a_directory_that_nothing_was_written_to_goes_if_it_was_not_there(tmp_path: Path) -> None:
    with held(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with held(tmp_path / "old"):
        pass
    assert (tmp_path / "old").exists()


def test_what_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be written: "), held(tmp_path / "file" / "x"):
        pytest.fail("it is held")


def test_a_report_comes_whole_in_the_place_of_the_one_before(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for run in ("one", "two"):
        made = out / ".work"
        (made / "tables" / run).mkdir(parents=True)
        (made / "summary.json").write_text(run)
        (made / "report.html").write_text(run)
        put_in_place(made, out)
        assert sorted(file.name for file in out.iterdir()) == ["report.html", "summary.json", "tables"]
        assert [file.name for file in (out / "tables").iterdir()] == [run]
        assert (out / "report.html").read_text() == (out / "summary.json").read_text() == run
