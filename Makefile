# make install · make table · make report · make test · make rehearse · make reliability · make bench: each sets up .venv by itself when the lock or the package changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
CORES ?= all
STAMP := .venv/.installed
SNAKEMAKE := .venv/bin/python -m snakemake

.PHONY: install table report rehearse reliability bench bench-engines test test-slurm lint format lock schema clean

install: $(STAMP)

table: $(STAMP)
	$(SNAKEMAKE) --cores $(CORES) results/table.csv

# The page results/report/index.html, and results/report.html, which wraps it in Snakemake's report.
report: $(STAMP)
	$(SNAKEMAKE) --cores $(CORES)
	$(SNAKEMAKE) --report results/report.html

# The paper's configuration from end to end, on made-up data, without the hub and without a GPU.
rehearse: $(STAMP)
	PYTHONPATH=tests:workflow .venv/bin/python -m hub.rehearse

# Kill every stage, damage files, fill the disk, ...; writes docs/reliability.md.
reliability: $(STAMP)
	PYTHONPATH=tests:workflow .venv/bin/python -m faults

# Training steps and encoding side by side with sentence-transformers and the plain formula; see docs/speed.md.
bench: $(STAMP)
	PYTHONPATH=tests:workflow .venv/bin/python -m bench.speed

# Index and search made-up corpora by every engine; up to 8 GiB of memory and 4 GB of disk.
bench-engines: $(STAMP)
	PYTHONPATH=tests:workflow .venv/bin/python -m bench.engines

test: lint
	OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadgroup

# The miniature on a Slurm of one node, which is installed if need be (as root, by apt-get).
test-slurm: $(STAMP)
	tests/slurm/install.sh
	.venv/bin/python -m pytest -m slurm -rs tests/slurm

lint: $(STAMP)
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m snakefmt --check Snakefile workflow
	$(SNAKEMAKE) --lint

format: $(STAMP)
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .
	.venv/bin/python -m snakefmt Snakefile workflow

schema: $(STAMP)
	.venv/bin/python -m splade_rescale config schema

# Resolve the dependencies of pyproject.toml anew; read the difference before committing it.
# torch pins its own CUDA parts exactly, so they stay out: a CPU build of torch needs none of them.
lock: $(STAMP)
	.venv/bin/python -m uv pip compile pyproject.toml --extra dev --extra engines --python-version 3.11 \
	    --universal --quiet --no-annotate --no-header \
	    | grep --extended-regexp --invert-match '^(nvidia-|cuda-|triton)' > .venv/pins
	(grep '^#' envs/requirements.txt; cat .venv/pins) > .venv/lock
	mv .venv/lock envs/requirements.txt

clean:
	rm -rf .venv

$(STAMP): envs/requirements.txt pyproject.toml
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed (set PYTHON=...), found " + sys.version)'
	"$(PYTHON)" -m venv .venv
	.venv/bin/python -m pip install --quiet --requirement envs/requirements.txt
	.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	.venv/bin/python -m pip check
	touch $(STAMP)
