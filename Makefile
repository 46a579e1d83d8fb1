# Every target sets up what it needs and is quick the second time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TOOLS  := scikit-build-core nanobind cmake ninja

# How many processes share the tests. A process that has none left takes some of another's, so a
# long file does not hold up the end, and most fixtures of a module are still made once. One more than
# there are cores: the tests of frameworks, kills and locks wait for other processes much of the time.
WORKERS ?= $(shell expr $$(nproc) + 1)
PYTEST_ARGS ?=
KILLS ?= 10000
MINORS ?= 11 12 13 14 15 16 17 18 19
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# The suite starts hundreds of interpreters: what one of them compiled is there for the next one, also
# where the environment has Python write no bytecode.
export PYTHONDONTWRITEBYTECODE :=

NATIVE := $(shell find native -name '*.[ch]pp') CMakeLists.txt pyproject.toml
CORE   := $(filter-out native/bind/%,$(filter %.cpp,$(NATIVE)))

.PHONY: demo test browser test-gpu test-azure lint docs screenshots pythons suite kills attack lane bench scale sanitize stub wheel constraints clean

demo: $(VENV)/demo
	$(BIN)/python -m benchmarks.demo

# Most of lint is mypy, which has use for one core: the tests run beside it.
test: $(VENV)/test browser
	$(MAKE) --no-print-directory -j 2 lint suite

# Chromium, in which the viewer is tested. Where it is missing and cannot be installed, these tests are
# skipped and name the reason.
browser:
	@command -v chromium || command -v chromium-browser || { \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } || \
		echo "chromium is missing and could not be installed: tests in a browser will be skipped"

# Those that need a CUDA device, with a Python that has torch for CUDA and the compiled core: PYTHON=python3.
test-gpu:
	PYTHONPATH=src STEPWELL_GPU=1 $(PYTHON) -m pytest -W default -p no:cacheprovider --confcutdir tests/gpu tests/gpu

# Azure's storage by Azurite, which npm has: a bucket of another kind than those of the suite.
test-azure: $(VENV)/test
	npm install --prefix build/azurite --no-save --no-audit --no-fund --silent azurite@3.35.0
	STEPWELL_AZURITE=build/azurite/node_modules/.bin/azurite-blob $(BIN)/python -m pytest tests/azure

lint: $(VENV)/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m nanobind.stubgen -q -m stepwell._core -o build/_core.pyi
	cmp build/_core.pyi src/stepwell/_core.pyi || { echo "the stub is stale: make stub"; exit 1; }

# The pages of docs/ and the reference as a site in build/site, which needs no network to be read.
# Search wants a server: python -m http.server -d build/site
docs: $(VENV)/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "built: build/site/index.html"

# Pictures of every page of the viewer, light and dark, in docs/images/viewer. Recordings that others have
# under way on this machine would be in them.
screenshots: $(VENV)/test browser
	$(BIN)/python docs/screenshots.py

# Kills every writer 10,000 times, where the suite does it 100 times: make kills KILLS=1500 for fewer.
kills: $(VENV)/test
	STEPWELL_KILLS=$(KILLS) $(PYTEST) tests/crash tests/stores -k test_kills -o faulthandler_timeout=7200

# Damages every store in 100,000 ways, where the suite does it in 3,000; what fails is kept in
# tests/attack/kept.txt and tried first from then on. One case again: python -m tests.attack --seed N
ATTACKS ?= 100000
attack: $(VENV)/test
	$(BIN)/python -m tests.attack --cases $(ATTACKS) --kept --keep

# Looks for torn frames among ten million, where the suite does it among 300,000.
lane: $(VENV)/test
	STEPWELL_LANE_FRAMES=10000000 $(BIN)/python -m pytest tests/crash/test_lane_processes.py \
		-k torn -o faulthandler_timeout=7200

# Measures, then writes docs/performance.md and its plot.
bench: $(VENV)/bench
	$(BIN)/python -m benchmarks.report

# A billion steps where they fit, fewer where they do not.
scale: $(VENV)/bench
	$(BIN)/python -m benchmarks.scale

# The suite with the core under ASan and UBSan, in a second environment that borrows the
# packages of the first; before it the core's threads against each other under TSan, and its
# decoders against damaged payloads.
sanitize: $(VENV)/test .venv-asan/done build/race build/race-cuda.so build/fuzz
	STEPWELL_CUDA_LIBRARY=build/race-cuda.so build/race
	build/fuzz
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	STEPWELL_SANITIZED=1 .venv-asan/bin/python -m pytest -n $(WORKERS) --dist worksteal -p no:cacheprovider \
		-o faulthandler_timeout=600

