import pytest
from miniature import MINI, ROOT, Workflow

__all__ = ["MINI", "ROOT", "Workflow"]


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Workflow:
    """The miniature, run to its table and report in a folder whose path has a space and a quote."""
    workflow = Workflow(tmp_path_factory.mktemp("mini") / "it's a folder", MINI)
    workflow.run("--cores", "2")
    return workflow
