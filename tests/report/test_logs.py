import json

import pytest

from gmmseg.report.logs import read_log


def test_records_come_back_and_a_cut_off_last_line_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": float("inf")}]
    path.write_text("\n".join(map(json.dumps, records)) + '\n\n{"step": 3, "lo')
    assert read_log(path) == records


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl: line 2 is not a JSON object"):
        read_log(path)
