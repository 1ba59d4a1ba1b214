# Everything sets up what it needs in .venv. Needs: python3 (>= 3.11), make, a package registry.
PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/.installed
BENCH ?= commit
MINUTES ?= 1
SECONDS ?= 60

# Tests and the demo start hundreds of interpreters. Without bytecode each of them compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo run test test-unit test-long verify model model-traces test-endpoints test-official sbom test-languages test-dotnet test-faults simulate mutants bench chaos coverage check check-infra snapshots docs test-image test-newest test-vendor test-programs format dist lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## create .venv from the pinned requirements
$(STAMP): requirements/dev.txt pyproject.toml worker/pyproject.toml testing/pyproject.toml emulators/pyproject.toml amqp/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cosmos-outbox needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	@sed -n '/^pip==/,/[^\\]$$/p' requirements/dev.txt > .venv/pip.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r .venv/pip.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --only-binary :all: -r requirements/dev.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable worker --editable testing --editable emulators --editable amqp
	@$(PY) -m compileall -qq -j 0 .venv/lib || true  # on all cores, unlike pip; a package may hold what is no Python of this version
	@touch $@

demo: $(STAMP) ## the main job, end to end, on local emulators (DEMO_ARGS="--json --contacts N ...")
	@$(PY) -m demo demo $(DEMO_ARGS)

run: $(STAMP) ## the whole stack until Ctrl-C
	@$(PY) -m demo run $(RUN_ARGS)

# Five processes, for some wait where others compute: what starts workers; commands and the pages that use them; units, wheels,
# faults and contracts; `verify`, which waits most; and all others. The checks run beside them. Exit code 5 of one of the five means that
# PYTEST_ARGS chose none of its tests.
PROCESSES := tests/system tests/chaos tests/service
COMMANDS := tests/cli tests/test_docs.py
UNITS := tests/unit tests/amqp tests/packaging tests/faults tests/contracts
VERIFY := tests/verify
test: $(STAMP) ## everything CI runs
	@logs=$$(mktemp -d); \
	{ $(CHECKS); } > $$logs/checks 2>&1 & checks=$$!; \
	$(foreach part,PROCESSES COMMANDS UNITS VERIFY,$(PY) -m pytest $($(part)) $(PYTEST_ARGS) > $$logs/$(part) 2>&1 & parts="$$parts $$!";) \
	$(PY) -m pytest tests $(patsubst %,--ignore=%,$(PROCESSES) $(COMMANDS) $(UNITS) $(VERIFY)) $(PYTEST_ARGS); codes=$$?; \
	for pid in $$parts; do wait $$pid; codes="$$codes $$?"; done; \
	wait $$checks; checked=$$?; \
	cat $$logs/[A-Z]* $$logs/checks; rm -rf $$logs; \
	for code in $$codes; do test $$code -eq 0 -o $$code -eq 5 || exit 1; done; \
	test "$$codes" != "5 5 5 5 5" -a $$checked -eq 0

test-unit: $(STAMP) ## the unit tests with few examples of each property, in two processes; meant for 20 seconds
	@export OUTBOX_TEST_QUICK=1; log=$$(mktemp); \
	$(PY) -m pytest tests/unit/changefeed -q $(PYTEST_ARGS) > $$log 2>&1 & half=$$!; \
	$(PY) -m pytest tests/unit tests/amqp --ignore=tests/unit/changefeed -q $(PYTEST_ARGS); codes=$$?; \
	wait $$half; codes="$$codes $$?"; cat $$log; rm -f $$log; \
	for code in $$codes; do test $$code -eq 0 -o $$code -eq 5 || exit 1; done; test "$$codes" != "5 5"

coverage: $(STAMP) ## lines and branches of the library that tests reach; fails below the floor in pyproject.toml
	$(PY) -m coverage run -m pytest tests/unit tests/amqp tests/contracts tests/service tests/cli -q $(PYTEST_ARGS)
	$(PY) -m coverage report

test-long: ## all tests with more examples of each property, verify, the models and traces, .NET's processors beside ours, then five minutes of random fleets
	OUTBOX_TEST_LONG=1 $(MAKE) test
	$(MAKE) verify
	$(MAKE) model
	$(MAKE) model-traces
	$(MAKE) test-dotnet
	$(MAKE) simulate MINUTES=5

