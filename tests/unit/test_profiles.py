"""The profiles as Snakemake reads them."""

import re
from pathlib import Path

import pytest
from snakemake.profiles import ProfileConfigFileParser

PROFILES = Path(__file__).parents[2] / "workflow" / "profiles"
RULES = PROFILES.parent / "rules"


def options(path: Path) -> dict:
    with path.open() as file:
        return ProfileConfigFileParser().parse(file)


def set_once(tmp_path: Path, **values: str) -> dict:
    """The Slurm profile after a user has set `values` in its one place."""
    text = (PROFILES / "slurm/config.yaml").read_text()
    for name, value in values.items():
        text, found = re.subn(rf'^(  {name}: )""', rf"\g<1>{value}", text, flags=re.MULTILINE)
        assert found == 1
    (tmp_path / "config.yaml").write_text(text)
    return options(tmp_path / "config.yaml")


def test_one_place_names_account_and_partitions(tmp_path):
    profile = set_once(tmp_path, account=12345, partition="main", gpu_partition="v100")
    assert profile["executor"] == "slurm"
    assert {"slurm_account='12345'", "slurm_partition='main'"} <= set(profile["default-resources"])
    assert set(profile["set-resources"]) == {
        f"{rule}:slurm_partition='v100'" for rule, body in rules() if "gpu=gpus(" in body
    }


def test_gpu_jobs_go_where_the_others_go_unless_told(tmp_path):
    profile = set_once(tmp_path, partition="main")
    assert {line.split("=")[1] for line in profile["set-resources"]} == {"'main'"}
    unset = set_once(tmp_path)
    assert "slurm_partition=''" in unset["default-resources"]
    assert {line.split("=")[1] for line in unset["set-resources"]} == {"''"}


def test_the_profile_names_rules_that_there_are():
    profile = options(PROFILES / "slurm/config.yaml")
    named = {
        re.split("[=:]", line)[0]
        for key in ("set-threads", "set-resources")
        for line in profile[key]
    }
    assert named <= {name for name, _ in rules()}


def test_the_default_profile_leaves_the_cluster_s_alone():
    """Snakemake lets the workflow's default profile win over the one that is asked for."""
    assert not set(options(PROFILES / "default/config.yaml")) & set(
        options(PROFILES / "slurm/config.yaml")
    )


def rules() -> list[tuple[str, str]]:
    found = []
    for path in sorted(RULES.glob("*.smk")):
        found += re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", path.read_text(), re.M | re.S)
    return found


@pytest.mark.parametrize(("name", "body"), rules())
def test_every_rule_says_what_it_needs_and_asks_for_more_memory_when_tried_again(name, body):
    assert re.search(r"^ +mem_mb=memory\(\d+\),$", body, re.M), name
    assert re.search(r"^ +runtime=\d+,$", body, re.M), name
    assert re.search(r"^    threads: \d+$", body, re.M), name
