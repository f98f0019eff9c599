import pandas as pd
import pytest
from bench.workflow import START_UP, job_times, stage_shares


def write(path, *seconds):
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"s": seconds, "max_rss": 1.0}).to_csv(path, sep="\t", index=False)


def test_time_of_jobs_is_shared_out_by_stage(tmp_path):
    write(tmp_path / "train" / "a.tsv", 6.0)
    write(tmp_path / "train" / "b.tsv", 10.0)
    write(tmp_path / "encode" / "a.tsv", 3.0)
    write(tmp_path / "table.tsv", 1.0)
    jobs = job_times(tmp_path)
    shares = stage_shares(jobs, {"train": 2.0, "encode": 6.0, "table": 0.5}).set_index("stage")
    assert shares.jobs.to_dict() == {"encode": 1, "table": 1, "train": 2, "all": 4}
    assert shares.share_of_time["train"] == pytest.approx(16 / 20)
    assert shares.start_up_share["train"] == pytest.approx(4 / 16)
    assert shares.start_up_share["encode"] == 1.0  # no more than all of it
    assert shares.start_up_share["all"] == pytest.approx((4 + 3 + 0.5) / 20)


def test_without_benchmark_files_it_says_what_to_run(tmp_path):
    with pytest.raises(SystemExit, match="make table"):
        job_times(tmp_path)


def test_every_rule_file_with_jobs_has_its_start_up(tmp_path):
    assert {"download", "norms", "rescale", "train", "encode", "index", "search"} <= START_UP.keys()