verify: $(STAMP) ## `cosmos-outbox verify` on the emulators (VERIFY_ARGS="--only cosmos")
	@$(PY) -m tests.verify $(VERIFY_ARGS)

model: $(STAMP) ## TLC on models/: what holds, and each planted mistake; needs Java and TLA2TOOLS (MODEL_ARGS="Relay")
	@$(PY) -m models $(MODEL_ARGS)

model-traces: $(STAMP) ## simulated runs and a minute of chaos as traces of the models; needs Java and TLA2TOOLS (TRACE_ARGS="--seeds 200")
	@$(PY) -m tests.simulation.traces $(TRACE_ARGS)
	@$(PY) -m tests.chaos --traces --seconds 60

test-faults: $(STAMP) ## atomicity under faults alone; prints how the commits ended
	OUTBOX_TEST_LONG=1 $(PY) -m pytest tests/faults -q

simulate: $(STAMP) ## random fleets under random faults (MINUTES=1); prints the script of a violation
	@$(PY) -m tests.simulation --minutes $(MINUTES)

mutants: $(STAMP) ## plant a hundred mistakes, one at a time, and run the tests of what each is in (MUTANTS="commit lanes"); none may survive
	@$(PY) -m tests.mutants $(MUTANTS)

bench: $(STAMP) ## one benchmark (BENCH=commit, relay, latency, changefeed, processor, consume, growth, priority, emulators; all writes docs/reference/figures.md)
	@$(PY) -m benchmarks.$(BENCH) $(BENCH_ARGS)

chaos: $(STAMP) ## kill and freeze workers under load, then audit (SECONDS=60 CHAOS_ARGS="--seed N")
	@$(PY) -m tests.chaos --seconds $(SECONDS) $(CHAOS_ARGS)

CHECKS = $(PY) -m ruff format --check . && $(PY) -m ruff check . && $(PY) -m mypy && .venv/bin/lint-imports && .venv/bin/codespell
check: $(STAMP) ## format, lint, types, import contracts, spelling
	$(CHECKS)

INFRA := .venv-infra/bin/python
INFRA_STAMP := .venv-infra/.installed
$(INFRA_STAMP): requirements/infra.txt
	$(PYTHON) -m venv .venv-infra
	$(INFRA) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/infra.txt
	@touch $@

check-infra: $(STAMP) $(INFRA_STAMP) ## Bicep, manifests, compose, queries, rules, workflows; offline
	$(INFRA) -m mypy tools/infra_check --exclude /tests/
	$(INFRA) -m pytest -p no:cloudcoil -q tools/infra_check/tests
	$(PY) -m pytest -q tests/infra/deployed
	@$(PY) -m tools.infra_check.snapshots --validate

snapshots: $(STAMP) ## evaluate the Bicep template for each of infra/parameters; needs `bicep` (SNAPSHOTS_ARGS=--validate compares)
	@$(PY) -m tools.infra_check.snapshots $(SNAPSHOTS_ARGS)

DOCS := .venv-docs/bin/python
DOCS_STAMP := .venv-docs/.installed
$(DOCS_STAMP): requirements/docs.txt
	$(PYTHON) -m venv .venv-docs
	$(DOCS) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/docs.txt
	@touch $@

docs: $(DOCS_STAMP) ## the documentation as a site, with the API from the docstrings: docs/site/; strict, offline
	PYTHONPATH=.:worker:testing $(DOCS) -m zensical build --config-file docs/zensical.toml --strict --clean && rm docs/site/zensical.toml

test-endpoints: $(STAMP) ## demo, contracts and scenarios on what OUTBOX_TEST_…_CONNECTION_STRING name
	@: "$${OUTBOX_TEST_COSMOS_CONNECTION_STRING:?is not set: nothing was tested}" \
		"$${OUTBOX_TEST_SERVICEBUS_CONNECTION_STRING:?is not set: nothing was tested}"
	@$(PY) -m demo demo --contacts 10 --partitions 1 --concurrency 4 \
		--cosmos "$$OUTBOX_TEST_COSMOS_CONNECTION_STRING" --servicebus "$$OUTBOX_TEST_SERVICEBUS_CONNECTION_STRING"
	$(PY) -m pytest tests/contracts tests/examples/test_scenarios.py -k azure $(PYTEST_ARGS)

