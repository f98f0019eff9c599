"""The packages that engines need, beyond those of every installation."""

from importlib import import_module

from splade_rescale.errors import UserError

#: Engine -> the module that its package brings, the package, and a name that must be in it.
PACKAGES = {
    "bmp": ("bmp", "bmp>=0.2.8", "Indexer"),
    "seismic": ("seismic", "pyseismic-lsr>=0.5.4", "SeismicDataset"),
}


def check_engine(name: str) -> None:
    """See to it that the package of an engine is installed.

    Raises:
        UserError: it is not, or another package has its name.
    """
    if name not in PACKAGES:
        return
    module, package, has = PACKAGES[name]
    try:
        found = hasattr(import_module(module), has)
    except ImportError:
        found = False
    if not found:
        raise UserError(
            f"the engine {name} needs {package}, which is not installed here; "
            f"python -m pip install '{package}'"
        )
