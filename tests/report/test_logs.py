import json

from gmmseg.report.logs import read_log


def test_records_come_back_and_a_cut_off_last_line_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": float("inf")}]
    path.write_text("\n".join(map(json.dumps, records)) + '\n\n{"step": 3, "lo')
    assert read_log(path) == records


def test_a_line_cut_off_before_the_run_was_continued_is_left_out_wherever_it_stands(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo\n[3]\n"x"\n\xff\xfe\n{"kind": "train"}\n{"step": 4}\n')
    assert read_log(path) == [{"step": 1}, {"step": 4}]