# The emulators' published keys; they open nothing else.
OFFICIAL_COSMOS := AccountEndpoint=http://127.0.0.1:8081/;AccountKey=C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==;
OFFICIAL_SERVICEBUS := Endpoint=sb://127.0.0.1;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;
test-official: $(STAMP) ## the same on Microsoft's emulators; needs Docker Compose and fails without
	@docker info > /dev/null 2>&1 || \
		{ echo "test-official: 'docker info' fails, no container engine is here; nothing was tested" >&2; exit 1; }
	@docker compose version > /dev/null 2>&1 || \
		{ echo "test-official: 'docker compose version' fails, docker has no compose; nothing was tested" >&2; exit 1; }
	@GATEWAY_PUBLIC_ENDPOINT=127.0.0.1 SERVICEBUS_CONFIG=./infra/compose/servicebus-tests.json docker compose up --detach cosmos servicebus && \
	WAIT_FOR='http://127.0.0.1:8079/ready http://127.0.0.1:5300/health' WAIT_SECONDS=300 no_proxy=127.0.0.1 PYTHONPATH=. \
		OUTBOX_COSMOS_CONNECTION_STRING='$(OFFICIAL_COSMOS)' OUTBOX_COSMOS_DATABASE=contacts \
		OUTBOX_COSMOS_CONTAINER=data OUTBOX_LEASE_CONTAINER=leases OUTBOX_PARKED_CONTAINER=parked \
		CONSUMER_CONTAINER=directory CONSUMER_PARKED_CONTAINER=directory-parked \
		$(PY) infra/compose/init.py && \
	OUTBOX_TEST_COSMOS_CONNECTION_STRING='$(OFFICIAL_COSMOS)' \
		OUTBOX_TEST_SERVICEBUS_CONNECTION_STRING='$(OFFICIAL_SERVICEBUS)' $(MAKE) test-endpoints; code=$$?; \
	test $$code -eq 0 || docker compose logs --tail 50; docker compose down --volumes; exit $$code

test-image: $(STAMP) $(INFRA_STAMP) ## build the images, run them, and the compose stack on our emulators; skipped without an engine
	OUTBOX_TEST_IMAGES=1 $(PY) -m pytest tests/infra/test_images.py tests/infra/test_stack.py

test-languages: $(STAMP) ## the SDKs for JavaScript, Go, Java and .NET on the emulators, with TLS; skipped where one is missing
	OUTBOX_TEST_LANGUAGES=1 $(PY) -m pytest tests/languages $(PYTEST_ARGS)

test-dotnet: $(STAMP) ## processors and a service of the SDK for .NET beside ours on the emulators; skipped where `dotnet` is missing
	@command -v dotnet > /dev/null || echo "test-dotnet: dotnet is not in PATH: NOT TESTED beside .NET"
	@! command -v dotnet > /dev/null || OUTBOX_TEST_DOTNET=1 $(PY) -m pytest tests/dotnet_fleet $(PYTEST_ARGS)