# Writes the type stub of the compiled module.
stub: $(VENV)/test
	$(BIN)/python -m nanobind.stubgen -q -m stepwell._core -o src/stepwell/_core.pyi

# A wheel and an sdist in dist/. The wheel is made of the sdist, gets the oldest platform that has all
# that it links to into its name (manylinux_2_35), and is tried in an environment without a compiler.
wheel: $(VENV)/test
	rm -rf dist build/dist
	$(BIN)/python -m build --outdir build/dist
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist
	STEPWELL_WHEEL="$$(echo dist/*.whl)" $(BIN)/python -m pytest tests/test_wheel.py

# The suite on every Python from 3.11 on that is found in PATH or among those of pyenv, each in an
# environment of its own: make pythons PYTEST_ARGS='tests/test_loader.py -k resume' for a part of it.
pythons:
	@found=0; for minor in $(MINORS); do \
		for each in python3.$$minor $(HOME)/.pyenv/versions/3.$$minor.*/bin/python; do \
			version=$$("$$each" -c 'import ensurepip, sys; print(sys.version.split()[0])' 2>/dev/null) || continue; \
			echo "Python $$version: $$each"; found=1; \
			$(MAKE) --no-print-directory suite PYTHON="$$each" VENV=.venv-3.$$minor || exit 1; \
			break; \
		done; \
	done; test $$found = 1 || { echo "no Python from 3.11 on was found"; exit 1; }

suite: $(VENV)/test
	$(PYTEST) $(PYTEST_ARGS)

define CONSTRAINTS
import json, sys
found = [each["metadata"] for each in json.load(open(sys.argv[1]))["install"]]
lines = {f"{each['name']}=={each['version'].split('+')[0]}" for each in found}
print("# What make demo, test and bench install, by Python %d.%d on Linux; make constraints renews it."
      % sys.version_info[:2])
print(*sorted((line for line in lines if "stepwell" not in line), key=str.lower), sep="\n")
endef
export CONSTRAINTS

# Writes constraints.txt: the newest versions that work together, of everything that is installed
# here for the demo, the tests and the benchmarks. It downloads some of them and installs nothing.
constraints: $(VENV)/build
	mkdir -p build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed \
		--no-build-isolation --report build/constraints.json -e '.[demo,test,bench]' $(TOOLS)
	$(BIN)/python -c "$$CONSTRAINTS" build/constraints.json > build/constraints.txt
	mv build/constraints.txt constraints.txt

clean:
	rm -rf .venv .venv-asan .venv-3.* build dist demo-data bench-data

# The compiled module is rebuilt when a native file changes; Python files are used in place.
$(VENV)/build: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TOOLS)
	touch $@

$(VENV)/demo: $(VENV)/build $(NATIVE)
	$(PIP) --no-build-isolation --config-settings=cmake.define.STEPWELL_WERROR=ON -e '.[demo]'
	touch $@

$(VENV)/test: $(VENV)/build $(NATIVE)
	$(PIP) --no-build-isolation --config-settings=cmake.define.STEPWELL_WERROR=ON -e '.[test]'
	touch $@

$(VENV)/bench: $(VENV)/build $(NATIVE)
	$(PIP) --no-build-isolation --config-settings=cmake.define.STEPWELL_WERROR=ON -e '.[bench]'
	touch $@

build/race: tests/native/race.cpp $(NATIVE)
	mkdir -p build
	$(CXX) -std=c++20 -O1 -g -fsanitize=thread -DSTEPWELL_SANITIZE -Inative -pthread \
		tests/native/race.cpp $(CORE) -o $@

build/race-cuda.so: tests/native/fake_cuda.cpp
	mkdir -p build
	$(CXX) -std=c++20 -O1 -g -fsanitize=thread -shared -fPIC -pthread $< -o $@

build/fuzz: tests/native/fuzz.cpp $(NATIVE)
	mkdir -p build
	$(CXX) -std=gnu++20 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined \
		-DSTEPWELL_SANITIZE -Inative -pthread tests/native/fuzz.cpp $(CORE) -o $@

.venv-asan/done: $(VENV)/test $(NATIVE) $(shell find src -name '*.py')
	$(PYTHON) -m venv .venv-asan
	$(PYTHON) -c "import glob; print(*map(__import__('os').path.abspath, glob.glob('$(VENV)/lib/python*/site-packages')))" \
		> "$$(echo .venv-asan/lib/python*/site-packages)/borrowed.pth"
	.venv-asan/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --config-settings=cmake.define.STEPWELL_SANITIZE=ON --config-settings=build-dir=build/asan .
	touch $@
