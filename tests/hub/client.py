"""The environment of a process that takes the miniature for the hub."""

import os
from pathlib import Path


def environment(endpoint: str, home: Path, **other: str) -> dict[str, str]:
    """The variables of this process, pointed at `endpoint`, with a cache and no login of its own.

    Args:
        endpoint: URL of the miniature.
        home: folder of the cache.
        other: further variables.
    """
    dropped = ("http_proxy", "https_proxy", "all_proxy", "hf_")
    kept = {key: value for key, value in os.environ.items() if not key.lower().startswith(dropped)}
    return kept | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        **other,
    }