sbom: $(STAMP) $(INFRA_STAMP) ## the bill of materials of the packages of each image, CycloneDX: sbom/IMAGE.json
	@mkdir -p sbom
	@for image in worker api consumer; do \
		$(PYTHON) -m venv --clear --without-pip .venv-sbom && \
		$(PY) -m pip --python .venv-sbom/bin/python install --quiet --disable-pip-version-check --no-compile \
			--require-hashes --only-binary :all: -r requirements/image-$$image.txt && \
		for each in . worker; do (cd $$each && $(CURDIR)/$(PY) -m hatchling build --target wheel --directory $(CURDIR)/.venv-sbom/own) || exit 1; done && \
		$(PY) -m pip --python .venv-sbom/bin/python install --quiet --disable-pip-version-check --no-deps .venv-sbom/own/*.whl && \
		.venv-infra/bin/cyclonedx-py environment .venv-sbom/bin/python --PEP-639 --schema-version 1.6 --output-reproducible --outfile sbom/$$image.json || exit 1; done

# Made anew each time, and past the upper bounds in pyproject.toml: the question is what the next release breaks.
NEWEST := .venv-newest/bin/python
test-newest: ## the adapters' tests with the newest releases of both SDKs, whatever pyproject.toml allows
	$(PYTHON) -m venv --clear .venv-newest
	$(NEWEST) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/dev.txt
	$(NEWEST) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable worker --editable testing --editable emulators --editable amqp
	$(NEWEST) -m pip install --quiet --disable-pip-version-check --upgrade azure-cosmos azure-servicebus
	$(NEWEST) -m pip list --disable-pip-version-check | grep -E '^azure-(cosmos|servicebus) '
	$(NEWEST) -m pytest tests/unit/adapters tests/amqp tests/contracts -q $(PYTEST_ARGS)

VENDOR := .venv-vendor/bin/python
VENDOR_STAMP := .venv-vendor/.installed
$(VENDOR_STAMP): requirements/vendor.txt
	$(PYTHON) -m venv .venv-vendor
	$(VENDOR) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/vendor.txt
	@touch $@

test-vendor: $(VENDOR_STAMP) ## the SDKs' own tests against our emulators (VENDOR_ARGS="cosmos"); ends with one JSON object
	@$(VENDOR) -m tools.vendor_tests $(VENDOR_ARGS)

PROGRAMS := .venv-programs/bin/python
PROGRAMS_STAMP := .venv-programs/.installed
$(PROGRAMS_STAMP): requirements/programs.txt
	$(PYTHON) -m venv .venv-programs
	$(PROGRAMS) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/programs.txt
	@touch $@

test-programs: $(STAMP) ## programs that others wrote, unmodified, on the emulators; skipped where they cannot be installed
	OUTBOX_TEST_PROGRAMS=1 $(PY) -m pytest tests/programs $(PYTEST_ARGS)

format: $(STAMP) ## format and fix what can be fixed
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

dist: $(STAMP) ## sdist and wheel of each of the five distributions: dist/
	rm -rf dist
	$(PY) -m hatchling build --directory dist/library
	for each in worker testing amqp emulators; do (cd $$each && ../$(PY) -m hatchling build --directory ../dist/$$each) || exit 1; done

# Our own distributions are installed from the checkout, and pinned nowhere.
OURS := cosmos-outbox $(addprefix cosmos-outbox-,worker testing amqp emulators)
COMPILE := .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet \
	$(addprefix --no-emit-package ,$(OURS))
TESTED := --constraint requirements/dev.txt
lock: $(STAMP) ## pin the newest versions again, of the tests, the images, the tools: requirements/ (hashes, no registry address)
	$(PY) -m pip install --quiet uv
	$(COMPILE) pyproject.toml --group dev --all-extras --upgrade --output-file requirements/dev.txt
	$(COMPILE) $(TESTED) pyproject.toml --extra worker --extra azure-monitor --output-file requirements/image-worker.txt
	$(COMPILE) $(TESTED) pyproject.toml --extra example --output-file requirements/image-api.txt
	$(COMPILE) $(TESTED) pyproject.toml --extra worker --extra azure-monitor --extra example --output-file requirements/image-consumer.txt
	$(COMPILE) $(TESTED) emulators/pyproject.toml --extra tls --output-file emulators/requirements-image.txt
	echo hatchling | $(COMPILE) $(TESTED) - --output-file requirements/image-build.txt
	$(COMPILE) $(TESTED) --group vendor --output-file requirements/vendor.txt
	$(COMPILE) pyproject.toml --group programs --upgrade --output-file requirements/programs.txt
	$(COMPILE) --group infra --upgrade --output-file requirements/infra.txt
	$(COMPILE) --group docs --upgrade --output-file requirements/docs.txt

clean: ## remove .venv and caches
	rm -rf .venv .venv-docs .venv-infra .venv-newest .venv-programs .venv-sbom .venv-vendor .vendor-tests docs/site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
